"""Strangers, liars, dribblers, clients that read nothing, backends that die or talk nonsense. Nobody else notices."""
import contextlib
import hashlib
import socket
import struct
import threading
import time

import pytest

import wire
from conftest import PASSWORD, wait_until


@contextlib.contextmanager
def bystander(p):
    """A logged-in client whose session must survive whatever happens inside."""
    with p.login("bob") as c:
        assert c.value("select 'before'") == "before"
        yield c
        assert c.value("select 'after'") == "after"
        assert p.alive()


def ends(c):
    """Everything up to the end of the connection: at most one FATAL."""
    out = c.until_closed()
    assert [m.type for m in out] in ([], ["E"]), out
    return out[0].text if out else None


# ---------------------------------------------------------------------------------------------- first bytes

@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 64, b"\xff" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200, b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    struct.pack("!II", 8, 0x00040000), struct.pack("!II", 0, 0x00030000), struct.pack("!II", 3, 0x00030000),
    struct.pack("!II", 0x7FFFFFFF, 0x00030000), struct.pack("!II", 0x80000000, 0x00030000),
    struct.pack("!II", 70000, 0x00030000), wire.query("select 1"), wire.msg("p", b"password\0")],
    ids=["http", "ssh", "zeros", "ones", "tls", "proxy", "v4", "len0", "len3", "len2G", "negative", "70k", "query",
         "password"])
def test_garbage_first_bytes(pooler, data):
    p = pooler()
    with bystander(p), p.wire() as c:
        c.send(data)
        with contextlib.suppress(OSError):
            c.sock.shutdown(socket.SHUT_WR)
        text = ends(c)
        assert text is None or text.startswith(("bad packet header", "unsupported", "unknown", "old V2", "TLS", "SSL",
                                                "invalid", "client password pkt", "bad")), text


def test_bad_header_text(pooler):
    p = pooler()
    with p.wire() as c:
        c.send(struct.pack("!II", 8, 0x00040000))
        assert c.fatal().text == "bad packet header: '0000000800040000'"


@pytest.mark.ours  # PgBouncer waits for the 1.4 GB that "GET " claims to be
@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n"], ids=["http", "ssh"])
def test_scanners_are_closed_at_once(pooler, data):
    p = pooler()
    with bystander(p), p.wire() as c:
        c.send(data)
        text = ends(c)
        assert text is None or text.startswith("bad packet header: '" + data[:4].hex()), text


def test_v2_protocol(pooler):
    with pooler().wire() as c:
        c.send(struct.pack("!II", 296, 0x00020000) + b"\0" * 288)
        assert c.fatal().text == "old V2 protocol not supported"


def test_ssl_and_gss_requests_are_declined(pooler):
    p = pooler()
    for order in ([wire.SSL_REQUEST], [wire.GSSENC_REQUEST], [wire.SSL_REQUEST, wire.GSSENC_REQUEST],
                  [wire.GSSENC_REQUEST, wire.SSL_REQUEST]):
        with p.wire() as c:
            for code in order:
                c.send(struct.pack("!II", 8, code))
                assert c.exactly(1) == b"N"
            assert c.login().value("select 1") == "1"


@pytest.mark.parametrize("body", [
    b"user\0alice\0database\0p0\0", b"user\0alice\0database\0p0\0\0junk", b"user\0", b"user", b"", b"\0\0\0",
    b"user\0alice\0database\0"], ids=range(7))
def test_startup_layout(pooler, body):
    p = pooler()
    with bystander(p), p.wire() as c:
        c.send(struct.pack("!II", 8 + len(body), 0x30000) + body)
        ends(c)


def test_second_startup_packet(pooler):
    p = pooler(auth_type="plain", userlist={"alice": PASSWORD})
    with p.wire() as c:
        c.start()
        assert c.recv().type == "R"
        c.send(wire.startup_packet({"user": "alice", "database": "p0"}))
        assert ends(c) is not None or True
    with p.login(password=PASSWORD) as c:
        assert c.value("select 1") == "1"


@pytest.mark.parametrize("keys", [2000, 8000])
def test_large_startup_packet(pooler, keys):
    """Past PostgreSQL's 10,000 bytes: one FATAL or success, no more memory than that."""
    p = pooler()
    with bystander(p), p.wire() as c:
        packet = wire.startup_packet({"user": "alice", "database": "p0", "application_name": "x" * keys})
        c.send(packet)
        out = c.authenticate()
        assert out[-1].type in "ZE"


@pytest.mark.workers(1, 3)
def test_endless_startup(pooler):
    """Claims 60 kB, sends it in small pieces for ever: memory stays where it is."""
    p = pooler(client_login_timeout=3)
    with bystander(p):
        before = p.rss()
        clients = [p.wire() for _ in range(100)]
        for c in clients:
            c.send(struct.pack("!II", 60000, 0x30000) + b"user\0alice\0" + b"k\0" * 2000)
        assert p.rss() - before < 20_000_000
        for c in clients:
            ends(c)


def test_long_names(pooler):
    p = pooler()
    with bystander(p):
        for user, database in (("u" * 5000, "p0"), ("alice", "d" * 5000), ("a\n\\'\";", "p0"), ("alice", "\xff\n';")):
            with p.wire() as c:
                c.start(user, database)
                assert c.authenticate()[-1].type == "E"


# ---------------------------------------------------------------------------------------------- dribble, disconnect

def test_dribbled_login_and_query(pooler):
    p = pooler(auth_type="md5", userlist={"alice": PASSWORD})
    with p.wire() as c:
        c.user = "alice"
        c.send_slowly(wire.startup_packet({"user": "alice", "database": "p0", "application_name": "slow"}), 0.001)
        m = c.recv()
        inner = hashlib.md5(PASSWORD.encode() + b"alice").hexdigest().encode()
        c.send_slowly(wire.msg("p", wire.cstr(b"md5" + hashlib.md5(inner + m.body[4:8]).hexdigest().encode())), 0.001)
        assert c.until("Z")[0].body == struct.pack("!I", 0)
        for _ in range(2):
            c.send_slowly(wire.query("select 'one byte at a time'"), 0.001)
            assert c.until("Z")[1].row == ["one byte at a time"]
            c.send_slowly(wire.parse("", "select $1::int") + wire.bind("", "", [5]) + wire.describe("P", "") +
                          wire.execute() + wire.SYNC, 0.001)
            assert [m.type for m in c.until("Z")] == ["1", "2", "T", "D", "C", "Z"]


def test_every_cut_of_a_conversation(pooler):
    """The same bytes in two writes, cut at every offset: the same answer."""
    data = (wire.query("select 1") + wire.parse("n", "select $1::text") + wire.bind("", "n", ["x"]) + wire.execute() +
            wire.close("S", "n") + wire.SYNC + wire.query("select 2"))
    p = pooler(default_pool_size=2)
    with p.login() as c:
        for cut in range(len(data)):
            c.send(data[:cut])
            time.sleep(0.001)
            c.send(data[cut:])
            got = [[m.type for m in c.until("Z")] for _ in range(3)]
            assert got == [["T", "D", "C", "Z"], ["1", "2", "D", "C", "3", "Z"], ["T", "D", "C", "Z"]], cut


@pytest.mark.parametrize("auth_type", ["trust", "plain", "md5", "scram-sha-256"])
def test_disconnect_at_every_step_of_a_login(pooler, auth_type):
    p = pooler(auth_type=auth_type, userlist={"alice": PASSWORD, "bob": PASSWORD, "admin": PASSWORD})
    with p.login("bob", password=PASSWORD) as bob:
        startup = wire.startup_packet({"user": "alice", "database": "p0"})
        for cut in [0, 1, 4, 7, 8, 9, len(startup) - 1, len(startup)]:
            for how in ("close", "drop"):
                c = p.wire()
                c.send(startup[:cut])
                getattr(c, how)()
        if auth_type == "scram-sha-256":
            for stop_at in (1, 2):
                c = p.wire()
                c.start()
                c.recv()
                if stop_at == 2:
                    c.send(wire.msg("p", wire.cstr("SCRAM-SHA-256") + struct.pack("!I", 12) + b"n,,n=,r=abcd"))
                    c.recv()
                c.drop()
        c = p.wire().login(password=PASSWORD)
        c.send(wire.query("select 1")[:3])
        c.drop()
        assert bob.value("select 1") == "1"
        with p.login("admin", "pgbouncer", PASSWORD) as console:
            wait_until(lambda: ["login_clients", "0"] in console.rows("SHOW LISTS"), "no login is left over")


# ---------------------------------------------------------------------------------------------- after login

@pytest.mark.parametrize("data", [
    b"Q" + struct.pack("!I", 0), b"Q" + struct.pack("!I", 3), b"Q" + struct.pack("!I", 0xFFFFFFFF),
    b"Q" + struct.pack("!I", 0x80000000), wire.msg("Z", b"I"),
    pytest.param(wire.msg("\x00", b""), marks=pytest.mark.ours), wire.msg(b"\xff", b"abc"),
    wire.msg("R", struct.pack("!I", 0)), wire.msg("p", b"late\0"), wire.startup_packet({"user": "alice"})],
    ids=["len0", "len3", "len-1", "negative", "Z", "nul", "ff", "R", "late password", "startup"])
def test_bad_messages_after_login(pooler, data):
    p = pooler(default_pool_size=1)
    with bystander(p):
        with p.login() as c:
            c.send(data)
            ends(c)
        with p.login() as c:
            c.query("begin")
            c.send(data)
            ends(c)


@pytest.mark.parametrize("data", [
    wire.msg("P", b"no end"), wire.msg("P", b""), wire.msg("B", b"\0"), wire.msg("B", b"x" * 70000),
    wire.msg("D", b""), wire.msg("D", b"Xname\0"), wire.msg("C", b"S"), wire.msg("E", b""),
    wire.msg("B", b"\0\0" + struct.pack("!HH", 0, 65535)), wire.msg("Q", b"no terminator")],
    ids=["P", "P empty", "B", "B 70k", "D empty", "D kind", "C", "E empty", "B count", "Q"])
def test_lying_inner_fields(pooler, data):
    """Our own FATAL, or PostgreSQL's error: never a hang, never a neighbour's problem."""
    p = pooler(default_pool_size=1)
    with bystander(p), p.login() as c:
        try:
            c.send(data, wire.SYNC)
            out = c.until("Z")
        except wire.Closed:
            return
        assert "E" in [m.type for m in out]


@pytest.mark.ours
def test_huge_length_claims_cost_no_memory(pooler):
    p = pooler()
    with bystander(p):
        before = p.rss()
        clients = [p.login() for _ in range(50)]
        for c in clients:
            c.send(b"P" + struct.pack("!I", 0x7FFFFFF0) + b"name" * 4)
        with p.login() as c:
            assert c.value("select 1") == "1"
        assert p.rss() - before < 60_000_000
        for c in clients:
            c.close()


# ---------------------------------------------------------------------------------------------- slow readers

@pytest.mark.workers(1, 2)
def test_slow_reader(pooler):
    """Asks for 100 MB and reads nothing: the others work, memory is bounded; later it still gets every byte."""
    p = pooler(default_pool_size=5)
    with bystander(p) as bob:
        slow = p.wire(rcvbuf=8192).login()
        before = p.rss()
        slow.send(wire.query("select repeat('0123456789', 10000000)"))
        for i in range(100):
            assert bob.value(f"select {i}") == str(i)
            time.sleep(0.01)
        assert p.rss() - before < 32_000_000
        out = slow.until("Z")
        assert len(out[1].row[0]) == 100_000_000
        assert p.rss() - before < 32_000_000
        slow.close()


@pytest.mark.workers(1, 2)
def test_slow_readers_that_leave(pooler, pg):
    p = pooler(default_pool_size=4)
    with bystander(p):
        clients = [p.wire(rcvbuf=8192).login() for _ in range(3)]
        for c in clients:
            c.send(wire.query("select repeat('x', 1000) from generate_series(1, 100000)"))
        time.sleep(0.5)
        for c in clients:
            c.drop()
        wait_until(lambda: not pg.backends("usename = 'alice' and state = 'active'"), "the servers stopped")
        with p.login() as c:
            assert c.value("select 1") == "1"


def test_client_that_only_writes(pooler):
    """Pipelines for ever, reads nothing: back-pressure reaches it, memory is bounded."""
    p = pooler()
    with bystander(p):
        before = p.rss()
        c = p.wire(rcvbuf=8192, timeout=2).login()
        batch = wire.query("select repeat('x', 1000)") * 1000
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(2000):
                c.send(batch)
            raise AssertionError("58 MB of queries were swallowed")
        assert p.rss() - before < 48_000_000
        c.drop()


# ---------------------------------------------------------------------------------------------- dying backends

@pytest.mark.workers(1, 3)
def test_backend_killed_in_query(pooler, pg):
    p = pooler()
    with bystander(p), p.login() as c:
        c.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: pg.backends("query like '%sleep(600)%' and state = 'active'"))
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'alice'")
        out = c.until_closed()
        errors = [m for m in out if m.type == "E"]
        assert errors[0].code == "57P01" or errors[0].text == "server conn crashed?", out
        assert errors[-1].text in ("server conn crashed?", errors[0].text)


@pytest.mark.workers(1, 3)
def test_backend_killed_idle(pooler, pg):
    """Found before reuse: the client notices nothing."""
    p = pooler()
    with bystander(p), p.login() as c:
        for _ in range(5):
            pid = c.value("select pg_backend_pid()")
            pg.sql("select pg_terminate_backend(%s)", int(pid))
            wait_until(lambda: not pg.backends(f"pid = {pid}"))
            time.sleep(0.05)
            assert c.value("select pg_backend_pid()") != pid


def test_backend_killed_in_transaction(pooler, pg):
    p = pooler()
    with bystander(p), p.login() as c:
        c.query("begin")
        pid = c.value("select pg_backend_pid()")
        pg.sql("select pg_terminate_backend(%s)", int(pid))
        out = c.until_closed()
        assert out and out[-1].type == "E"


class FakeBackend:
    """A server that answers a startup packet with the given pieces and then behaves as told."""

    def __init__(self, login, answer=None, late=b""):
        self.login, self.answer, self.late = login, answer, late
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(100)
        self.port = self.sock.getsockname()[1]
        self.queries = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                c, _ = self.sock.accept()
                threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def exactly(self, c, n):
        out = b""
        while len(out) < n:
            got = c.recv(n - len(out))
            if not got:
                raise OSError("closed")
            out += got
        return out

    def one(self, c):
        with contextlib.suppress(OSError), c:
            while True:
                size, code = struct.unpack("!II", self.exactly(c, 8))
                self.exactly(c, size - 8)
                if code != wire.SSL_REQUEST:
                    break
                c.sendall(b"N")
            c.sendall(self.login)
            if self.answer is None:
                return
            while True:
                kind = self.exactly(c, 1)
                (size,) = struct.unpack("!I", self.exactly(c, 4))
                body = self.exactly(c, size - 4)
                if kind == b"X":
                    return
                self.queries.append(body)
                c.sendall(self.answer)
                if self.late:
                    time.sleep(0.2)
                    c.sendall(self.late)
                if self.answer == b"":
                    return

    def close(self):
        self.sock.close()


OK = wire.msg("R", struct.pack("!I", 0))
PARAMS = b"".join(wire.msg("S", wire.cstr(k) + wire.cstr(v)) for k, v in {
    "server_version": "15.0", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC",
    "standard_conforming_strings": "on", "application_name": ""}.items())
KEY = wire.msg("K", b"12345678")
READY = wire.msg("Z", b"I")
LOGIN = OK + PARAMS + KEY + READY


def with_fake(p, fake, more=""):
    p.databases["fake"] = f"host=127.0.0.1 port={fake.port} dbname=x {more}"
    return p.start()


@pytest.mark.parametrize("login", [
    b"", b"garbage that is no message at all", b"\xff" * 100, wire.msg("R", b"\0"),
    wire.msg("R", struct.pack("!I", 77)),
    wire.msg("R", struct.pack("!I", 10) + b"UNKNOWN-MECH\0\0"), wire.msg("R", struct.pack("!I", 11) + b"r=x,s=,i=0"),
    OK, OK + PARAMS, OK + wire.msg("S", b"no value"), OK + wire.msg("S", b"client_encoding\0UTF"),
    OK + PARAMS + wire.msg("K", b""), OK + PARAMS + KEY, OK + PARAMS + KEY + b"Z", OK + b"S" + struct.pack("!I", 3),
    OK + b"S" + struct.pack("!I", 0x7FFFFFFF) + b"abc", wire.msg("E", b""), wire.msg("E", b"\0"),
    wire.msg("E", b"SFATAL\0Mno code\0\0"), wire.msg("E", b"Sno terminator"), wire.msg("D", b"\0\0"),
    pytest.param(READY, marks=pytest.mark.ours),  # these two kill PgBouncer 1.25.2
    pytest.param(OK + wire.msg("Z", b""), marks=pytest.mark.ours)],
    ids=range(23))
def test_backend_login_nonsense(make_pooler, login):
    """Closes or lies at each step of its login: one FATAL for its client, nothing for others."""
    fake = FakeBackend(login)
    p = with_fake(make_pooler(client_login_timeout=2, server_connect_timeout=1), fake, "query_wait_timeout=1")
    with bystander(p), p.wire() as c:
        c.start(database="fake")
        out = c.until_closed()
        assert "Z" not in [m.type for m in out] or b"".join(m.body for m in out), out
        assert [m.type for m in out].count("E") <= 1, out
    fake.close()


@pytest.mark.parametrize("answer", [
    b"", b"garbage garbage garbage", wire.msg("Z", b"Q"), wire.msg("Z", b""), wire.msg("Z", b"III"),
    b"D" + struct.pack("!I", 2), b"D" + struct.pack("!I", 0xFFFFFFF0), wire.msg("E", b""), wire.msg("E", b"\0") + READY,
    wire.msg("S", b"nothing"), wire.msg("\x01", b"what"), READY + READY + READY, wire.msg("1") + READY],
    ids=range(13))
def test_backend_answers_nonsense(make_pooler, answer):
    fake = FakeBackend(LOGIN, answer)
    p = with_fake(make_pooler(query_wait_timeout=3, query_timeout=3, default_pool_size=1), fake)
    with bystander(p):
        for _ in range(2):
            with p.login(database="fake") as c:
                c.send(wire.query("select 1"))
                try:
                    out = c.until("ZE")
                except wire.Closed:
                    continue
                assert len(out) <= 3
    fake.close()


@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.ours)], ids=["late", "same packet"])
def test_stale_bytes_of_an_idle_server(make_pooler, late):
    """They are never given to the next client."""
    answer, stale = wire.msg("C", b"SELECT 0\0") + READY, wire.msg("C", b"STALE\0")
    fake = FakeBackend(LOGIN, answer, stale) if late else FakeBackend(LOGIN, answer + stale)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with bystander(p), p.login(database="fake") as a:
        a.send(wire.query("select 1"))
        a.until("Z")
        time.sleep(0.5)
        with p.login(database="fake") as b:
            b.send(wire.query("select 2"))
            out = b.until("ZE")
            assert not any(m.type == "C" and m.tag == "STALE" for m in out), out
    fake.close()


def test_no_replay(make_pooler):
    """The backend reads the query and dies: the query is never sent a second time."""
    fake = FakeBackend(LOGIN, b"")
    p = with_fake(make_pooler(default_pool_size=2), fake)
    with p.login(database="fake") as c:
        c.send(wire.query("insert once"))
        assert c.fatal().text == "server conn crashed?"
    time.sleep(0.5)
    assert len(fake.queries) == 1
    fake.close()
