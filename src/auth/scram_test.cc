#include <gtest/gtest.h>

#include <functional>

#include "auth/exchange.h"
#include "crypto/crypto.h"

namespace pgf::auth {
namespace {

constexpr char kRefused[] = "SASL authentication failed";
constexpr char kBadMechanism[] = "client selected an invalid SASL authentication mechanism";
constexpr std::string_view kMechanisms("SCRAM-SHA-256\0\0", 15);

// The exchange of RFC 7677 section 3: user "user", password "pencil".
constexpr char kClientNonce[] = "rOprNGfwEbeRWgbNEkqO";
constexpr char kServerNonce[] = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
constexpr char kClientFirst[] = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
constexpr char kServerFirst[] =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
constexpr char kClientFinal[] =
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
constexpr char kServerFinal[] = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
constexpr char kSecret[] =
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

std::string initial(std::string_view data, std::string_view mechanism = "SCRAM-SHA-256",
                    std::optional<std::uint32_t> length = {}) {
  std::string body(mechanism);
  body += '\0';
  std::array<std::uint8_t, 4> be;
  store_be32(be.data(), length.value_or(static_cast<std::uint32_t>(data.size())));
  body += as_text(be);
  body += data;
  return body;
}

ScramServer rfc_server(bool genuine = true) { return {parse_secret(kSecret).scram, genuine, kServerNonce}; }

// Both roles against each other; true if both sides are content.
bool login(ScramClient client, ScramServer& server) {
  auto first = client.start(as_bytes(kMechanisms));
  auto server_first = server.first(as_bytes(first.value()));
  auto final = client.respond(as_bytes(server_first.value()));
  auto server_final = server.final(as_bytes(final.value()));
  if (!server_final) {
    EXPECT_EQ(server_final.error(), kRefused);
    EXPECT_EQ(server.keys().client_key, ScramKeys{}.client_key);
    return false;
  }
  EXPECT_FALSE(client.verified());
  auto finished = client.finish(as_bytes(*server_final));
  EXPECT_EQ(finished.has_value(), client.verified());
  return finished.has_value();
}

bool login(ScramClient client, const ScramSecret& secret, bool genuine = true) {
  ScramServer server(secret, genuine);
  return login(std::move(client), server);
}

TEST(ScramServer, Rfc7677) {
  ScramServer server = rfc_server();
  EXPECT_EQ(server.first(as_bytes(initial(kClientFirst))), kServerFirst);
  EXPECT_EQ(server.final(as_bytes(kClientFinal)), kServerFinal);
  EXPECT_EQ(server.keys().server_key, parse_secret(kSecret).scram.server_key);
  EXPECT_EQ(crypto::sha256({server.keys().client_key}), parse_secret(kSecret).scram.stored_key);
}

// The same, but with the empty user name that we send; figures from an independent computation in Python.
TEST(ScramClient, KnownAnswer) {
  ScramClient client("pencil", kClientNonce);
  EXPECT_EQ(client.start(as_bytes(kMechanisms)), initial("n,,n=,r=rOprNGfwEbeRWgbNEkqO"));
  EXPECT_EQ(
      client.respond(as_bytes(kServerFirst)),
      "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=qvT2SWdEH5Q06albL+hjSYuUhCG7VndFyzIb7CK4n9k=");
  EXPECT_TRUE(client.finish(as_bytes("v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=")).has_value());
  EXPECT_TRUE(client.verified());
}

TEST(Scram, PlainSecretLoop) {
  for (std::string password : {std::string("pencil"), std::string("a,b=c\"\n"), std::string("caf\xE9"),
                               std::string("pässwörd"), std::string(65'535, 'x')}) {
    ScramSecret secret = derive_scram(password, 100);
    EXPECT_TRUE(login(ScramClient(password), secret));
    EXPECT_FALSE(login(ScramClient(password + "x"), secret));
  }
}

TEST(Scram, StoredSecretLoop) {
  EXPECT_TRUE(login(ScramClient("pencil"), parse_secret(kSecret).scram));
  EXPECT_FALSE(login(ScramClient("Pencil"), parse_secret(kSecret).scram));
}

TEST(Scram, PassThroughKeys) {
  ScramSecret stored = parse_secret(kSecret).scram;
  ScramServer pooler(stored, true);
  ASSERT_TRUE(login(ScramClient("pencil"), pooler));
  EXPECT_TRUE(login(ScramClient(pooler.keys()), stored));
  EXPECT_TRUE(login(ScramClient(pooler.keys()), stored)) << "keys are good for any number of logins";
  EXPECT_FALSE(login(ScramClient(pooler.keys()), derive_scram("pencil", 4096))) << "other salt, other keys";
  EXPECT_FALSE(login(ScramClient(ScramKeys{}), stored));
}

TEST(Scram, MockAlwaysFails) {
  std::array<std::uint8_t, 32> process_key{7};
  ScramSecret mock = mock_scram("nobody", 50, process_key);
  EXPECT_FALSE(login(ScramClient("pencil"), mock, false));
  // Not even the right password for a secret helps when the exchange is not genuine.
  EXPECT_FALSE(login(ScramClient("pencil"), derive_scram("pencil", 50), false));
  ScramServer rfc = rfc_server(false);
  EXPECT_EQ(rfc.first(as_bytes(initial(kClientFirst))), kServerFirst);
  EXPECT_EQ(rfc.final(as_bytes(kClientFinal)), std::unexpected(kRefused));
  EXPECT_EQ(rfc.keys().server_key, ScramKeys{}.server_key);
}

TEST(Scram, ChannelBinding) {
  ScramSecret secret = parse_secret(kSecret).scram;
  auto bytes = [](std::string_view list) { return std::string(list); };
  const std::string both = bytes(std::string_view("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0", 34));
  const std::string plain = bytes(std::string_view("SCRAM-SHA-256\0\0", 15));
  auto login = [&](std::string mine, std::string theirs, const std::string& offered) {
    ScramServer server(secret, true);
    server.bind_channel(std::move(theirs));
    ScramClient client("pencil");
    client.bind_channel(std::move(mine));
    auto hello = client.start(as_bytes(offered));
    if (!hello) return std::string("no mechanism");
    std::string mechanism = hello->substr(0, hello->find('\0'));
    auto challenge = server.first(as_bytes(*hello));
    if (!challenge) return std::string("refused");
    auto proof = client.respond(as_bytes(*challenge));
    auto done = server.final(as_bytes(*proof));
    return done && client.finish(as_bytes(*done)) ? mechanism : "failed";
  };
  EXPECT_EQ(login("cert", "cert", both), "SCRAM-SHA-256-PLUS");
  EXPECT_EQ(login("cert", "other cert", both), "failed") << "somebody with another certificate is in between";
  EXPECT_EQ(login("cert", "cert", plain), "refused") << "the offer was taken out on the way";
  EXPECT_EQ(login("cert", "", plain), "SCRAM-SHA-256") << "a server that cannot";
  EXPECT_EQ(login("", "cert", both), "SCRAM-SHA-256") << "a client that cannot";
  EXPECT_EQ(login("cert", "", both), "refused");
  EXPECT_EQ(login("", "", both), "SCRAM-SHA-256");
  EXPECT_EQ(login("", "cert", both.substr(0, 19) + std::string(1, '\0')), "no mechanism");
}

TEST(ScramServer, AcceptsFirst) {
  for (std::string_view good :
       {"n,,n=,r=abc", "y,,n=,r=abc", "n,,n=*,r=abc", "n,,n=a=2Cb,r=~!\"", "n,,n=,r=abc,x=1,Y=", "n,,n=ünï,r=abc"}) {
    EXPECT_TRUE(rfc_server().first(as_bytes(initial(good))).has_value()) << good;
  }
}

TEST(ScramServer, RefusesFirst) {
  for (std::string_view bad : {
           "",
           "n",
           "n,",
           "n,,",
           "x,,n=,r=abc",
           ",,n=,r=abc",
           "n=,r=abc",
           "p=tls-server-end-point,,n=,r=abc",
           "p=junk,,n=,r=abc",
           "p,,n=,r=abc",
           "p=,,n=,r=abc",
           "n,a=bob,n=,r=abc",
           "n,a=,n=,r=abc",
           "n,x,n=,r=abc",
           "nn,,n=,r=abc",
           "n,,m=ext,n=,r=abc",
           "n,,n=,m=ext,r=abc",
           "n,,n=,r=abc,m=ext",
           "n,,n=,r=abc,x=1,m=2",
           "n,,r=abc",
           "n,,r=abc,n=",
           "n,,n=",
           "n,,n=,",
           "n,,n=,r=",
           "n,,n=,r",
           "n,,n",
           "n,,n,r=abc",
           "n,,,n=,r=abc",
           "n,,n=,r=abc,",
           "n,,n=,r=abc,,x=1",
           "n,,n=,r=abc,x",
           "n,,n=,r=abc,xy=1",
           "n,,n=,r=abc,1=2",
           "n,,n=,r=abc,r=def",
           "n,,n=,r=abc,p=AAAA",
           "n,,n=,r=a b",
           "n,,n=,r=a\tb",
           "n,,n=,r=a\x7f",
           "n,,n=,r=\xC3\xA9",
       }) {
    ScramServer server = rfc_server();
    EXPECT_EQ(server.first(as_bytes(initial(bad))), std::unexpected(kRefused)) << bad;
    EXPECT_EQ(server.first(as_bytes(initial(kClientFirst))), std::unexpected(kRefused)) << "no second try";
    EXPECT_EQ(server.final(as_bytes(kClientFinal)), std::unexpected(kRefused));
  }
  EXPECT_EQ(rfc_server().first(as_bytes(initial(std::string_view("n,,n=\0,r=abc", 12)))), std::unexpected(kRefused));
  EXPECT_EQ(rfc_server().first(as_bytes(initial("n,,n=,r=" + std::string(1025, 'r')))), std::unexpected(kRefused));
  EXPECT_EQ(rfc_server().first(as_bytes(initial("n,,n=" + std::string(65'000, 'n') + ",r=abc"))),
            std::unexpected(kRefused));
}

TEST(ScramServer, RefusesEnvelope) {
  for (std::string_view mechanism :
       {"", "SCRAM-SHA-256-PLUS", "SCRAM-SHA-1", "scram-sha-256", "SCRAM-SHA-256 ", "GSSAPI"}) {
    EXPECT_EQ(rfc_server().first(as_bytes(initial(kClientFirst, mechanism))), std::unexpected(kBadMechanism));
  }
  const auto size = static_cast<std::uint32_t>(std::string_view(kClientFirst).size());
  for (std::uint32_t length : {0xFFFFFFFFu, 0xFFFFFFFEu, 0x80000000u, 0x7FFFFFFFu, 0u, size - 1, size + 1}) {
    EXPECT_EQ(rfc_server().first(as_bytes(initial(kClientFirst, "SCRAM-SHA-256", length))), std::unexpected(kRefused));
  }
  EXPECT_EQ(rfc_server().first(as_bytes(initial("", "SCRAM-SHA-256", 0xFFFFFFFFu))), std::unexpected(kRefused));
  // Cut at every byte.
  std::string whole = initial(kClientFirst);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(rfc_server().first(as_bytes(whole).first(n)), std::unexpected(kRefused)) << n;
  }
}

TEST(ScramServer, RefusesFinal) {
  const std::string nonce = std::string(kClientNonce) + kServerNonce;
  const std::string proof(std::string_view(kClientFinal).substr(std::string_view(kClientFinal).size() - 44));
  ASSERT_EQ("c=biws,r=" + nonce + ",p=" + proof, kClientFinal);
  const std::string short_proof = crypto::base64(std::array<std::uint8_t, 31>{});
  const std::string long_proof = crypto::base64(std::array<std::uint8_t, 33>{});
  for (std::string bad : {
           std::string(),
           std::string("c=biws"),
           "c=eSws,r=" + nonce + ",p=" + proof,  // "y,,", but the flag was n
           "c=cD10bHMtc2VydmVyLWVuZC1wb2ludCws,r=" + nonce + ",p=" + proof,
           "c=,r=" + nonce + ",p=" + proof,
           "c=biws=,r=" + nonce + ",p=" + proof,
           "r=" + nonce + ",p=" + proof,
           "r=" + nonce + ",c=biws,p=" + proof,
           "c=biws,p=" + proof,
           "c=biws,r=" + nonce,
           "c=biws,r=" + nonce + ",",
           "c=biws,r=" + nonce + ",p=",
           "c=biws,r=" + nonce + ",p",
           "c=biws,r=" + nonce.substr(1) + ",p=" + proof,
           "c=biws,r=" + nonce + "x,p=" + proof,
           "c=biws,r=" + std::string(kClientNonce) + ",p=" + proof,
           "c=biws,r=,p=" + proof,
           "c=biws,r=" + nonce + ",m=1,p=" + proof,
           "c=biws,r=" + nonce + ",x=1,p=" + proof,  // allowed, but then signed with it
           "c=biws,r=" + nonce + ",r=" + nonce + ",p=" + proof,
           "c=biws,r=" + nonce + ",p=" + proof + ",x=1",
           "c=biws,r=" + nonce + ",p=" + proof + ",",
           "c=biws,r=" + nonce + ",p=" + proof + "\n",
           "c=biws,r=" + nonce + ",p=" + proof + std::string(1, '\0'),
           "c=biws,r=" + nonce + ",p=" + proof.substr(1),
           "c=biws,r=" + nonce + ",p=*" + proof.substr(1),
           "c=biws,r=" + nonce + ",p=A" + proof.substr(1),
           "c=biws,r=" + nonce + ",p=" + short_proof,
           "c=biws,r=" + nonce + ",p=" + long_proof,
           "c=biws,r=" + nonce + ",x=" + std::string(65'000, 'x') + ",p=" + proof,
       }) {
    ScramServer server = rfc_server();
    ASSERT_TRUE(server.first(as_bytes(initial(kClientFirst))).has_value());
    EXPECT_EQ(server.final(as_bytes(bad)), std::unexpected(kRefused)) << bad.substr(0, 200);
    EXPECT_EQ(server.final(as_bytes(kClientFinal)), std::unexpected(kRefused)) << "no second guess";
    EXPECT_EQ(server.keys().client_key, ScramKeys{}.client_key);
  }
}

TEST(ScramServer, RefusesWrongOrder) {
  EXPECT_EQ(rfc_server().final(as_bytes(kClientFinal)), std::unexpected(kRefused));

  ScramServer twice = rfc_server();
  ASSERT_TRUE(twice.first(as_bytes(initial(kClientFirst))).has_value());
  EXPECT_EQ(twice.first(as_bytes(initial(kClientFirst))), std::unexpected(kRefused));
  EXPECT_EQ(twice.final(as_bytes(kClientFinal)), std::unexpected(kRefused));

  ScramServer third = rfc_server();
  ASSERT_TRUE(third.first(as_bytes(initial(kClientFirst))).has_value());
  ASSERT_TRUE(third.final(as_bytes(kClientFinal)).has_value());
  EXPECT_EQ(third.final(as_bytes(kClientFinal)), std::unexpected(kRefused));
}

TEST(ScramServer, ExtensionIsSigned) {
  ScramServer server = rfc_server();
  ASSERT_TRUE(server.first(as_bytes(initial("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))).has_value());
  EXPECT_EQ(server.final(as_bytes("c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,x=1,p="
                                  "IhwEOhboL25RstTdvZrPEOlE5bjYNyL1Go4fmyTI92U=")),
            "v=3IfZHUpaX+/jJ5HDQfNtiLC4fe97LRCLdGR7b2OJcEc=");
}

TEST(ScramServer, NoncesAreFresh) {
  ScramSecret secret = parse_secret(kSecret).scram;
  ScramServer a(secret, true), b(secret, true);
  auto first_a = a.first(as_bytes(initial(kClientFirst))), first_b = b.first(as_bytes(initial(kClientFirst)));
  EXPECT_NE(first_a.value(), first_b.value());
  EXPECT_TRUE(first_a->starts_with("r=rOprNGfwEbeRWgbNEkqO"));
  ScramClient c("x"), d("x");
  EXPECT_NE(c.start(as_bytes(kMechanisms)).value(), d.start(as_bytes(kMechanisms)).value());
}

TEST(ScramClient, Mechanisms) {
  auto start = [](std::string_view list) { return ScramClient("x").start(as_bytes(list)); };
  using std::string_view_literals::operator""sv;
  EXPECT_TRUE(start("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"sv).has_value());
  EXPECT_TRUE(start("SCRAM-SHA-256\0OTHER\0\0"sv).has_value());
  for (std::string_view bad : {""sv, "\0"sv, "SCRAM-SHA-256"sv, "SCRAM-SHA-256\0"sv, "SCRAM-SHA-256-PLUS\0\0"sv,
                               "\0SCRAM-SHA-256\0\0"sv, "SCRAM-SHA-256\0\0junk"sv, "OAUTHBEARER\0\0"sv}) {
    EXPECT_EQ(start(bad), std::unexpected("none of the server's SASL authentication mechanisms are supported"));
  }
}

ScramClient started() {
  ScramClient client("pencil", kClientNonce);
  EXPECT_TRUE(client.start(as_bytes(kMechanisms)).has_value());
  return client;
}

TEST(ScramClient, RefusesServerFirst) {
  const std::string nonce = std::string("r=") + kClientNonce + "srv";
  ASSERT_TRUE(started().respond(as_bytes(nonce + ",s=AAAA,i=1")).has_value());
  ASSERT_TRUE(started().respond(as_bytes(nonce + ",s=AAAA,i=1,x=ext")).has_value());
  ASSERT_TRUE(started().respond(as_bytes(nonce + ",s=AAAA,i=100000")).has_value());
  for (std::string bad : {
           std::string(),
           std::string("r=") + kClientNonce + ",s=AAAA,i=1",  // adds nothing
           std::string("r=other,s=AAAA,i=1"),
           std::string("r=,s=AAAA,i=1"),
           "m=1," + nonce + ",s=AAAA,i=1",
           nonce,
           nonce + ",s=AAAA",
           nonce + ",i=1",
           nonce + ",i=1,s=AAAA",
           nonce + ",s=,i=1",
           nonce + ",s=AAA,i=1",
           nonce + ",s=A AA,i=1",
           nonce + ",s=" + std::string(1372, 'A') + ",i=1",
           nonce + ",s=AAAA,i=",
           nonce + ",s=AAAA,i=0",
           nonce + ",s=AAAA,i=-1",
           nonce + ",s=AAAA,i=+1",
           nonce + ",s=AAAA,i= 1",
           nonce + ",s=AAAA,i=1x",
           nonce + ",s=AAAA,i=100001",
           nonce + ",s=AAAA,i=2147483647",
           nonce + ",s=AAAA,i=4294967297",
           nonce + ",s=AAAA,i=99999999999999999999",
           nonce + ",s=AAAA,i=1,",
           nonce + ",s=AAAA,i=1,m=2",
           nonce + ",s=AAAA,i=1" + std::string(1, '\0'),
           nonce + "\x01,s=AAAA,i=1",
           nonce + std::string(1024, 'r') + ",s=AAAA,i=1",
           nonce + std::string(65'536, 'r') + ",s=AAAA,i=1",
           std::string("e=other-error"),
       }) {
    ScramClient client = started();
    EXPECT_FALSE(client.respond(as_bytes(bad)).has_value()) << bad.substr(0, 200);
    EXPECT_FALSE(client.respond(as_bytes(kServerFirst)).has_value()) << "no second try";
    EXPECT_FALSE(client.finish(as_bytes("v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=")).has_value());
    EXPECT_FALSE(client.verified());
  }
}

TEST(ScramClient, RefusesServerFinal) {
  const std::string good = "v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=";
  auto finish = [](std::string_view message) {
    ScramClient client = started();
    EXPECT_TRUE(client.respond(as_bytes(kServerFirst)).has_value());
    auto result = client.finish(as_bytes(message));
    EXPECT_EQ(client.verified(), result.has_value());
    EXPECT_FALSE(client.finish(as_bytes("v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=")).has_value())
        << "no second try";
    return result.has_value() ? "" : result.error();
  };
  EXPECT_EQ(finish(good), "");
  EXPECT_EQ(finish(good + ",x=1"), "");
  EXPECT_EQ(finish("v=" + crypto::base64(std::array<std::uint8_t, 32>{})), "invalid server signature");
  for (std::string bad :
       {std::string(), std::string("v"), std::string("v="), std::string("v=AAAA"), std::string("e=invalid-proof"),
        "x" + good, good + ",", good + "=", good + ",m=1", good + std::string(1, '\0'), good.substr(0, good.size() - 1),
        "v=" + crypto::base64(std::array<std::uint8_t, 33>{}), "v=" + std::string(70'000, 'A')}) {
    EXPECT_EQ(finish(bad), "failed to verify server signature") << bad.substr(0, 200);
  }
}

TEST(ScramClient, RefusesWrongOrder) {
  EXPECT_FALSE(ScramClient("pencil").respond(as_bytes(kServerFirst)).has_value());
  EXPECT_FALSE(ScramClient("pencil").finish(as_bytes(kServerFinal)).has_value());
  // The signature over nothing with keys of zeros: a server that skips steps can compute it.
  ScramClient early(ScramKeys{});
  std::string forged = "v=" + crypto::base64(crypto::hmac_sha256(std::array<std::uint8_t, 32>{}, {}));
  EXPECT_FALSE(early.finish(as_bytes(forged)).has_value());
  EXPECT_FALSE(early.verified());

  ScramClient final_before_first = started();
  EXPECT_FALSE(final_before_first.finish(as_bytes(forged)).has_value());
  EXPECT_FALSE(final_before_first.respond(as_bytes(kServerFirst)).has_value());
  ScramClient twice = started();
  EXPECT_FALSE(twice.start(as_bytes(kMechanisms)).has_value());
}

}  // namespace
}  // namespace pgf::auth
