"""The first bytes of a connection: versions, encryption requests, keys and cancel requests, on both sides."""
import contextlib
import struct
import threading
import time

import psycopg
import pytest

import wire
from conftest import PATIENCE, code_is, wait_until
from test_bad_input import OK, READY, FakeBackend, with_fake

V3_0, V3_1, V3_2 = 0x30000, 0x30001, 0x30002

PARAMS = b"".join(wire.msg("S", wire.cstr(k) + wire.cstr(v)) for k, v in {
    "server_version": "18.0", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC",
    "standard_conforming_strings": "on", "application_name": ""}.items())
LOGIN = OK + PARAMS + wire.msg("K", b"12345678") + READY
ONE = (wire.msg("T", struct.pack("!H", 1) + wire.cstr("one") + struct.pack("!IhIhih", 0, 0, 25, -1, -1, 0))
       + wire.msg("D", struct.pack("!Hi", 1, 1) + b"1") + wire.msg("C", wire.cstr("SELECT 1")) + READY)


class FakeServer(FakeBackend):
    """A server of any protocol version. `select 1` is answered, `hang` waits for a cancel request with the right key."""

    def __init__(self, speaks=V3_2, key=b"12345678", before=b"", hold=False):
        self.speaks, self.key, self.before, self.hold = speaks, key, before, hold
        self.startups, self.versions, self.cancels, self.ended = [], [], [], 0
        self.cancelled = threading.Event()
        super().__init__(LOGIN)

    def one(self, c):
        with contextlib.suppress(OSError), c:
            while True:
                size, code = struct.unpack("!II", self.exactly(c, 8))
                body = self.exactly(c, size - 8)
                if code == wire.CANCEL_REQUEST:
                    self.cancels.append(body)
                    if body == self.key:
                        self.cancelled.set()
                    return
                if code != wire.SSL_REQUEST:
                    break
                c.sendall(b"N")
            words = [w.decode() for w in body.split(b"\0")]
            self.versions.append(code)
            self.startups.append(dict(zip(words[::2], words[1::2])))
            if self.hold:
                while c.recv(1000):
                    pass
                self.ended += 1
                return
            out = self.before
            if code > self.speaks:
                out += wire.msg("v", struct.pack("!II", self.speaks, 0))
            c.sendall(out + OK + PARAMS + wire.msg("K", self.key) + READY)
            while True:
                kind = self.exactly(c, 1)
                (size,) = struct.unpack("!I", self.exactly(c, 4))
                body = self.exactly(c, size - 4)
                if kind == b"X":
                    return
                if body == b"hang\0":
                    assert self.cancelled.wait(PATIENCE)
                    self.cancelled.clear()
                    c.sendall(wire.msg("E", b"SERROR\0C57014\0Mcanceled\0\0") + READY)
                else:
                    c.sendall(ONE)


# ---------------------------------------------------------------------------------------------- versions, client side

@pytest.mark.parametrize("asked, options, answer", [
    (V3_0, [], None), (V3_1, [], None), (V3_2, [], None),
    (0x30003, [], V3_2), (0x30000 | 9999, [], V3_2), (0x3FFFF, [], V3_2),
    (V3_0, ["_pq_.test_protocol_negotiation"], V3_0), (V3_1, ["_pq_.a"], V3_1), (V3_2, ["_pq_.a", "_pq_.b"], V3_2),
    (0x30000 | 9999, ["_pq_.test_protocol_negotiation"], V3_2)])
@pytest.mark.ours  # PgBouncer answers 3.0 to all
@pytest.mark.parametrize("auth_type", ["trust", "scram-sha-256"])
def test_r1_22_version_negotiation(pooler, auth_type, asked, options, answer):
    p = pooler(auth_type=auth_type)
    user, password = ("alice", "") if auth_type == "trust" else ("s_scram", p.userlist["s_scram"])
    with p.wire() as c:
        c.start(user, version=asked, **{o: "1" for o in options})
        c.negotiated = None
        assert c.authenticate(password)[-1].type == "Z"
        if answer is None:
            assert c.negotiated is None
        else:
            names = b"".join(wire.cstr(o) for o in options)
            assert c.negotiated.body == struct.pack("!II", answer, len(options)) + names
        assert len(c.key) == (36 if (answer or asked) >= V3_2 else 8)
        assert c.key[0] < 128
        assert c.value("select 1") == "1"


@pytest.mark.parametrize("version", [0x40000, 0x20001, 0x10000, 0x30000 << 8, 0])
def test_other_major_versions(pooler, version):
    p = pooler()
    with p.wire() as c:
        c.start(version=version)
        assert c.fatal().text.startswith(("bad packet header", "old V2 protocol"))


@pytest.mark.ours
def test_console_speaks_it_too(pooler):
    p = pooler()
    with p.wire() as c:
        c.start("admin", "pgbouncer", version=V3_2)
        assert c.authenticate()[-1].type == "Z" and len(c.key) == 36


# ---------------------------------------------------------------------------------------------- long keys

def sleeping(pg):
    return pg.sql("select 1 from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'")


@pytest.mark.ours
@pytest.mark.workers(1, 2, 4)
def test_long_key_cancels(pooler, pg):
    p = pooler()
    with p.wire() as c:
        c.start(version=V3_2)
        c.authenticate()
        for i in range(6):  # over the workers
            c.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: sleeping(pg), "the query runs")
            wire.cancel(c.address, c.key)
            assert c.until("Z")[-2].code == "57014"
        wire.cancel(p.unix, c.key)
        assert c.value("select 1") == "1"


@pytest.mark.ours
@pytest.mark.workers(1, 2)
def test_r8_106_almost_the_key(pooler, pg):
    """Any other length, any wrong byte, a short key for a long one and the reverse: closed, and no query is hit."""
    p = pooler()
    with p.wire() as long, p.login() as short:
        long.start(version=V3_2)
        long.authenticate()
        for c in (long, short):
            c.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: len(sleeping(pg)) == 2, "both run")
        key = long.key
        wrong = [key[:8], key[:-1], key + b"x", key[:4], b"", key[:12], key + key, key[8:], bytes(36), bytes(256),
                 short.key + key[8:], short.key + bytes(28), key[:8] + bytes(28)]
        wrong += [key[:i] + bytes([key[i] ^ 1]) + key[i + 1:] for i in range(len(key))]
        for k in wrong:
            wire.cancel(long.address, k)
        assert len(sleeping(pg)) == 2
        for c in (long, short):
            wire.cancel(c.address, c.key)
            assert c.until("Z")[-2].code == "57014"


@pytest.mark.ours
def test_long_keys_differ(pooler):
    p = pooler()
    clients = []
    for _ in range(40):
        clients.append(p.wire().start(version=V3_2))
        clients[-1].authenticate()
    assert len({c.key[:8] for c in clients}) == len({c.key[8:] for c in clients}) == 40
    for c in clients:
        c.close()


# ---------------------------------------------------------------------------------------------- versions, server side

@pytest.mark.parametrize("speaks", [V3_0, V3_2])
def test_servers_are_asked_for_3_0(make_pooler, speaks):
    fake = FakeServer(speaks)
    p = with_fake(make_pooler(), fake)
    with p.login(database="fake") as c:
        assert c.value("select 1") == "1"
    assert fake.versions == [V3_0]


@pytest.mark.ours
@pytest.mark.parametrize("wanted", ["3.2", "latest"])
@pytest.mark.parametrize("size", [4, 32, 256])
def test_long_server_key(make_pooler, wanted, size):
    fake = FakeServer(V3_2, key=b"pid!" + bytes(i % 256 for i in range(size)))
    p = with_fake(make_pooler(default_pool_size=1), fake, f"max_protocol_version={wanted}")
    for version in (V3_0, V3_2):
        with p.wire() as c:
            c.start(database="fake", version=version)
            c.authenticate()
            c.send(wire.query("hang"))
            wait_until(lambda: p.pool("fake")["sv_active"] == 1, "it runs")
            wire.cancel(c.address, c.key)
            assert c.until("Z")[-2].code == "57014"
    assert fake.versions == [V3_2] and fake.cancels == [fake.key] * 2


@pytest.mark.ours
@pytest.mark.parametrize("speaks", [V3_0, V3_1])
def test_older_server_negotiates_down(make_pooler, speaks):
    """In the same connection: an older server costs no second login."""
    fake = FakeServer(speaks)
    p = with_fake(make_pooler(), fake, "max_protocol_version=3.2")
    with p.login(database="fake") as c:
        assert c.value("select 1") == "1"
        c.send(wire.query("hang"))
        wait_until(lambda: p.pool("fake")["sv_active"] == 1, "it runs")
        wire.cancel(c.address, c.key)
        assert c.until("Z")[-2].code == "57014"
    assert fake.versions == [V3_2] and fake.cancels == [b"12345678"]


@pytest.mark.ours
def test_real_server_with_3_2(pooler, pg):
    p = pooler(databases={"new": f"host=127.0.0.1 port={pg.port} dbname=p0 max_protocol_version=3.2"})
    with p.login(database="new") as c, p.wire() as d:
        d.start(database="new", version=V3_2, replication="database")
        assert d.authenticate()[-1].type == "Z"
        for x in (c, d):
            x.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: sleeping(pg), "the query runs")
            wire.cancel(x.address, x.key)
            assert x.until("Z")[-2].code == "57014"


@pytest.mark.ours
@pytest.mark.parametrize("before, key", [
    (wire.msg("v", struct.pack("!II", 0x30003, 0)), b"12345678"),  # more than we asked for
    (wire.msg("v", struct.pack("!II", 0x20000, 0)), b"12345678"),
    (wire.msg("v", struct.pack("!II", V3_0, 1) + b"_pq_.x\0"), b"12345678"),  # we asked for no option
    (wire.msg("v", struct.pack("!II", V3_0, 0xFFFFFFFF)), b"12345678"),
    (wire.msg("v", b"\0\3"), b"12345678"), (wire.msg("v", b""), b"12345678"),
    (b"", b""), (b"", b"1234"), (b"", b"1234567"), (b"", bytes(261)), (b"", bytes(300))])
def test_r3_41_server_lies_about_version_or_key(make_pooler, before, key):
    """The server is given up, its client gets a FATAL in time, others feel nothing."""
    fake = FakeServer(V3_2, key=key, before=before)
    p = with_fake(make_pooler(query_wait_timeout=4), fake, "max_protocol_version=3.2")
    with p.wire() as c:
        c.start(database="fake")
        assert c.authenticate()[-1].type == "E"
    assert fake.versions
    with p.login() as c:
        assert c.value("select 1") == "1"


@pytest.mark.ours
def test_bad_max_protocol_version(make_pooler):
    p = make_pooler(databases={"x": "host=127.0.0.1 max_protocol_version=3.1"})
    p.write_ini()
    p.spawn()
    p.expect_exit = p.wait_exit()
    assert p.expect_exit != 0
    assert "invalid max_protocol_version: 3.1" in p.log() + p.stderr.read_text()


# ---------------------------------------------------------------------------------------------- encryption requests

@pytest.mark.parametrize("count", [2, 50])
@pytest.mark.parametrize("first", [wire.SSL_REQUEST, wire.GSSENC_REQUEST])
def test_repeated_encryption_requests(pooler, first, count):
    """Each is declined, in any order and number; time is the bound, as in PgBouncer."""
    p = pooler()
    other = wire.SSL_REQUEST + wire.GSSENC_REQUEST - first
    with p.wire() as c:
        for i in range(count):
            c.send(struct.pack("!II", 8, other if i % 3 == 1 else first))
            assert c.exactly(1) == b"N"
        assert c.login().value("select 1") == "1"


def test_encryption_requests_end_with_the_login_timeout(pooler):
    p = pooler(client_login_timeout=1)
    with p.wire() as c, pytest.raises(wire.Closed):
        while True:
            c.send(struct.pack("!II", 8, wire.GSSENC_REQUEST))
            answer = c.exactly(1)
            if answer != b"N":
                m = wire.Msg(answer.decode(), c.exactly(struct.unpack("!I", c.exactly(4))[0] - 4))
                assert m.text == "client_login_timeout"
                c.exactly(1)


@pytest.mark.parametrize("code, name", [(wire.SSL_REQUEST, "SSL request"),
                                        (wire.GSSENC_REQUEST, "GSSAPI encryption request")])
@pytest.mark.parametrize("glued", [b"\0", wire.startup_packet({"user": "alice", "database": "p0"}),
                                   struct.pack("!II", 8, wire.SSL_REQUEST), struct.pack("!II", 8, wire.GSSENC_REQUEST)])
@pytest.mark.parametrize("after", [False, True])
def test_r1_26_bytes_behind_an_encryption_request(pooler, code, name, glued, after):
    p = pooler()
    with p.wire() as c:
        if after:  # a request that was declined changes nothing
            c.send(struct.pack("!II", 8, wire.GSSENC_REQUEST))
            assert c.exactly(1) == b"N"
        c.send(struct.pack("!II", 8, code) + glued)
        m = c.fatal()
        assert m.text == "received unencrypted data after " + name and code_is(m.code, "08P01")
    with p.login() as c:
        assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- cancel, special times

@pytest.mark.ours  # PgBouncer ignores the cancel of a queued client
@pytest.mark.workers(1, 2, 4)
@pytest.mark.parametrize("pool_mode", ["session", "transaction", "statement"])
def test_r8_104_cancel_of_a_queued_client(pooler, pg, pool_mode):
    p = pooler(pool_mode=pool_mode, default_pool_size=1)
    holder = p.login()
    holder.send(wire.query("select pg_sleep(600)"))
    wait_until(lambda: pg.sql("select 1 from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'"),
               "the query runs, and the pool is used up")
    clients = [p.login() for _ in range(6)]  # spread over the workers
    for i, c in enumerate(clients):
        if i % 2:
            c.send(wire.parse("", "select 1"), wire.bind("", ""), wire.execute(), wire.SYNC)
        else:
            c.send(wire.query("select 1"))
    wait_until(lambda: p.pool()["cl_waiting"] == 6, "they wait")
    for c in clients:
        wire.cancel(c.address, c.key)
        out = c.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
    assert p.pool()["cl_waiting"] == 0
    wire.cancel(holder.address, holder.key)
    assert holder.until("Z")[-2].code == "57014"
    holder.close()
    for c in clients:
        assert c.value("select 1") == "1"
        c.close()  # a session ends, and the server is the next one's


@pytest.mark.workers(1, 2)
def test_cancel_during_login_hits_nobody(pooler, pg):
    """A client that is still asked for its password has no key; one that was there before may not be hit."""
    p = pooler(auth_type="scram-sha-256")
    with p.login("s_scram", password=p.userlist["s_scram"]) as old:
        old_key = old.key
    with p.wire().start("s_scram") as c:
        c.recv()
        for key in (old_key, bytes(8)):
            wire.cancel(c.address, key)
    with p.wire().start("s_scram") as c:
        assert c.authenticate(p.userlist["s_scram"])[-1].type == "Z"
        assert c.key != old_key


@pytest.mark.ours
@pytest.mark.workers(1, 2)
def test_cancel_of_a_client_that_waits_for_the_first_server(make_pooler):
    fake = FakeServer(hold=True)
    p = with_fake(make_pooler(), fake)
    with p.wire().start(database="fake") as c, p.wire().start(database="fake", replication="true") as d:
        wait_until(lambda: p.pool("fake") and p.pool("fake")["cl_waiting"] == 2, "they wait")
        wire.cancel(c.address, bytes(8))
        assert p.pool("fake")["cl_waiting"] == 2
        assert not fake.cancels
        assert d.buf == c.buf == b""


@pytest.mark.ours  # PgBouncer tells the client nothing, and leaves the pause of one database as it is
@pytest.mark.workers(1, 2, 4)
@pytest.mark.parametrize("what", ["PAUSE", "PAUSE p0"])
def test_console_cancel_undoes_pause(pooler, what):
    p = pooler()
    busy = p.login()
    busy.query("begin")
    with p.console() as c:
        c.send(wire.query(what))
        wait_until(lambda: any(r["paused"] == "1" for r in p.show("DATABASES"))
                   or [r["value"] for r in p.show("STATE") if r["key"] == "paused"] == ["yes"], "it is paused")
        late = p.login()
        late.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "a client waits")
        wire.cancel(c.address, c.key)
        assert late.until("Z")[-1].body == b"I"  # the queue is served again
        out = c.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
        assert [r["value"] for r in p.show("STATE") if r["key"] == "paused"] == ["no"]
        busy.query("commit")
        assert c.query("SHOW VERSION")[-1].type == "Z"
    for x in (busy, late):
        assert x.value("select 1") == "1"
        x.close()


@pytest.mark.ours  # PgBouncer lets the first console wait on
@pytest.mark.parametrize("what", ["PAUSE", "PAUSE p0"])
@pytest.mark.parametrize("how", ["RESUME", "cancel"])
def test_pause_undone_by_another_console(pooler, what, how):
    """Whoever waits for the pause must not be told that it has come."""
    p = pooler()
    with p.login() as busy, p.console() as a, p.console() as b:
        busy.query("begin")
        a.send(wire.query(what))
        wait_until(lambda: p.pool()["sv_active"] == 1 and "PAUSE" in p.log(), "it waits")
        if how == "RESUME":
            assert b.query(what.replace("PAUSE", "RESUME"))[-2].type == "C"
        elif what == "PAUSE":
            wire.cancel(b.address, b.key)
        else:
            wire.cancel(a.address, a.key)
        out = a.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
        busy.query("commit")
        assert busy.value("select 1") == "1"


@pytest.mark.ours
def test_console_cancel_ends_wait_close(pooler):
    p = pooler()
    with p.login() as busy, p.console() as c:
        busy.query("begin")
        p.admin("RECONNECT")
        c.send(wire.query("WAIT_CLOSE"))
        time.sleep(0.3)
        wire.cancel(c.address, c.key)
        out = c.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
        busy.query("commit")


def test_console_cancel_after_pause_resumes(pooler):
    """As in PgBouncer: whoever cancels an administrator's console ends the pause."""
    p = pooler()
    with p.console() as c, p.login() as waiting:
        c.query("PAUSE")
        waiting.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "a client waits")
        wire.cancel(c.address, c.key)
        assert waiting.until("Z")[-1].body == b"I"


@pytest.mark.ours
def test_console_cancel_of_a_mere_reader_changes_nothing(pooler):
    p = pooler()
    with p.console("stats") as c:
        p.admin("PAUSE")
        wire.cancel(c.address, c.key)
        assert [r["value"] for r in p.show("STATE") if r["key"] == "paused"] == ["yes"]
        p.admin("RESUME")


def test_console_cancel_does_not_undo_shutdown(pooler):
    p = pooler()
    busy = p.login()
    busy.query("begin")
    with p.console() as c:
        c.query("SHUTDOWN WAIT_FOR_SERVERS")
        wire.cancel(p.unix, c.key)
        busy.query("commit")
        p.wait_exit()
    busy.close()


@pytest.mark.ours
def test_psql_interrupts_pause(pooler):
    import signal
    import subprocess
    p = pooler()
    with p.login() as busy:
        busy.query("begin")
        psql = subprocess.Popen(["psql", "-XAtq", "-U", "admin", "-d", "pgbouncer", "-c", "PAUSE"], env=p.env(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: [r["value"] for r in p.show("STATE") if r["key"] == "paused"] == ["yes"], "it is paused")
        psql.send_signal(signal.SIGINT)
        _, err = psql.communicate(timeout=PATIENCE)
        assert b"canceling statement due to user request" in err
        busy.query("commit")
        assert busy.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- reliability, section 3

HUGE = [0, 1, 3, -1, -2**31, 2**31 - 1]


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("kind", ["p", "Q", "B"])
@pytest.mark.parametrize("when", ["password", "ready", "transaction"])
def test_r3_38_length_lies_of_clients(pooler, when, kind, length):
    p = pooler(auth_type="md5" if when == "password" else "trust")
    with p.wire() as c:
        if when == "password":
            c.start("s_md5")
            c.recv()
        else:
            c.login()
            if when == "transaction":
                c.query("begin")
        c.send(kind.encode() + struct.pack("!i", length))
        if length == 2**31 - 1 and kind != "p":
            return  # a claim of 2 GB is legal for a query, and costs what came of it
        m = c.fatal()
        assert m.text.startswith(("bad packet header", "unknown pkt")) and code_is(m.code, "08P01")
    with p.login("alice") if when != "password" else p.login("s_md5", password=p.userlist["s_md5"]) as c:
        assert c.value("select 1") == "1"


@pytest.mark.parametrize("length", [-1, 0, 3, 2**31 - 1])
@pytest.mark.parametrize("kind", "RSKEvZ")
def test_r3_38_length_lies_of_servers(make_pooler, kind, length):
    fake = FakeServer(before=kind.encode() + struct.pack("!i", length))
    p = with_fake(make_pooler(), fake, "query_wait_timeout=1")
    with p.wire() as c:
        c.start(database="fake")
        assert c.authenticate()[-1].type == "E"
    with p.login() as c:
        assert c.value("select 1") == "1"
    assert p.rss() < 200 << 20


@pytest.mark.ours  # PgBouncer says nothing to some
@pytest.mark.parametrize("first", [
    wire.msg("p", b"secret\0"), wire.query("select 1"), wire.SYNC, wire.msg("d", b"x")])
def test_r3_40_messages_before_startup(pooler, first):
    p = pooler()
    with p.wire() as c:
        c.send(first)
        assert c.fatal().text.startswith(("bad packet header", "client password pkt before startup"))


def test_r3_40_requests_after_startup(pooler):
    p = pooler()
    for packet in (struct.pack("!II", 8, wire.SSL_REQUEST), struct.pack("!II", 8, wire.GSSENC_REQUEST),
                   wire.cancel_packet(b"12345678"), wire.startup_packet({"user": "alice"})):
        with p.login() as c:
            c.send(packet)
            assert c.fatal().text.startswith(("unknown pkt", "bad packet header", "client re-sent"))
        with p.login() as c:
            assert c.value("select 1") == "1"


@pytest.mark.ours
@pytest.mark.parametrize("size", range(1, 45, 7))
def test_r3_46_dribbled_first_packets(pooler, size):
    """The same, whatever the pieces."""
    p = pooler()
    with p.wire() as c:
        packet = wire.startup_packet({"user": "alice", "database": "p0", "_pq_.x": "1", "replication": "database"},
                                     0x30000 | 77)
        for at in range(0, len(packet), size):
            c.send(packet[at:at + size])
            time.sleep(0.002)
        c.user = "alice"
        assert c.authenticate()[-1].type == "Z"
        assert c.negotiated.body == struct.pack("!II", V3_2, 1) + b"_pq_.x\0"
        assert c.value("select 1") == "1"
        c.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: sleeping(p.pg), "the query runs")
        with p.wire() as k:
            packet = wire.cancel_packet(c.key)
            for at in range(0, len(packet), size):
                k.send(packet[at:at + size])
                time.sleep(0.002)
            assert k.at_eof()
        assert c.until("Z")[-2].code == "57014"


# ---------------------------------------------------------------------------------------------- reliability, section 5

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["terminate", "reset", "half a message"])
@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
def test_r5_63_client_dies_in_a_transaction(pooler, pg, pool_mode, how):
    p = pooler(pool_mode=pool_mode, default_pool_size=1)
    pg.sql("create table if not exists r63 (v int)")
    pg.sql("truncate r63")
    pg.sql("insert into r63 values (1)")
    c = p.login()
    c.query("begin")
    c.query("update r63 set v = 2")
    if how == "terminate":
        c.send(wire.TERMINATE)
        c.close()
    else:
        if how == "half a message":  # number 65: it cannot be put right again
            c.send(wire.bind("", "", ["x" * 100])[:40])
        c.drop()
    with p.login() as d:
        out = d.query("select v from r63 for update")
        assert [m.row for m in out if m.type == "D"] == [["1"]]
        assert out[-1].body == b"I"


@pytest.mark.workers(1, 2)
def test_r5_64_client_dies_with_answers_owed(pooler):
    p = pooler(default_pool_size=1)
    for i in range(5):
        c = p.login()
        c.send(wire.query("select repeat('x', 1000) from generate_series(1, 50000)"))
        c.exactly(1000)
        (c.drop if i % 2 else c.close)()
        with p.login() as d:
            assert d.rows(f"select {i}") == [[str(i)]]
    pool = wait_until(lambda: (x := p.pool())["cl_active"] == 0 and x)
    assert pool["sv_active"] == 0


@pytest.mark.workers(1, 2)
def test_r5_72_failed_transaction_stays_with_its_client(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("begin")
        assert a.query("select 1/0")[-1].body == b"E"
        b.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "b waits")
        assert a.query("select 1")[0].code == "25P02"
        a.query("rollback")
        assert [m.type for m in b.until("Z")] == ["T", "D", "C", "Z"]


def test_r5_70_reset_fails(pooler, pg):
    """The server dies in its reset query: it is replaced, and nobody waits for it."""
    p = pooler(pool_mode="session", default_pool_size=1,
               server_reset_query="select pg_terminate_backend(pg_backend_pid())")
    for _ in range(3):
        with p.login() as c:
            assert c.value("select 1") == "1"
    assert psycopg
