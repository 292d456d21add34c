// OpenSSL's low-level digests instead of EVP: a login hashes many short strings, and EVP costs 5 to 10 times as much
// for those (fetch, context, provider call); PBKDF2 below runs 3 times as fast. They cannot fail either, which EVP's
// MD5 does on hosts in FIPS mode. OpenSSL 3 marks them deprecated but keeps them.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "crypto/crypto.h"

#include <openssl/crypto.h>
#include <openssl/md5.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdlib>

namespace pgf::crypto {
namespace {

constexpr std::size_t kBlock = SHA256_CBLOCK;

void update(SHA256_CTX& ctx, Bytes part) {
  if (!part.empty()) SHA256_Update(&ctx, part.data(), part.size());
}

// HMAC's two hash states with the padded key already in them: copying them restarts an HMAC with the same key.
struct HmacKey {
  SHA256_CTX inner, outer;

  explicit HmacKey(Bytes key) {
    std::array<std::uint8_t, kBlock> pad{};
    if (key.size() > pad.size()) {
      std::ranges::copy(sha256({key}), pad.begin());
    } else {
      std::ranges::copy(key, pad.begin());
    }
    for (auto& byte : pad) byte ^= 0x36;
    SHA256_Init(&inner);
    SHA256_Update(&inner, pad.data(), pad.size());
    for (auto& byte : pad) byte ^= 0x36 ^ 0x5c;
    SHA256_Init(&outer);
    SHA256_Update(&outer, pad.data(), pad.size());
    OPENSSL_cleanse(pad.data(), pad.size());
  }
  HmacKey(const HmacKey&) = delete;
  HmacKey& operator=(const HmacKey&) = delete;
  ~HmacKey() { OPENSSL_cleanse(this, sizeof *this); }

  Digest finish(SHA256_CTX ctx) const {
    Digest digest;
    SHA256_Final(digest.data(), &ctx);
    ctx = outer;
    SHA256_Update(&ctx, digest.data(), digest.size());
    SHA256_Final(digest.data(), &ctx);
    return digest;
  }
};

// The second block of "padded key, 32-byte digest", complete with SHA-256's padding. PBKDF2 feeds each digest into the
// next HMAC, so every one of its hashes is a single compression of this block on top of a saved state.
class DigestBlock {
 public:
  explicit DigestBlock(const Digest& digest) {
    std::ranges::copy(digest, block_.begin());
    block_[SHA256_DIGEST_LENGTH] = 0x80;
    store_be16(&block_[kBlock - 2], (kBlock + SHA256_DIGEST_LENGTH) * 8);
  }
  void hash_onto(const SHA256_CTX& start) {
    SHA256_CTX ctx = start;
    SHA256_Transform(&ctx, block_.data());
    for (int i = 0; i < 8; ++i) store_be32(&block_[static_cast<std::size_t>(4 * i)], ctx.h[i]);
  }
  void xor_into(Digest& sum) const {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] ^= block_[i];
  }

 private:
  std::array<std::uint8_t, kBlock> block_{};
};

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr auto kSextet = [] {
  std::array<std::int8_t, 256> table;
  table.fill(-1);
  for (int i = 0; i < 64; ++i) table[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  return table;
}();

}  // namespace

std::string md5_hex(std::initializer_list<Bytes> parts) {
  MD5_CTX ctx;
  MD5_Init(&ctx);
  for (Bytes part : parts) {
    if (!part.empty()) MD5_Update(&ctx, part.data(), part.size());
  }
  std::array<std::uint8_t, MD5_DIGEST_LENGTH> digest;
  MD5_Final(digest.data(), &ctx);
  std::string hex;
  hex.reserve(2 * digest.size());
  for (std::uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

Digest sha256(std::initializer_list<Bytes> parts) {
  SHA256_CTX ctx;
  SHA256_Init(&ctx);
  for (Bytes part : parts) update(ctx, part);
  Digest digest;
  SHA256_Final(digest.data(), &ctx);
  return digest;
}

Digest hmac_sha256(Bytes key, std::initializer_list<Bytes> parts) {
  HmacKey hmac(key);
  SHA256_CTX ctx = hmac.inner;
  for (Bytes part : parts) update(ctx, part);
  return hmac.finish(ctx);
}

Digest pbkdf2_sha256(std::string_view password, Bytes salt, int iterations) {
  static constexpr std::uint8_t kFirstBlock[4] = {0, 0, 0, 1};  // one block is all we need: it is 32 bytes
  HmacKey hmac(as_bytes(password));
  SHA256_CTX ctx = hmac.inner;
  update(ctx, salt);
  update(ctx, kFirstBlock);
  Digest sum = hmac.finish(ctx);
  DigestBlock block(sum);
  for (int i = 1; i < iterations; ++i) {
    block.hash_onto(hmac.inner);
    block.hash_onto(hmac.outer);
    block.xor_into(sum);
  }
  return sum;
}

// The kernel's generator, which glibc ends the program over if there is none: going on with guessable salts and nonces
// would be worse. (RAND_bytes was a twelfth of what a login cost.)
void random_bytes(std::span<std::uint8_t> out) {
  if (!out.empty()) arc4random_buf(out.data(), out.size());
}

bool equal_constant_time(Bytes a, Bytes b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

std::string base64(Bytes data) {
  std::string text;
  text.reserve((data.size() + 2) / 3 * 4);
  std::size_t i = 0;
  for (; i + 3 <= data.size(); i += 3) {
    std::uint32_t v = static_cast<std::uint32_t>(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    for (int shift : {18, 12, 6, 0}) text += kAlphabet[v >> shift & 63];
  }
  if (std::size_t left = data.size() - i; left > 0) {
    std::uint32_t v = static_cast<std::uint32_t>(data[i] << 16 | (left == 2 ? data[i + 1] << 8 : 0));
    text += kAlphabet[v >> 18];
    text += kAlphabet[v >> 12 & 63];
    text += left == 2 ? kAlphabet[v >> 6 & 63] : '=';
    text += '=';
  }
  return text;
}

// Spare bits in the last character may be anything, as in PostgreSQL: a secret that works there must work here.
bool base64_decode(std::string_view text, std::string& out) {
  out.clear();
  if (text.size() % 4 != 0) return false;
  std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int held = 0;
  for (char c : text) {
    std::int8_t sextet = kSextet[static_cast<std::uint8_t>(c)];
    if (sextet < 0) {
      out.clear();
      return false;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(sextet);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>(bits >> held & 0xff);
    }
  }
  return true;
}

}  // namespace pgf::crypto
