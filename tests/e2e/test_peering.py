"""Cancel requests that arrive at another process than their client: [peers], among pgflotillas and with PgBouncer.

PGBOUNCER=/path names a real PgBouncer (1.21 or later: master is what it was tested with) for the mixed tests.
"""
import contextlib
import itertools
import os
import random
import socket
import struct
import threading

import pytest

import wire
from conftest import EXE, PATIENCE, wait_until
from dns_server import Dns
from test_cancel import cancel_storm
from test_lifecycle import take_over

pytestmark = pytest.mark.ours  # two and more poolers of a kind: test/test_peering.py of PgBouncer does it with its own

PGBOUNCER = os.environ.get("PGBOUNCER")
CANCELS = int(os.environ.get("CANCELS", 400))  # of the storm; 100,000 once per release
needs_pgbouncer = pytest.mark.skipif(not PGBOUNCER, reason="PGBOUNCER=/path/to/pgbouncer (1.21 or later) is not given")
KINDS = ["tcp", "unix"]


def own(p, other, kind):
    """How `other` finds p."""
    return f"host=127.0.0.1 port={p.port}" if kind == "tcp" else f"host={p.dir} port={p.port}"


def make_pgbouncer(make_pooler, **settings):
    p = make_pooler(**settings)
    p.exe = PGBOUNCER
    for key in ("workers", "io_engine"):
        del p.settings[key]
    return p


@pytest.fixture
def group(make_pooler):
    """group("f", "f", "b") -> started poolers that know each other; f: a pgflotilla, b: a PgBouncer. Numbers are 1, 2, …"""
    def make(*kinds, by="tcp", room="", **settings):
        settings = {"verbose": 1, "log_disconnections": 1, **settings}
        made = [(make_pgbouncer if k == "b" else lambda m, **kw: m(**kw))(make_pooler, **settings) for k in kinds]
        for number, p in enumerate(made, 1):
            p.settings["peer_id"] = number
            p.peers = {n: own(q, p, by) + room for n, q in enumerate(made, 1) if q is not p}
        return [p.start() for p in made]
    return make


def shows_sleep(pg, mark):
    return pg.sql("select 1 from pg_stat_activity where state = 'active' and query = %s", f"select pg_sleep(600), '{mark}'")


_marks = itertools.count()


def runs(pg, client):
    """Starts an endless query and returns when PostgreSQL runs it."""
    mark = f"m{next(_marks)}"
    client.send(wire.query(f"select pg_sleep(600), '{mark}'"))
    wait_until(lambda: shows_sleep(pg, mark), "the query runs")


def assert_cancelled(client):
    out = client.until("Z")
    assert out[-2].type == "E" and out[-2].code == "57014", out
    assert out[-1].body == b"I"


def peer_pools(p):
    return {int(r["peer_id"]): tuple(int(r[k]) for k in ("cl_active_cancel_req", "cl_waiting_cancel_req",
                                                         "sv_active_cancel", "sv_login")) for r in p.show("PEER_POOLS")}


def quiet(p):
    return all(row == (0, 0, 0, 0) for row in peer_pools(p).values())


def forwards(p):
    return p.log().count("forwarding cancellation request to peer")


class Peer:
    """A listening socket in the place of a peer. `talk(connection, packet)` runs for each that comes."""

    def __init__(self, talk=None, backlog=100):
        self.talk = talk or (lambda c, packet: None)
        self.packets, self.open = [], []
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.backlog = backlog

    def start(self):
        self.sock.listen(self.backlog)
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                c, _ = self.sock.accept()
                self.open.append(c)
                threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def one(self, c):
        with contextlib.suppress(OSError):
            c.settimeout(PATIENCE)
            head = b""
            while len(head) < 8:
                got = c.recv(8 - len(head))
                if not got:
                    return
                head += got
            size, code = struct.unpack("!II", head)
            body = b""
            while len(body) < size - 8:
                body += c.recv(size - 8 - len(body))
            assert code == wire.CANCEL_REQUEST
            self.packets.append(body)
            self.talk(c, body)

    def close(self):
        # shutdown() wakes the thread in accept()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        for c in self.open:
            c.close()


@pytest.fixture
def peer():
    made = []

    def make(talk=None, **kw):
        made.append(Peer(talk, **kw))
        return made[-1]
    yield make
    for p in made:
        p.close()


def hang_up(c, packet):
    c.close()


def key_for(number, ttl=3):
    raw = bytearray(random.randbytes(8))
    raw[0] &= 0x7f
    raw[1:3] = struct.pack("<H", number)
    raw[7] = raw[7] & ~3 | ttl
    return bytes(raw)


class Cancels:
    """Cancel requests that nobody answers yet: each in a thread, as libpq waits."""

    def __init__(self):
        self.threads = []

    def send(self, address, key):
        t = threading.Thread(target=wire.cancel, args=(address, key, PATIENCE), daemon=True)
        t.start()
        self.threads.append(t)

    def waiting(self):
        return sum(t.is_alive() for t in self.threads)

    def join(self):
        wait_until(lambda: not self.waiting(), "every requester has been let go")


# ---------------------------------------------------------------------------------------------- the way there

@pytest.mark.workers(1, 4)
@pytest.mark.parametrize("by", KINDS)
def test_two_in_both_directions(group, pg, by):
    a, b = group("f", "f", by=by)
    for home, door in ((a, b), (b, a)):
        with home.login() as c:
            for address in (("127.0.0.1", door.port), door.unix, ("127.0.0.1", home.port)):
                runs(pg, c)
                wire.cancel(address, c.key)
                assert_cancelled(c)
            assert c.value("select 1") == "1"
    assert forwards(a) == forwards(b) == 2
    assert peer_pools(a) == {2: (0, 0, 0, 0)} and peer_pools(b) == {1: (0, 0, 0, 0)}


@needs_pgbouncer
@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("kinds", ["fb", "fbf", "bfb"])
def test_mixed_with_pgbouncer(group, pg, kinds, by):
    made = group(*kinds, by=by)
    for home in made:
        with home.login() as c:
            for door in made:
                for address in (("127.0.0.1", door.port), door.unix):
                    runs(pg, c)
                    wire.cancel(address, c.key)
                    assert_cancelled(c)
            assert c.value("select 1") == "1"
    for p in made:
        assert quiet(p) and set(peer_pools(p)) == set(range(1, len(made) + 1)) - {int(p.settings["peer_id"])}


@needs_pgbouncer
def test_pgbouncer_passes_on_for_us_and_we_for_it(group, pg):
    """Two hops: the door knows the peer under an address where another one sits, who knows better."""
    for kinds in ("fbf", "fff", "bfb"):
        home, middle, door = made = group(*kinds)
        door.peers[1] = own(middle, door, "tcp")
        door.write_ini()
        door.admin("RELOAD")
        with home.login() as c:
            runs(pg, c)
            wire.cancel(("127.0.0.1", door.port), c.key)
            assert_cancelled(c)
        for p in made:
            p.stop()


def test_key_of_protocol_3_2(group, pg):
    a, b = group("f", "f")
    with a.wire() as c:
        c.start(version=0x30002)
        assert c.authenticate()[-1].type == "Z" and len(c.key) == 36
        short, wrong = c.key[:8], c.key[:-1] + bytes([c.key[-1] ^ 1])
        runs(pg, c)
        for key in (short, wrong):
            wire.cancel(("127.0.0.1", b.port), key)
        c.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            c.recv()
        c.sock.settimeout(PATIENCE)
        wire.cancel(("127.0.0.1", b.port), c.key)
        assert_cancelled(c)


@pytest.mark.workers(1, 4)
def test_what_a_peer_gets(pooler, peer):
    """The key as it came, one hop less; the hops are in the two lowest bits of the last byte."""
    other = peer(hang_up).start()
    p = pooler(peer_id=1)
    p.peers[513] = f"host=127.0.0.1 port={other.port}"
    p.write_ini()
    p.admin("RELOAD")
    sent = []
    for ttl in (3, 2, 1):
        key = key_for(513, ttl)
        wire.cancel(("127.0.0.1", p.port), key)
        sent.append(key[:7] + bytes([key[7] - 1]))
    key = key_for(513) + random.randbytes(28)
    wire.cancel(p.unix, key)
    sent.append(key[:7] + bytes([key[7] - 1]) + key[8:])
    assert other.packets == sent
    wire.cancel(("127.0.0.1", p.port), key_for(513, 0))
    assert other.packets == sent


def test_keys_name_their_process(pooler):
    p = pooler(peer_id=0x1234)
    with p.login() as c:
        assert c.key[1:3] == b"\x34\x12" and c.key[7] & 3 == 3 and c.key[0] < 0x80


def test_own_entry_is_allowed_and_unused(group, pg):
    a, b = group("f", "f")
    for p in (a, b):
        for q in (a, b):
            p.peers[q.settings["peer_id"]] = own(q, p, "tcp")
        p.write_ini()
        p.admin("RELOAD")
    with a.login() as c:
        runs(pg, c)
        wire.cancel(("127.0.0.1", b.port), c.key)
        assert_cancelled(c)
        wire.cancel(("127.0.0.1", a.port), key_for(1))
    assert set(peer_pools(a)) == set()


def test_requester_that_does_not_wait(group, pg):
    a, b = group("f", "f")
    with a.login() as c:
        runs(pg, c)
        with socket.create_connection(("127.0.0.1", b.port)) as s:
            s.sendall(wire.cancel_packet(c.key))
        assert_cancelled(c)


# ---------------------------------------------------------------------------------------------- the wrong victim

@pytest.mark.workers(2, 8)
@pytest.mark.parametrize("kinds", ["ff", pytest.param("fbf", marks=needs_pgbouncer)])
def test_random_cancels_through_any_door(group, kinds):
    """No wrong victim, whoever passes the request on."""
    # A PgBouncer forgets who waits in a full pool of a peer until the next request for it comes; a PgBouncer or not, a
    # client that waits long is told so by a notice.
    made = group(*kinds, default_pool_size=3, verbose=0, log_disconnections=0, query_wait_notify=0, room=" pool_size=100")
    doors = [("127.0.0.1", p.port) for p in made]
    cancel_storm(made, CANCELS, clients=12, patience=240 + CANCELS / 10, doors=doors)
    for p in made:
        wait_until(lambda p=p: quiet(p), "every counter is back")


def test_never_the_next_client(group):
    """Pool of one: a's short query ends while its cancel is on its way through the peer; b, who gets the server next,
    must not feel it."""
    home, door = group("f", "f", default_pool_size=1, verbose=0, log_disconnections=0)
    with home.login() as a, home.login() as b:
        for i in range(60):
            a.send(wire.query("select pg_sleep(0.001)"))
            b.send(wire.query(f"select {i} from pg_sleep(0.004)"))
            t = threading.Thread(target=wire.cancel, args=(("127.0.0.1", door.port), a.key))
            t.start()
            out = b.until("Z")
            assert [m.type for m in out] == ["T", "D", "C", "Z"], (i, out)
            assert out[1].row == [str(i)]
            a.until("Z")
            t.join()


def test_keys_that_are_nobodys(group, pg):
    a, b = group("f", "f")
    with a.login() as c:
        c.send(wire.query("select pg_sleep(1), 7"))
        flipped = bytes(x ^ 4 if i == 7 else x for i, x in enumerate(c.key))  # not the hops
        for door in (a, b):
            for key in (key_for(1), key_for(2), key_for(3), key_for(3, 0), key_for(0), key_for(0xffff), flipped, bytes(8)):
                wire.cancel(("127.0.0.1", door.port), key)
        assert c.until("Z")[1].row[1] == "7"
    text = a.log()
    assert "failed to forward cancel request because its TTL was exhausted" in text
    assert "could not find peer to forward request to" in text
    assert "failed cancel request" in text
    assert quiet(a) and quiet(b)


# ---------------------------------------------------------------------------------------------- bad peers

@pytest.mark.parametrize("kinds", ["ff", pytest.param("fb", marks=needs_pgbouncer)])
def test_r108_loop_ends_with_the_hops(group, kinds):
    """Each believes that the other is number 3."""
    made = group(*kinds)
    for p, q in (made, reversed(made)):
        p.peers[3] = own(q, p, "tcp")
        p.write_ini()
        p.admin("RELOAD")
    wire.cancel(("127.0.0.1", made[0].port), key_for(3))
    assert sum(map(forwards, made)) == 3
    assert "TTL was exhausted" in made[1].log()
    wire.cancel(("127.0.0.1", made[0].port), key_for(3, 1))
    assert sum(map(forwards, made)) == 4
    assert quiet(made[0]) and quiet(made[1])


def test_r108_peer_that_is_oneself(pooler):
    p = pooler(peer_id=1, verbose=1)
    p.peers = {2: f"host=127.0.0.1 port={p.port}", 3: f"host={p.dir} port={p.port}"}
    p.write_ini()
    p.admin("RELOAD")
    for number in (2, 3):
        wire.cancel(("127.0.0.1", p.port), key_for(number))
    assert forwards(p) == 6 and quiet(p)


@pytest.mark.workers(1, 4)
def test_r108_silent_peer(pooler, peer, pg):
    """It takes requests and never lets go. Its own requests pay, with their time; nobody else's."""
    silent, good = peer().start(), peer(hang_up).start()
    p = pooler(peer_id=1, cancel_wait_timeout=600)
    p.peers = {2: f"host=127.0.0.1 port={silent.port} pool_size=2", 3: f"host=127.0.0.1 port={good.port}"}
    p.write_ini()
    p.admin("RELOAD")
    stuck = Cancels()
    for _ in range(5):
        stuck.send(("127.0.0.1", p.port), key_for(2))
    wait_until(lambda: peer_pools(p).get(2) == (2, 3, 2, 0), "two are sent, three wait")
    wait_until(lambda: len(silent.packets) == 2)
    assert stuck.waiting() == 5
    servers = [r for r in p.show("SERVERS") if r["database"] == "(nodb)"]
    assert [(r["user"], r["state"], r["port"]) for r in servers] == [("(nouser)", "active_cancel", str(silent.port))] * 2
    items = {r["list"]: int(r["items"]) for r in p.show("LISTS")}
    assert items["peers"] == 2 and items["peer_pools"] == 1
    with p.login() as c:
        for _ in range(3):
            wire.cancel(("127.0.0.1", p.port), key_for(3))  # returns
            runs(pg, c)
            wire.cancel(p.unix, c.key)
            assert_cancelled(c)
    assert len(good.packets) == 3 and stuck.waiting() == 5
    p.admin("SET cancel_wait_timeout = 1")
    stuck.join()
    assert peer_pools(p) == {2: (0, 0, 0, 0), 3: (0, 0, 0, 0)}
    wait_until(lambda: not p.show("SERVERS") or all(r["database"] == "p0" for r in p.show("SERVERS")))


def test_r108_peer_that_is_not_there(pooler, peer, pg):
    """Refused, again and again, until the time of the request is over; the next one has its own time."""
    gone = peer()  # bound, and nobody listens
    p = pooler(peer_id=1, cancel_wait_timeout=1)
    p.peers = {2: f"host=127.0.0.1 port={gone.port}", 3: f"host={p.dir}/nowhere port=1", 4: f"host=/{'x' * 200} port=1"}
    p.write_ini()
    p.admin("RELOAD")
    for number in (2, 3, 4):
        wire.cancel(("127.0.0.1", p.port), key_for(number))
    wait_until(lambda: quiet(p), "every counter is back")
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_peer_that_comes_back_gets_what_waits(pooler, peer):
    late = peer(hang_up)
    p = pooler(peer_id=1, cancel_wait_timeout=600)
    p.peers = {2: f"host=127.0.0.1 port={late.port}"}
    p.write_ini()
    p.admin("RELOAD")
    waiting = Cancels()
    for _ in range(3):
        waiting.send(("127.0.0.1", p.port), key_for(2))
    p.wait_log("connect failed")
    wait_until(lambda: peer_pools(p).get(2, (0, 0))[1] == 3, "three wait")
    late.start()
    waiting.join()
    assert len(late.packets) == 3


@pytest.mark.parametrize("setting", ["server_connect_timeout", "cancel_wait_timeout"])
def test_r108_peer_that_never_accepts(pooler, peer, setting):
    """A full backlog drops the SYN: the connection attempt hangs."""
    full = peer(backlog=0)
    full.sock.listen(0)
    fill = [socket.socket() for _ in range(4)]
    for s in fill:
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", full.port))
    p = pooler(peer_id=1, cancel_wait_timeout=600, server_connect_timeout=600)
    p.peers = {2: f"host=127.0.0.1 port={full.port}"}
    p.write_ini()
    p.admin("RELOAD")
    waiting = Cancels()
    waiting.send(("127.0.0.1", p.port), key_for(2))
    wait_until(lambda: peer_pools(p).get(2) == (0, 1, 0, 1), "it connects")
    with p.login() as c:
        assert c.value("select 1") == "1"
    p.admin(f"SET {setting} = 1")
    if setting == "server_connect_timeout":
        p.wait_log("closing because: connect timeout")
        p.admin("SET cancel_wait_timeout = 1")
    waiting.join()
    wait_until(lambda: quiet(p), "every counter is back")
    [s.close() for s in fill]


def babble(c, packet):
    while True:
        c.sendall(b"E" * 65536)


def half_close(c, packet):
    c.shutdown(socket.SHUT_WR)


def reset(c, packet):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


@pytest.mark.parametrize("talk", [babble, half_close, reset])
def test_r108_peer_that_misbehaves(pooler, peer, talk):
    bad = peer(talk).start()
    p = pooler(peer_id=1, cancel_wait_timeout=600)
    p.peers = {2: f"host=127.0.0.1 port={bad.port}"}
    p.write_ini()
    p.admin("RELOAD")
    for _ in range(5):
        wire.cancel(("127.0.0.1", p.port), key_for(2))  # returns: it has been let go at once
    assert len(bad.packets) == 5 and quiet(p)


def test_storm_for_a_dead_peer(pooler, peer):
    """Logins and queries go on; no place of a client is taken; all is forgotten afterwards."""
    gone = peer()
    p = pooler(peer_id=1, cancel_wait_timeout=1, max_client_conn=5)
    p.peers = {2: f"host=127.0.0.1 port={gone.port}"}
    p.write_ini()
    p.admin("RELOAD")
    sockets = []
    for _ in range(400):
        s = socket.create_connection(("127.0.0.1", p.port))
        s.sendall(wire.cancel_packet(key_for(2)))
        sockets.append(s)
    for _ in range(3):
        with p.login() as c:
            assert c.value("select 1") == "1"
    for s in sockets:
        s.settimeout(PATIENCE)
        assert s.recv(1) == b""
        s.close()
    wait_until(lambda: quiet(p), "every counter is back")


def test_no_more_than_ten_thousand_wait(pooler, peer):
    """Requesters that do not wait leave no socket behind, only what was asked."""
    silent = peer().start()
    p = pooler(peer_id=1, cancel_wait_timeout=600, log_disconnections=0)
    p.peers = {2: f"host=127.0.0.1 port={silent.port} pool_size=1"}
    p.write_ini()
    p.admin("RELOAD")
    for _ in range(10_200):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(p.unix)
            s.sendall(wire.cancel_packet(key_for(2)))
    wait_until(lambda: peer_pools(p).get(2) == (1, 10_000, 1, 0), "the queue is full")
    with p.login() as c:
        assert c.value("select 1") == "1"
    p.admin("SET cancel_wait_timeout = 1")
    wait_until(lambda: quiet(p), "every counter is back")


# ---------------------------------------------------------------------------------------------- console, RELOAD

def test_console(pooler):
    p = pooler(peer_id=1, default_pool_size=11)
    with p.console() as c:
        assert [n for n, _ in c.query("SHOW PEERS")[0].columns] == ["peer_id", "host", "port", "pool_size"]
        assert [n for n, _ in c.query("SHOW PEER_POOLS")[0].columns] == [
            "peer_id", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active_cancel", "sv_login"]
        notice = c.query("SHOW HELP")[0].fields["D"]
        assert "PEERS" in notice and "PEER_POOLS" in notice
    assert p.show("PEERS") == [] and p.show("PEER_POOLS") == []
    p.peers = {9: "host=b.test", 2: f"host={p.dir} port=7 pool_size=3", 1: "host=127.0.0.1"}
    p.write_ini()
    p.admin("RELOAD")
    assert [tuple(r.values()) for r in p.show("PEERS")] == [
        ("1", "127.0.0.1", "6432", "11"), ("2", str(p.dir), "7", "3"), ("9", "b.test", "6432", "11")]
    assert p.show("PEER_POOLS") == []


def test_reload_adds_moves_and_removes(pooler, peer):
    first, second, silent = peer(hang_up).start(), peer(hang_up).start(), peer().start()
    p = pooler(peer_id=1, cancel_wait_timeout=600, log_disconnections=1)

    def peers(**entries):
        p.peers = {n[1:]: f"host=127.0.0.1 port={e.port}" for n, e in entries.items()}
        p.write_ini()
        p.admin("RELOAD")

    wire.cancel(("127.0.0.1", p.port), key_for(2))
    assert not first.packets
    peers(_2=first, _3=silent)
    wire.cancel(("127.0.0.1", p.port), key_for(2))
    assert (len(first.packets), len(second.packets)) == (1, 0)
    peers(_2=second, _3=silent)
    wire.cancel(("127.0.0.1", p.port), key_for(2))
    assert (len(first.packets), len(second.packets)) == (1, 1)
    held = Cancels()
    held.send(("127.0.0.1", p.port), key_for(3))
    wait_until(lambda: peer_pools(p).get(3) == (1, 0, 1, 0), "it is with the silent one")
    peers(_2=second)
    held.join()
    assert "dropping peer 3 as it does not exist anymore" in p.log()
    assert "closing because: peer removed" in p.log()
    assert set(peer_pools(p)) == {2}
    wire.cancel(("127.0.0.1", p.port), key_for(3))
    assert len(silent.packets) == 1


def test_broken_reload_keeps_the_peers(pooler, peer):
    good = peer(hang_up).start()
    p = pooler(peer_id=1)
    p.peers = {2: f"host=127.0.0.1 port={good.port}"}
    p.write_ini()
    p.admin("RELOAD")
    for bad in ({0: "host=a"}, {65536: "host=a"}, {"x": "host=a"}, {2: "port=1"}, {2: "host=a prot=1"}):
        p.peers = bad
        p.write_ini()
        with p.console() as c:
            assert c.query("RELOAD")[0].code == "F0000"
    wire.cancel(("127.0.0.1", p.port), key_for(2))
    assert len(good.packets) == 1
    assert "invalid peer id: 65536" in p.log()


def test_change_of_the_own_number(pooler, pg):
    """Keys that are out keep working: it is the key that counts, its number only tells others where to go."""
    p = pooler()
    with p.login() as before, contextlib.ExitStack() as stack:
        p.admin("SET peer_id = 5")
        five = stack.enter_context(p.login())
        assert five.key[1:3] == b"\x05\0"
        p.admin("SET peer_id = 6")
        for c in (before, five, stack.enter_context(p.login())):
            runs(pg, c)
            wire.cancel(("127.0.0.1", p.port), c.key)
            assert_cancelled(c)
        p.admin("SET peer_id = 0")  # off: nothing is forwarded, and what came through a peer finds nobody
        runs(pg, five)
        wire.cancel(("127.0.0.1", p.port), five.key[:7] + bytes([five.key[7] - 1]))
        wire.cancel(("127.0.0.1", p.port), five.key)
        assert_cancelled(five)


def test_without_peer_id_it_warns(pooler):
    p = pooler()
    p.peers = {2: "host=a"}
    p.write_ini()
    p.admin("RELOAD")
    p.wait_log("[peers] has no effect without peer_id: cancel requests are not forwarded")


def test_check(pooler):
    p = pooler()
    p.settings["peer_id"] = 1
    p.peers = {"*": "host=pods.test"}
    p.write_ini()
    out = p.run(EXE, "--check", p.ini, check=False).stdout
    assert "differs from PgBouncer: PgBouncer does not know the peer *" in out


# ---------------------------------------------------------------------------------------------- one port, names

@pytest.mark.parametrize("kinds", ["ff", pytest.param("fb", marks=needs_pgbouncer), pytest.param("bf", marks=needs_pgbouncer)])
def test_r110_rolling_restart(make_pooler, pg, kinds):
    """Old and new on one port, found by their Unix sockets. The session is in the old one, its cancel comes to the new."""
    made = [(make_pgbouncer if k == "b" else lambda m, **kw: m(**kw))(make_pooler, so_reuseport=1) for k in kinds]
    old, new = made
    new.port = new.settings["listen_port"] = old.port
    for number, p in enumerate(made, 1):
        p.settings["peer_id"] = number
        p.peers = {n: f"host={q.dir} port={q.port}" for n, q in enumerate(made, 1)}
    old.start()
    with old.login() as c:
        assert c.value("select 1") == "1"
        new.start()
        old.kill(15)
        wait_until(lambda: "SIGTERM" in old.log(), "it has got the signal")
        for _ in range(5):
            runs(pg, c)
            wire.cancel(("127.0.0.1", old.port), c.key)
            assert_cancelled(c)
    assert old.wait_exit() == 0


def test_r110_pause_and_suspend(group, pg):
    home, door = group("f", "f")
    with home.login() as c, home.console() as console:
        runs(pg, c)
        console.send(wire.query("PAUSE"))
        wire.cancel(("127.0.0.1", door.port), c.key)
        assert_cancelled(c)
        assert console.until("Z")[0].tag == "PAUSE"
        home.admin("RESUME")
        runs(pg, c)
        assert console.query("SUSPEND")[0].tag == "SUSPEND"
        late = Cancels()
        late.send(("127.0.0.1", door.port), c.key)
        wait_until(lambda: peer_pools(door) == {1: (1, 0, 1, 0)}, "it waits at the door of the suspended one")
        assert console.query("RESUME")[0].tag == "RESUME"
        assert_cancelled(c)
        late.join()


def test_r110_takeover(group, pg):
    """The new process has the old one's keys and its address; it may have another number, too."""
    home, door = group("f", "f", by="unix")
    with home.login() as c:
        runs(pg, c)
        home.settings["peer_id"] = 7
        take_over(home)
        wire.cancel(("127.0.0.1", door.port), c.key)
        assert_cancelled(c)
        with home.login() as fresh:
            assert fresh.key[1:3] == b"\x07\0"


@pytest.fixture
def dns():
    server = Dns()
    yield server
    server.close()


def use_dns(p, dns):
    conf = p.dir / "resolv.conf"
    conf.write_text(f"nameserver 127.0.0.1:{dns.port}\noptions timeout:1 attempts:1\n")
    p.settings["resolv_conf"] = conf
    p.settings["dns_nxdomain_ttl"] = "0.1"
    p.settings["dns_max_ttl"] = "0.1"


def test_name_of_a_peer(make_pooler, peer, dns):
    good = peer(hang_up).start()
    p = make_pooler(peer_id=1, cancel_wait_timeout=600, server_login_retry="0.1")
    use_dns(p, dns)
    p.peers = {2: f"host=peer.test port={good.port}"}
    p.start()
    waiting = Cancels()
    waiting.send(("127.0.0.1", p.port), key_for(2))
    p.wait_log("DNS lookup failed: peer.test")
    assert waiting.waiting() == 1
    dns.hosts["peer.test"] = ["127.0.0.1"]
    waiting.join()
    assert len(good.packets) == 1


@pytest.fixture
def pods(make_pooler, dns):
    """Processes as alike as pods: one port, one peer_id, one [peers] with the name of all. Only the address differs."""
    def make(n, **settings):
        made = [make_pooler(peer_id=1, verbose=1, **settings) for _ in range(n)]
        for i, p in enumerate(made, 1):
            p.port = p.settings["listen_port"] = made[0].port
            p.host = p.settings["listen_addr"] = f"127.0.0.{i}"
            p.peers = {"*": f"host=pods.test port={p.port}"}
            use_dns(p, dns)
            p.start()
        dns.hosts["pods.test"] = [p.host for p in made]
        dns.ttl = 0
        return made
    return make


def cancel_at(p, key):
    wire.cancel((p.host, p.port), key)


@pytest.mark.workers(1, 3)
def test_everyone_by_one_name(pods, pg):
    made = pods(3)
    for home in made:
        with home.login() as c:
            for door in made:
                runs(pg, c)
                cancel_at(door, c.key)
                assert_cancelled(c)
    # One question to all for each request that came to the wrong door, and none of the copies went on.
    assert [forwards(p) for p in made] == [2, 2, 2]
    assert [(r["peer_id"], r["host"]) for r in made[0].show("PEERS")] == [("0", "pods.test")]
    assert [tuple(r.values()) for r in made[0].show("PEER_POOLS")] == [("0",) * 5]
    with made[1].wire() as c:
        c.start(version=0x30002)
        assert c.authenticate()[-1].type == "Z" and len(c.key) == 36
        runs(pg, c)
        cancel_at(made[1], key_for(1) + c.key[8:])  # asks everyone for another key with the same end
        cancel_at(made[2], c.key)
        assert_cancelled(c)
    cancel_at(made[0], key_for(1))
    cancel_at(made[0], key_for(77))
    assert [forwards(p) for p in made] == [4, 3, 3]


def test_everyone_is_who_the_name_says_now(pods, dns, pg):
    home, door = pods(2)
    with home.login() as c:
        dns.hosts["pods.test"] = [door.host]  # home is not ready yet
        cancel_at(door, key_for(1))
        runs(pg, c)
        cancel_at(door, c.key)
        c.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            c.recv()
        c.sock.settimeout(PATIENCE)
        dns.hosts["pods.test"] = [door.host, home.host]
        wait_until(lambda: cancel_at(door, c.key) or shows_cancelled(c), "the new address is known")
        assert_cancelled(c)
        del dns.hosts["pods.test"]  # a name without addresses: let go at once
        wait_until(lambda: cancel_at(door, key_for(1)) or "peer-*: DNS lookup failed: pods.test" in door.log())


def shows_cancelled(c):
    c.sock.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        c.buf += c.sock.recv(65536)
    c.sock.settimeout(PATIENCE)
    return bool(c.buf)


def test_dead_address_among_everyone(pods, dns, pg, peer):
    """Refused: costs nothing. Silent: its requester waits for the time that there is, the victim does not."""
    home, door = pods(2, cancel_wait_timeout=600)
    dns.hosts["pods.test"] = ["127.0.0.3", home.host, door.host]
    with home.login() as c:
        for _ in range(3):
            runs(pg, c)
            cancel_at(door, c.key)
            assert_cancelled(c)
        silent = peer()
        silent.sock.close()
        silent.sock = socket.socket()
        silent.sock.bind(("127.0.0.4", home.port))
        silent.start()
        dns.hosts["pods.test"] = ["127.0.0.3", "127.0.0.4", home.host]
        held = Cancels()
        wait_until(lambda: held.send((door.host, door.port), key_for(1)) or silent.packets, "the name's news is here")
        for _ in range(3):
            runs(pg, c)
            held.send((door.host, door.port), c.key)
            assert_cancelled(c)
        wait_until(lambda: held.waiting() >= 4)
        assert all(p[7] & 3 == 0 for p in silent.packets), "nobody passes these on"
        door.admin("SET cancel_wait_timeout = 1")
        held.join()
    wait_until(lambda: quiet(door) and quiet(home), "every counter is back")


def test_named_and_everyone(pods, peer):
    """Who has an entry of his own is asked alone."""
    named, everyone = peer(hang_up).start(), peer(hang_up).start()
    (p,) = pods(1)
    p.peers = {2: f"host=127.0.0.1 port={named.port}", "*": f"host=127.0.0.1 port={everyone.port} pool_size=1"}
    p.write_ini()
    p.admin("RELOAD")
    keys = [key_for(n) for n in (2, 3, 1)]
    for key in keys:
        cancel_at(p, key)
    assert named.packets == [keys[0][:7] + bytes([keys[0][7] - 1])]
    assert everyone.packets == [k[:7] + bytes([k[7] & ~3]) for k in keys[1:]]
    p.peers = {}
    p.write_ini()
    p.admin("RELOAD")
    assert "dropping peer * as it does not exist anymore" in p.log() and p.show("PEER_POOLS") == []
    cancel_at(p, key_for(3))
    assert len(everyone.packets) == 2


@needs_pgbouncer
def test_everyone_with_a_pgbouncer(make_pooler, pg, dns):
    """A PgBouncer takes a key without hops that is its own; it cannot ask everyone itself."""
    ours, theirs = make_pooler(peer_id=1), make_pgbouncer(make_pooler, peer_id=2)
    theirs.port = theirs.settings["listen_port"] = ours.port
    theirs.host = theirs.settings["listen_addr"] = "127.0.0.2"
    ours.peers = {"*": f"host=pods.test port={ours.port}"}
    dns.hosts["pods.test"] = [ours.host, theirs.host]
    use_dns(ours, dns)
    ours.start()
    theirs.start()
    with theirs.login() as c:
        runs(pg, c)
        cancel_at(ours, c.key)
        assert_cancelled(c)
