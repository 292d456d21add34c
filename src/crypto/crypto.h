#pragma once
// The only folder that hashes. OpenSSL inside. Nothing here can fail, but for base64_decode and a missing CSPRNG.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace pgf::crypto {

using Digest = std::array<std::uint8_t, 32>;

std::string md5_hex(std::initializer_list<Bytes> parts);
Digest sha256(std::initializer_list<Bytes> parts);
Digest hmac_sha256(Bytes key, std::initializer_list<Bytes> parts);
Digest pbkdf2_sha256(std::string_view password, Bytes salt, int iterations);
// From the kernel's CSPRNG; ends the program if there is none.
void random_bytes(std::span<std::uint8_t> out);
bool equal_constant_time(Bytes a, Bytes b);
std::string base64(Bytes data);
// False on any character outside the alphabet or wrong padding.
bool base64_decode(std::string_view text, std::string& out);

}  // namespace pgf::crypto
