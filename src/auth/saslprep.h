#pragma once
#include <string>
#include <string_view>

namespace pgf::auth {

// A password as SCRAM hashes it (RFC 4013). As in PostgreSQL, a password that cannot be prepared - not UTF-8,
// prohibited characters, nothing left - is used raw, so every password works.
//
// Covered: mapping (odd spaces to space, invisible characters dropped), prohibited characters, and of NFKC all of
// Latin-1, full-width ASCII and a few typographic signs. Not covered: NFKC of anything else (combining marks typed
// apart from their letter, ligatures, Arabic presentation forms, ...), and the bidi and unassigned-character rules,
// which only matter for passwords that mix right-to-left text with characters that the mapping changes. Such passwords
// work with other clients that skip SASLprep, or as md5 or cleartext.
std::string saslprep(std::string_view password);

}  // namespace pgf::auth
