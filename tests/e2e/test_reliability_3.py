"""Section 3 of the reliability catalogue: malformed and hostile bytes, from clients and from servers."""
import contextlib
import hashlib
import struct
import time

import psycopg
import pytest

import wire
from conftest import PASSWORD, wait_until
from fakes import DONE, KEY, LOGIN, OK, PARAMS, READY, Scripted, bystander, row, with_fake
from wire import SYNC, Wire, bind, close, describe, execute, msg, parse, query

pytestmark = pytest.mark.ours

LIES = (0, 1, 2, 3, 0x80000000, 0xFFFFFFFF)
types = lambda out: "".join(m.type for m in out)  # noqa: E731


def codes(out):
    return [m.code for m in out if m.type == "E"]


def all_of(c, kinds):
    """Messages up to one of these kinds, or to the end of the connection."""
    out = []
    with contextlib.suppress(wire.Closed):
        while not out or out[-1].type not in kinds:
            out.append(c.recv())
    return out


def refused(c, text, code="08P01"):
    """One FATAL with this text (its beginning), then the end."""
    error = c.fatal()
    assert error.code == code and error.text.startswith(text), error.fields


def claim(kind, length, body=b""):
    return kind.encode("latin1") + struct.pack("!I", length) + body


# ------------------------------------------------------------------------------------------------- 38: length lies

def test_r38_length_lies_in_the_first_packet(pooler):
    p = pooler()
    with bystander(p):
        for length in (*LIES, 4, 7, 0x7FFFFFFF):
            with p.wire() as c:
                c.send(struct.pack("!II", length, 0x30000) + b"user\0alice\0\0")
                refused(c, f"bad packet header: '{length:08x}")


def test_r38_length_lies_in_a_password(pooler):
    p = pooler(auth_type="plain", userlist={"alice": PASSWORD, "bob": PASSWORD})
    with p.login("bob", password=PASSWORD) as bob:
        for length in (*LIES, 0x7FFFFFFF):
            with p.wire() as c:
                c.start()
                assert c.recv().type == "R"
                c.send(claim("p", length, b"x\0"))
                refused(c, f"bad packet header: '70{length:08x}")
        assert bob.value("select 'untouched'") == "untouched"


@pytest.mark.parametrize("kind", ["Q", "P", "B", "S", "d", "X"])
def test_r38_length_lies_after_login(pooler, pg, kind):
    """With and without a server; the transaction is rolled back and the next client finds a clean server."""
    p = pooler(default_pool_size=1)
    pg.sql("truncate t")
    with bystander(p):
        for length in LIES:
            for begun in (False, True):
                with p.login() as c:
                    if begun:
                        c.query("begin")
                        c.query("insert into t (v) values ('lost')")
                    c.send(claim(kind, length, b"x" * 8))
                    refused(c, f"bad packet header: '{ord(kind):02x}{length:08x}")
                with p.login() as c:
                    assert c.query("select 'next'")[-1].body == b"I"
                    assert c.value("select count(*) from t") == "0"


@pytest.mark.parametrize("kind", "PBDCEQF")
def test_r38_no_body_where_one_is_needed(pooler, kind):
    """Our FATAL, or PostgreSQL's error and a session in step with it."""
    p = pooler(default_pool_size=1)
    with bystander(p):
        with p.login() as c:
            c.send(claim(kind, 4) + SYNC)
            out = all_of(c, "Z")
            assert codes(out) == ["08P01"], out
            if out[-1].type == "Z":
                if kind in "QF":  # the Sync is a request of its own
                    assert types(c.until("Z")) == "Z"
                assert c.value("select 'in step'") == "in step"
            else:
                assert kind in "PBDC" and out[-1].text.startswith("broken "), out
        with p.login() as c:
            assert c.value("select 'next'") == "next"


def test_r38_claims_of_2_gb_cost_nothing(pooler):
    """A claim is not memory: 100 clients, each with the largest legal length and a kilobyte behind it."""
    p = pooler()
    with bystander(p):
        before = p.rss()
        clients = [p.login() for _ in range(100)]
        for i, c in enumerate(clients):
            c.send(claim("QBFdP"[i % 5], 0x7FFFFFFF, b"x" * 1000))
        with p.login() as c:
            assert c.value("select 'others work'") == "others work"
        assert p.rss() - before < 30_000_000
        for c in clients:
            c.close()


@pytest.mark.parametrize("kind", ["R", "S", "K", "Z", "E"])
def test_r38_length_lies_in_a_servers_login(make_pooler, kind):
    """No such server is ever used; its client waits, as in PgBouncer, for a better one: here the next is."""
    lies = [*LIES, 0x7FFFFFFF]

    class Liar(Scripted):
        def one(self, c):
            if lies:
                self.login = (b"" if kind == "R" else OK) + claim(kind, lies.pop(), b"\0" * 12)
            else:
                self.login = LOGIN
            super().one(c)

    def talk(link):
        link.recv()
        link.send(row("honest") + DONE)
    fake = Liar(talk)
    p = with_fake(make_pooler(server_login_retry="0.01"), fake)
    with bystander(p):
        before = p.rss()
        with p.login(database="fake") as c:
            assert c.query("select 1")[0].row == ["honest"]
        assert not lies and p.rss() - before < 10_000_000
    assert p.log().count("bad pkt header") == 7
    fake.close()


@pytest.mark.ours
@pytest.mark.parametrize("setting", ["query_timeout", "transaction_timeout"])
def test_i3_no_second_last_word(make_pooler, setting):
    """A server says FATAL and does not close (I3). When time is over, its client has heard the end already."""
    def talk(link):
        link.recv()
        link.send(wire.msg("E", b"SFATAL\0C57P01\0Mterminating connection\0\0"))
        while True:
            link.recv()
    fake = Scripted(talk)
    p = with_fake(make_pooler(**{setting: 1}), fake)
    with bystander(p), p.login(database="fake") as c:
        c.send(wire.query("select 1"))
        assert c.fatal().text == "terminating connection"
    fake.close()


@pytest.mark.parametrize("kind", ["T", "D", "C", "Z", "S", "E", "d"])
def test_r38_length_lies_in_an_answer(make_pooler, kind):
    lies = list(LIES)

    def talk(link):
        link.recv()
        link.send(claim(kind, lies.pop(), b"\0" * 12) + DONE)
        while True:
            link.recv()
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p):
        for _ in LIES:
            with p.login(database="fake") as c:
                c.send(query("select 1"))
                refused(c, "bad pkt header")
        wait_until(lambda: p.pool("fake")["sv_active"] == 0, "the servers are gone")
    fake.close()


def test_r38_answer_that_claims_2_gb_costs_nothing(make_pooler):
    def talk(link):
        link.recv()
        link.send(claim("D", 0x7FFFFFFF, b"x" * 100_000))
        link.recv()
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=20), fake)
    with bystander(p):
        clients = [p.login(database="fake") for _ in range(20)]
        before = p.rss()
        for c in clients:
            c.send(query("select 1"))
        for c in clients:
            assert c.exactly(100_005)[:5] == claim("D", 0x7FFFFFFF)
        assert p.rss() - before < 20_000_000
        for c in clients:
            c.close()
    fake.close()


# ----------------------------------------------------------------------------------------------- 39: before a login

def test_r39_startup_is_capped_at_10_000_bytes(pooler):
    p = pooler(ignore_startup_parameters="k")
    pad = lambda n: startup({"user": "alice", "database": "p0", "k": ""}, n)  # noqa: E731
    with bystander(p):
        with p.wire() as c:
            c.user = "alice"
            c.send(pad(10_000))
            assert c.authenticate()[-1].type == "Z"
            assert c.value("select 'in'") == "in"
        for size in (10_001, 60_000):
            with p.wire() as c:
                c.send(pad(size)[:8])  # the claim alone is refused, nobody waits for the rest
                refused(c, f"bad packet header: '{size:08x}00030000'")


def startup(params, size):
    """A startup packet of exactly this size."""
    missing = size - len(wire.startup_packet(params))
    name = list(params)[-1]
    return wire.startup_packet(params | {name: "x" * missing})


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_r39_authentication_message_is_capped(pooler, auth_type):
    """65,535 bytes of password, PostgreSQL's limit for a token: above it the claim is refused."""
    p = pooler(auth_type=auth_type, userlist={"alice": PASSWORD, "bob": PASSWORD})
    with p.login("bob", password=PASSWORD) as bob:
        for length in (66_000, 1_000_000, 0x7FFFFFFF):
            with p.wire() as c:
                c.start()
                assert c.recv().type == "R"
                c.send(claim("p", length))
                refused(c, f"bad packet header: '70{length:08x}")
        assert bob.value("select 'untouched'") == "untouched"


@pytest.mark.workers(1, 2)
def test_r39_stranger_costs_a_fixed_amount(pooler):
    """300 startup packets and 100 passwords that never end: what they sent, at most, and all of it comes back."""
    p = pooler(auth_type="plain", userlist={"alice": PASSWORD, "bob": PASSWORD}, client_login_timeout=30)
    with p.login("bob", password=PASSWORD) as bob:
        idle = p.rss()
        empty = [p.wire() for _ in range(300)]
        assert bob.value("select 1") == "1"
        assert p.rss() - idle < 300 * 8_000 + 2_000_000
        before = p.rss()
        for c in empty:
            c.send(struct.pack("!II", 10_000, 0x30000) + b"user\0alice\0" + b"k\0v\0" * 2400)
        assert bob.value("select 2") == "2"
        assert p.rss() - before < 300 * 16_000 + 2_000_000
        for c in empty:
            c.drop()
        typing = [p.wire() for _ in range(100)]
        for c in typing:
            c.start()
            assert c.recv().type == "R"
        before = p.rss()
        for c in typing:
            c.send(claim("p", 65_000, b"x" * 60_000))
        assert bob.value("select 3") == "3"
        assert p.rss() - before < 100 * 140_000
        for c in typing:
            c.drop()
        with p.login("bob", password=PASSWORD) as again:
            assert again.value("select 'open'") == "open"


# --------------------------------------------------------------------------------------------------- 40: wrong order

STARTUP = wire.startup_packet({"user": "alice", "database": "p0"})


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize("data", [query("select 'secret'"), STARTUP, struct.pack("!II", 8, wire.SSL_REQUEST),
                                  SYNC, wire.TERMINATE, msg("d", b"x"), msg("p")],
                         ids=["query", "startup", "ssl", "sync", "terminate", "copy", "empty password"])
def test_r40_instead_of_a_password(pooler, auth_type, data):
    p = pooler(auth_type=auth_type, userlist={"alice": PASSWORD, "bob": PASSWORD})
    with p.login("bob", password=PASSWORD) as bob:
        with p.wire() as c:
            c.start()
            assert c.recv().type == "R"
            c.send(data)
            error = c.fatal()
            assert error.code in ("08P01", "28P01"), error.fields
        assert bob.value("select 'untouched'") == "untouched"


@pytest.mark.parametrize("data", [msg("p", b"password\0"), query("select 1"), msg("X"), SYNC,
                                  STARTUP[4:]], ids=["password", "query", "terminate", "sync", "no length"])
def test_r40_before_the_startup_packet(pooler, data):
    p = pooler()
    with bystander(p), p.wire() as c:
        c.send(data + STARTUP)
        refused(c, f"bad packet header: '{data[:4].hex()}")


@pytest.mark.parametrize("data, text", [
    (msg("p", b"late\0"), "unknown pkt"), (STARTUP, "bad packet header"),
    (struct.pack("!II", 8, wire.SSL_REQUEST), "bad packet header"), (msg("R", struct.pack("!I", 0)), "unknown pkt"),
    (wire.cancel_packet(bytes(8)), "bad packet header")], ids=["password", "startup", "ssl", "R", "cancel"])
@pytest.mark.parametrize("state", ["idle", "in transaction", "queued"])
def test_r40_after_the_login(pooler, state, data, text):
    """The length field of a startup packet comes first: as a message it is one of type 0."""
    p = pooler(default_pool_size=1)
    with bystander(p), p.login() as c, p.login() as other:
        if state == "in transaction":
            c.query("begin")
        if state == "queued":
            other.query("begin")
            c.send(query("select 1"))
            wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
        c.send(data)
        if state == "queued":
            other.query("commit")
            out = c.until_closed()
            errors = [m for m in out if m.type == "E"]
            assert len(errors) == 1 and out[-1] is errors[0], out
            error = errors[0]
        else:
            error = c.fatal()
        assert error.code == "08P01" and error.text.startswith(("unknown pkt", text)), error.fields
        assert other.value("select 'untouched'") == "untouched"


# ------------------------------------------------------------------------------------------ 41: hostile backends

def error_body(**fields):
    return b"".join(k.encode() + v.encode() + b"\0" for k, v in fields.items()) + b"\0"


BROKEN_ERRORS = {
    "empty": b"", "only the end": b"\0", "no code": error_body(S="FATAL", M="no code"), "no severity": error_body(C="XX000", M="m"),
    "no message": error_body(S="FATAL", C="57P03"), "no end of fields": b"SFATAL\0CXX000\0Mtext\0",
    "no end of a field": b"SFATAL\0CXX000\0Mtext", "field without a name": b"SFATAL\0\0XX000\0",
}


@pytest.mark.parametrize("body", BROKEN_ERRORS.values(), ids=BROKEN_ERRORS)
def test_r41_broken_error_in_a_servers_login(make_pooler, body):
    """The client gets one well-formed FATAL, with a code of its own if none came."""
    fake = Scripted(lambda link: link.recv(), login=OK + msg("E", body))
    p = with_fake(make_pooler(), fake, "query_wait_timeout=2")
    with bystander(p), p.wire() as c:
        c.start(database="fake")
        error = c.fatal()
        assert len(error.code) == 5 and error.text, error.fields
        assert error.fields["S"] == "FATAL"
    fake.close()


@pytest.mark.parametrize("body", BROKEN_ERRORS.values(), ids=BROKEN_ERRORS)
@pytest.mark.parametrize("when", ["asked", "idle"])
def test_r41_broken_error_at_other_times(make_pooler, when, body):
    """As an answer it is passed on as it is (streamed); from an idle server it ends that server and nothing else."""
    def talk(link):
        while True:
            link.recv()
            if when == "asked":
                link.send(msg("E", body) + READY)
            else:
                link.send(row(str(link.number)) + DONE)
                time.sleep(0.1)
                link.send(msg("E", body))
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p), p.login(database="fake") as c:
        c.send(query("select 1"))
        if when == "asked":
            assert c.recv() == wire.Msg("E", body)
            assert c.recv() == wire.Msg("Z", b"I")
        else:
            assert c.until("Z")[0].row == ["1"]
            time.sleep(0.3)
            c.send(query("select 1"))
            assert c.until("Z")[0].row == ["2"]
    fake.close()


HOSTILE = {
    "R of 2 bytes": msg("R", b"\0\0"), "R ok": OK, "R unknown": msg("R", struct.pack("!I", 99)),
    "S no value": msg("S", b"TimeZone\0"), "S no end": msg("S", b"TimeZone\0UTC"), "S empty": msg("S"),
    "K": None, "Z of status Q": msg("Z", b"Q"), "Z empty": msg("Z"), "Z long": msg("Z", b"II"),
    "type 0": msg(b"\0", b"x"), "type 255": msg(b"\xff", b"x"), "p": msg("p", b"x"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_r41_hostile_message_in_an_answer(make_pooler, data):
    """The server is dropped, its client gets one FATAL; the next one gets another server and its own answer."""
    def talk(link):
        link.recv()
        if link.number > 1:
            link.send(row("of the second") + DONE)
        else:
            link.send((data or msg("K", b"1234")) + row("of the first") + DONE)
        link.recv()
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p):
        with p.login(database="fake") as c:
            c.send(query("select 1"))
            if data is None:  # a key in the middle of things changes nothing
                assert "of the first" in [m.row[0] for m in c.until("Z") if m.type == "D"]
                return
            error = c.fatal()
            assert error.code == "08P01" and error.text in (
                "bad pkt header", "unknown pkt from server", "broken ParameterStatus packet"), error.fields
        with p.login(database="fake") as c:
            assert c.query("select 1")[0].row == ["of the second"]
        assert p.pool("fake")["sv_active"] == 0
    fake.close()


@pytest.mark.parametrize("size", [8, 12, 36, 260])  # the others: test_protocol.py
def test_r41_backend_key_of_any_size(make_pooler, size):
    """Login and queries work; a cancel sends exactly that key, or nothing if it can be no key."""
    def talk(link):
        kind, body = link.recv()
        if body.startswith(b"slow"):
            wait_until(lambda: link.fake.cancels or link.fake.go)
        link.send(row("answer") + DONE)
        link.recv()
    fake = Scripted(talk, login=OK + PARAMS + msg("K", bytes(range(256))[:size] + b"y" * max(0, size - 256)) + READY)
    fake.go = False
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p), p.login(database="fake") as c:
        assert len(c.key) == 8
        c.send(query("slow"))
        wait_until(lambda: fake.seen, "the query is there")
        wire.cancel(c.address, c.key)
        fake.go = True
        assert c.until("Z")[0].row == ["answer"]
        wanted = [bytes(range(256))[:size] + b"y" * max(0, size - 256)] if 8 <= size <= 260 else []
        assert fake.cancels == wanted
    fake.close()


# ------------------------------------------------------------------------------------------------ 42: inner fields

FIELDS = {
    "P no end of name": msg("P", b"name"), "P no end of query": msg("P", b"n\0select 1"),
    "P no count": msg("P", b"n\0select 1\0"), "P 65535 types, none there": msg("P", b"n\0select 1\0\xff\xff"),
    "P too long": msg("P", b"n\0select 1\0\0\0tail"), "P name of 64 kB": msg("P", b"n" * 65536 + b"\0select 1\0\0\0"),
    "B no end of portal": msg("B", b"portal"), "B no end of name": msg("B", b"\0name"),
    "B count 65535, nothing there": msg("B", b"\0s\0" + struct.pack("!HH", 0, 65535)),
    "B formats 65535": msg("B", b"\0s\0" + struct.pack("!H", 65535)),
    "B value of -2": msg("B", b"\0s\0" + struct.pack("!HHiH", 0, 1, -2, 0)),
    "B value longer than the packet": msg("B", b"\0s\0" + struct.pack("!HHiH", 0, 1, 1 << 20, 0)),
    "B value of 2 GB": msg("B", b"\0s\0" + struct.pack("!HHiH", 0, 1, 0x7FFFFFFF, 0)),
    "B tail": bind("", "s", ["1"])[:1] + struct.pack("!I", len(bind("", "s", ["1"])) + 3) + bind("", "s", ["1"])[5:] + b"junk",
    "B portal of 64 kB": msg("B", b"p" * 65536 + b"\0s" + b"\0" + struct.pack("!HH", 0, 65535)),
    "D kind x": msg("D", b"xs\0"), "D no end": msg("D", b"Ss"), "D tail": msg("D", b"Ss\0junk"), "D kind 0": msg("D", b"\0s\0"),
    "C kind x": msg("C", b"xs\0"), "C no end": msg("C", b"Ss"), "C tail": msg("C", b"Ss\0junk"),
    "E no end": msg("E", b"p"), "E no limit": msg("E", b"\0"), "E tail": msg("E", b"\0\0\0\0\0junk"),
    "S tail": msg("S", b"junk"), "H tail": msg("H", b"junk"),
}


def after_a_lie(w, data, who):
    """A transaction with this message in it: all answers, and whether the session lives on in step."""
    w.query("begin")
    w.send(close("S", "s") + parse("s", "select 'mine ' || $1") + SYNC)
    assert types(w.until()) == "31Z"
    w.send(data + SYNC + query("rollback"))
    out = []
    while not (out and out[-1].type == "C" and out[-1].tag == "ROLLBACK"):
        more = all_of(w, "ZC")
        out += more
        if not more or more[-1].type not in "ZC":
            return out, False
    w.until("Z")
    assert w.value(f"select 'value {who}'") == f"value {who}"
    return out, True


@pytest.mark.parametrize("tracking", [200, 0])
def test_r42_inner_fields_that_lie(pooler, pg, tracking):
    """Our FATAL "broken ... packet", or exactly PostgreSQL's answer, and the same framing behind it."""
    p = pooler(default_pool_size=1, max_prepared_statements=tracking)
    with bystander(p):
        for name, data in FIELDS.items():
            with Wire(pg.port).login() as w:
                direct, lives = after_a_lie(w, data, "direct")
            with p.login() as c:
                ours, ours_lives = after_a_lie(c, data, "ours")
            if ours_lives:
                assert lives and (types(ours), codes(ours)) == (types(direct), codes(direct)), (name, ours, direct)
            else:
                assert types(ours) == "E" and ours[0].fields["S"] == "FATAL" and ours[0].code == "08P01", (name, ours)
                assert ours[0].text.startswith("broken ") and ours[0].text.endswith(" packet"), (name, ours)
                assert codes(direct) == ["08P01"], (name, direct)
            with p.login() as c:
                assert c.query("select 'next'")[-1].body == b"I"


# ------------------------------------------------------------------------------------------- 43: smuggling by rewrite

@pytest.mark.parametrize("names", [range(1, 65), range(4070, 4100), range(16360, 16390), range(32740, 32772),
                                   range(65520, 65545)], ids=["1", "4k", "16k", "32k", "64k"])
def test_r43_names_and_sizes_at_buffer_edges(pooler, pg, names):
    """The value of each Bind is itself a whole message that would be run if the framing were off by a byte."""
    p = pooler(default_pool_size=1)
    pg.sql("drop table if exists smuggled; create table smuggled (v text)")
    with p.login() as c:
        for n in names:
            name = "s" * n
            evil = query(f"insert into smuggled values ('{n}')").replace(b"\0", b"\x01").decode()
            value = evil * 20 + str(n)
            portal = "p" * (n % 60)
            c.send(parse(name, "select md5($1), length($1)") + describe("S", name) + bind(portal, name, [value]) +
                   execute(portal) + close("S", name) + SYNC)
            out = c.until()
            assert types(out) == "1tT2DC3Z", n
            assert out[4].row == [hashlib.md5(value.encode()).hexdigest(), str(len(value))], n
    assert pg.sql("select count(*) from smuggled") == [(0,)]
    pg.sql("drop table smuggled")


@pytest.mark.parametrize("size", [70_000, 1_000_000, 5_000_000])
def test_r43_statement_larger_than_any_buffer(pooler, size):
    p = pooler(default_pool_size=1)
    sql = f"select '{size}', $1, length('{'x' * size}')"
    with p.login() as a, p.login() as b:
        for w, who in ((a, "a"), (b, "b")):
            w.send(parse("big", sql) + bind("", "big", [who * 1000]) + execute() + SYNC)
            out = w.until()
            assert types(out) == "12DCZ" and out[2].row == [str(size), who * 1000, str(size)]


def test_r43_length_at_the_limit(make_pooler):
    """Bind of almost 2^31 bytes. Its name grows from `s` to the server's: the new length is told exactly as far as it
    goes, and is refused beyond. No payload is ever read as a message: nothing reaches the server."""
    heads = []

    def talk(link):
        link.recv()  # P
        link.send(msg("1") + READY)
        kind, _ = link.recv()  # its Sync
        assert kind == "S"
        heads.append(link.fake.exactly(link.sock, 5))
        name = link.fake.exactly(link.sock, 64)
        heads.append(name)
        link.recv()
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    head = b"\0s\0" + struct.pack("!HHi", 0, 1, 0x70000000)
    fill = query("drop table t") * 1200
    with bystander(p):
        grown = 0
        for length, fits in ((0x7FFFFFFF - 10, True), (0x7FFFFFFF - 9, False), (0x7FFFFFFE, False), (0x7FFFFFFF, False)):
            heads.clear()
            with p.login(database="fake") as c:
                c.send(parse("s", "select $1") + SYNC)
                assert types(c.until()) == "1Z"
                c.send(claim("B", length, head + fill))
                if not fits:
                    refused(c, "Bind packet too large", "54000")
                    assert not heads or heads[0][:1] != b"B", heads
                    continue
                wait_until(lambda: len(heads) == 2, "the head of the Bind is at the server")
                name = heads[1][1:heads[1].index(b"\0", 1)]
                grown = len(name) - 1
                assert grown == 10, name
                assert heads[0] == claim("B", length + grown)
                assert heads[1][1 + len(name) + 1:].startswith(head[3:])
    fake.close()


# ---------------------------------------------------------------------------------------------------- 46: byte dribble

def test_r46_servers_login_byte_by_byte(make_pooler):
    """The rest of 46 is tests/conv: here the login of a server, in single bytes and in one piece, gives one welcome."""
    welcomes = []
    for dribble in (False, True):
        class Slow(Scripted):
            def one(self, c, dribble=dribble):
                with contextlib.suppress(OSError), c:
                    c.setsockopt(6, 1, 1)
                    size = struct.unpack("!I", self.exactly(c, 4))[0]
                    self.exactly(c, size - 4)
                    login = OK + PARAMS + msg("N", b"SNOTICE\0C00000\0Mhello\0\0") + KEY + READY
                    for i in range(len(login)):
                        if dribble:
                            c.sendall(login[i:i + 1])
                    if not dribble:
                        c.sendall(login)
                    kind = self.exactly(c, 1)
                    size = struct.unpack("!I", self.exactly(c, 4))[0]
                    self.queries.append(kind + self.exactly(c, size - 4))
                    for b in row("slow") + DONE:
                        c.sendall(bytes([b]))
                    self.exactly(c, 1)
        fake = Slow(None)
        p = with_fake(make_pooler(default_pool_size=1, server_tls_sslmode="disable"), fake)
        with p.login(database="fake") as c:
            welcomes.append(c.params)
            out = c.query("select 'x'")
            assert types(out) == "DCZ" and out[0].row == ["slow"]
            assert fake.queries == [b"Qselect 'x'\0"]
        fake.close()
    assert welcomes[0] == welcomes[1] and welcomes[0]["TimeZone"] == "UTC"


# ------------------------------------------------------------------------------------- 47: values replayed into SET

NASTY = ["x'; DROP TABLE t;--", "a\\", "\\'", "\\\\'", "it''s", "", " ", "$$", "E'x'", "-- c", "/*", "a;b", '"q"', "%s%d",
         "x" * 63, "\\x27", "'||pg_sleep(9)||'"]


@pytest.mark.workers(1, 2)
def test_r47_application_name_survives_1000_checkouts(pooler, pg):
    """17 clients with hostile names take turns on one server, 60 rounds: over 1,000 SETs, each value as it was."""
    p = pooler(default_pool_size=1)
    clients = [p.login(application_name=v) for v in NASTY[::2]] + [p.login() for _ in NASTY[1::2]]
    values = NASTY[::2] + NASTY[1::2]
    for c, v in list(zip(clients, values))[len(NASTY[::2]):]:
        c.query("set application_name = E'" + v.replace("\\", "\\\\").replace("'", "\\'") + "'")
    for _ in range(60):
        for c, v in zip(clients, values):
            assert c.value("show application_name") == v
    assert pg.sql("select to_regclass('t') is not null") == [(True,)]
    for c in clients:
        c.close()


def test_r47_case_is_part_of_a_name(pooler):
    """PgBouncer takes names that differ in case only for the same: then B runs under A's."""
    p = pooler(default_pool_size=1)
    with p.login(application_name="Report") as a, p.login(application_name="REPORT") as b:
        for _ in range(3):
            assert a.value("show application_name") == "Report"
            assert b.value("show application_name") == "REPORT"


PATHS = ['"a", "b"', "public", '"$user", public', '"we ird", "quo""te", "comma,"', "", '""', '"a\'; drop table t; --"', '"Case"',
         '"case"', '"back\\slash"', "public; drop table t; --", '"schü"']


def test_r47_list_values(make_pooler, pg):
    """search_path, tracked on request, is a list of quoted names. PostgreSQL 18 reports it, here a server that claims to.
    What the pooler sends for it is run on the real one: the same value results, and nothing else happens."""
    login = OK + PARAMS + msg("S", b"search_path\0first\0") + KEY + READY

    def talk(link):
        while True:
            kind, body = link.recv()
            if b"search_path" in body:
                link.fake.sets.append(body[:-1].decode())
                link.send(msg("C", b"SET\0") + READY)
            else:
                link.send(row("answer") + DONE)
    fake = Scripted(talk, login=login)
    p = with_fake(make_pooler(track_extra_parameters="search_path"), fake)
    with pg.connect("postgres") as c:
        c.execute("drop database if exists latin1")
        c.execute("create database latin1 encoding 'LATIN1' locale 'C' template template0")
    for path in PATHS:
        fake.sets = []
        p.admin("RECONNECT fake")
        with p.login(database="fake", search_path=path) as c:
            assert c.query("select 1")[0].row == ["answer"]
        assert len(fake.sets) == 1, fake.sets
        for database in ("p0", "latin1"):
            with pg.connect(database) as real, pg.connect(database) as told:
                if path == "public; drop table t; --":
                    with pytest.raises(psycopg.errors.InvalidParameterValue):
                        told.execute(fake.sets[0], prepare=False)
                    continue
                told.execute(fake.sets[0], prepare=False)
                real.execute("select set_config('search_path', %s, false)", ("" if path == '""' else path,))
                assert told.execute("show search_path").fetchone() == real.execute("show search_path").fetchone(), fake.sets
        assert pg.sql("select to_regclass('t') is not null") == [(True,)]
    with pg.connect("postgres") as c:
        c.execute("drop database latin1")
    fake.close()


@pytest.mark.parametrize("encoding", ["SJIS", "BIG5", "GBK", "GB18030"])
@pytest.mark.parametrize("conforming", ["on", "off"])
def test_r47_backslash_inside_a_character(pooler, pg, encoding, conforming):
    """In these encodings a backslash may be the second byte of a character: doubled, it would end up alone, and escape
    the quote behind it. The value must stay a value, whatever the server's session is set to at that moment."""
    lead = {"SJIS": b"\x83\x5c", "BIG5": b"\xa5\x5c", "GBK": b"\x81\x5c", "GB18030": b"\x81\x5c"}[encoding]
    pg.sql("drop table if exists set_victim; create table set_victim ()")
    p = pooler(default_pool_size=1)
    with p.login(client_encoding=encoding, standard_conforming_strings=conforming) as a:
        assert a.value("select 1") == "1"  # the server's session has that encoding now
        with p.wire() as c:
            c.send(wire.startup_packet({"user": "alice", "database": "p0", "client_encoding": encoding,
                                        "application_name": lead + b"'; drop table set_victim; --"}))
            assert c.until("Z")
            c.send(query("select 'lives'"))
            if conforming == "on":
                assert c.until("Z")[1].row == ["lives"]
            else:  # PostgreSQL refuses what could be taken wrong (backslash_quote = safe_encoding)
                assert c.fatal().text == "invalid server parameter"
        assert a.value("show client_encoding") == encoding
    assert pg.sql("select to_regclass('set_victim') is not null") == [(True,)]


# --------------------------------------------------------------------------------- 49: an idle server that says something

STALE = {"row": row("stale"), "second Z": READY, "FATAL": msg("E", error_body(S="FATAL", C="57P01", M="bye")),
         "answer": row("stale") + DONE, "half a header": b"D\0", "half a row": row("stale")[:-2]}


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE)
@pytest.mark.parametrize("pause", [None, 0.05, 0.6], ids=["same packet", "soon", "watched"])
def test_r49_unexpected_bytes_of_an_idle_server(make_pooler, stale, pause):
    """Found when the server is taken, or before: it is dropped, and the client is served by another one. The client that
    had it before hears nothing of it."""
    def talk(link):
        link.recv()
        if link.number > 1:
            link.send(row(str(link.number)) + DONE)
            link.recv()
        if pause is None:
            link.send(row("1") + DONE + stale)
        else:
            link.send(row("1") + DONE)
            time.sleep(pause)
            link.send(stale)
        link.fake.said = True
        link.recv()
    fake = Scripted(talk)
    fake.said = False
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p), p.login(database="fake") as a, p.login(database="fake") as b:
        out = a.query("select 1")
        assert types(out) == "DCZ" and out[0].row == ["1"]
        wait_until(lambda: fake.said)
        time.sleep(0.05)
        out = b.query("select 2")
        assert types(out) == "DCZ" and out[0].row == ["2"]
        a.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            a.recv()
        assert "idle server got dirty" in p.log() or "server connection closed" in p.log() or "bye" in p.log()
    fake.close()


# ---------------------------------------------------------------------------------------------- 48: messages of no query

NOTICE = msg("N", error_body(S="NOTICE", C="00000", M="by the way"))
CHANGED = msg("S", b"TimeZone\0Europe/Rome\0")
NEWS = msg("A", struct.pack("!I", 7) + b"channel\0payload\0")


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("said", [NOTICE, CHANGED, NEWS, NOTICE + CHANGED + NEWS + NOTICE],
                         ids=["notice", "parameter", "notification", "all"])
def test_r48_messages_that_belong_to_no_query(make_pooler, said):
    """In the login, between the messages of an answer, behind it, and while nobody has the server: whoever asks gets the answer
    to his question and is in step."""
    def talk(link):
        for n in range(1, 100):
            link.recv()
            link.send(said, row(f"{link.number}.{n}a"), said, row("b"), said, msg("C", b"SELECT 2\0"), said, READY)
            time.sleep(0.03)
            link.send(said)  # it is idle
            link.fake.said += 1
    early = said.replace(NEWS, b"")  # no server has news for one who has not logged in
    fake = Scripted(talk, login=OK + early + PARAMS + early + KEY + early + READY)
    fake.said = 0
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p), p.login(database="fake") as a, p.login(database="fake") as b:
        for i in range(6):
            c, other = (a, b) if i % 2 else (b, a)
            out = c.query("select 1")
            assert [m.type for m in out if m.type not in "NSA"] == ["D", "D", "C", "Z"], out
            assert [m.row for m in out if m.type == "D"][1] == ["b"]
            wait_until(lambda: fake.said == i + 1, "the server has spoken unasked")
            other.sock.setblocking(False)
            with pytest.raises(BlockingIOError):  # nothing of that was the other's
                other.sock.recv(1)
            other.sock.settimeout(30)
    fake.close()
