"""Section 8 of the reliability catalogue: cancel requests. The wrong victim (99), other workers (107), queued and idle clients
(101, 104, 105): test_cancel.py; keys (106): test_protocol.py; peers (108, 110): test_peering.py."""
import contextlib
import random
import socket
import struct
import threading
import time

import pytest

import wire
from chaos import all_quiet, times
from conftest import wait_until
from fakes import DONE, Scripted
from test_reliability_12 import at_work
from test_tls import SSL_PACKET, TlsFront, certs, pg_tls  # noqa: F401
from wire import query

pytestmark = pytest.mark.ours


def requested(p, key):
    """A cancel request under way; its socket."""
    s = socket.create_connection(("127.0.0.1", p.port))
    s.sendall(wire.cancel_packet(key))
    s.settimeout(60)
    return s


def let_go(s):
    with s:
        try:
            return s.recv(1) == b""
        except ConnectionResetError:
            return True


# ------------------------------------------------------------------------------------------------- 100: on its way

class Gate(TlsFront):
    """TLS in front of PostgreSQL; once it is shut, whoever comes is held before or behind the promise of TLS."""

    def __init__(self, pg, ca, where):
        self.shut, self.opened, self.where, self.held = threading.Event(), threading.Event(), where, 0
        super().__init__(pg, ca.crt("pooler"), ca.key("pooler"))

    def _serve(self, sock):
        if self.shut.is_set():
            head = sock.recv(8, socket.MSG_WAITALL)
            assert head == SSL_PACKET
            if self.where == "behind S":
                sock.sendall(b"S")
            self.held += 1
            self.opened.wait(60)
            with contextlib.suppress(OSError):
                if self.where != "behind S":
                    sock.sendall(b"S")
                tls = self.context.wrap_socket(sock, server_side=True)
                with socket.create_connection(("127.0.0.1", self.pg.port)) as back:  # cancels may come in the clear
                    back.sendall(tls.recv(100))
                    back.recv(1)
            sock.close()
            return
        super()._serve(sock)


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("where", ["before S", "behind S"])
def test_r100_query_ends_while_its_cancel_is_in_tls_setup(make_pooler, pg_tls, certs, where):  # noqa: F811
    """The connection that carries the cancel is still being set up when the query ends. b gets the server next and must not
    feel it, nor may a's next transaction by then be anybody else's."""
    with Gate(pg_tls, certs[0], where) as gate:
        p = make_pooler(default_pool_size=1, server_tls_sslmode="require", cancel_wait_timeout=60,
                        databases={"x": f"host=127.0.0.1 port={gate.port} dbname=p0"}).start()
        with p.login(database="x") as a, p.login(database="x") as b:
            a.value("select 1")
            gate.shut.set()
            a.send(query("select pg_sleep(0.5), 'whole'"))
            wait_until(lambda: pg_tls.sql("select 1 from pg_stat_activity where state = 'active' and query like '%whole%' "
                                          "and pid <> pg_backend_pid()"), "it runs")
            cancel = requested(p, a.key)
            wait_until(lambda: gate.held, "the cancel is on its way")
            assert a.until()[1].row[1] == "whole"
            for i in range(3):
                assert b.value(f"select {i}") == str(i)
            b.send(query("select pg_sleep(0.5), 'not cancelled'"))
            gate.opened.set()
            assert let_go(cancel)
            assert b.until()[1].row[1] == "not cancelled"
            assert a.value("select 2") == "2"
        all_quiet(p)


@pytest.mark.workers(1, 2)
def test_r100_a_cancel_that_is_sent_is_waited_for(make_pooler):
    """It has left for the server when the query ends: the server is nobody's until the server's side has dealt with it, or
    cancel_wait_timeout is over."""
    fake = Held()
    p = make_pooler(default_pool_size=1, cancel_wait_timeout=60, databases={"x": f"host=127.0.0.1 port={fake.port} dbname=p0"}).start()
    with p.login(database="x") as a, p.login(database="x") as b:
        a.send(query("slow"))
        wait_until(lambda: fake.seen, "it runs")
        cancel = requested(p, a.key)
        wait_until(lambda: fake.cancels, "the cancel is there")
        fake.go_on.set()  # the query ends by itself
        assert a.until()[-1].body == b"I"
        b.send(query("other"))
        wait_until(lambda: p.pool("x")["cl_waiting"] == 1 or len(fake.seen) > 1, "b waits, or has another server")
        on_the_first = [m for m in fake.seen if m[2].startswith(b"other") and m[0] == fake.seen[0][0]]
        assert not on_the_first, "the cancel may still hit what runs there"
        fake.let_go.set()
        assert let_go(cancel)
        assert b.until()[-1].body == b"I"
    all_quiet(p)


class Held(Scripted):
    """Its query ends when go_on is set, and it closes cancel connections when let_go is."""

    def __init__(self):
        self.go_on, self.let_go = threading.Event(), threading.Event()
        super().__init__(self.answer)

    def answer(self, link):
        while True:
            _, body = link.recv()
            if body.startswith(b"slow"):
                self.go_on.wait(60)
            link.send(DONE)

    def one(self, c):
        size, code = struct.unpack("!II", c.recv(8, socket.MSG_WAITALL | socket.MSG_PEEK))
        if code != wire.CANCEL_REQUEST:
            return super().one(c)
        with c:
            self.cancels.append(c.recv(size, socket.MSG_WAITALL))
            self.let_go.wait(60)


# ------------------------------------------------------------------------------------------------- 102, 103, 109

@pytest.mark.workers(2)
@pytest.mark.parametrize("slow", [True, False], ids=["full pool", "idle"])
def test_r102_storm_of_cancels(pooler, pg, slow):
    """1,000 requests from 20 threads, good keys and bad ones, pool full of endless queries or not: others work on and get in,
    no place of a client is used up, and in the end nothing is left."""
    # A socket has a place until it says that it wants no more than to cancel: there are enough for those, not for a leak.
    p = pooler(default_pool_size=3, max_client_conn=200, max_db_connections=10, cancel_wait_timeout=600)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login("bob")) for _ in range(3)]
        if slow:
            for c in clients:
                c.query("begin")
                c.send(query("select pg_sleep(600)"))
            wait_until(lambda: len(pg.backends("state = 'active' and query like '%pg_sleep(600)%'")) == 3, "they run")
        keys = [c.key for c in clients]
        stack.enter_context(at_work(p, clients=3))
        failures = []

        def shoot(seed):
            rnd = random.Random(seed)
            try:
                for _ in range(times(50)):
                    key = rnd.choice(keys) if rnd.random() < 0.3 else random.randbytes(8)
                    s = requested(p, key)
                    if rnd.random() < 0.5:  # does not wait
                        s.close()
                    else:
                        assert let_go(s)
            except Exception as e:  # noqa: BLE001
                failures.append(repr(e))
        threads = [threading.Thread(target=shoot, args=(i,)) for i in range(20)]
        [t.start() for t in threads]
        for _ in range(30):
            with p.login("carol") as late:
                assert late.value("select 'in'") == "in"
        [t.join() for t in threads]
        assert not failures, failures[:3]
        if slow:
            for c in clients:
                out = c.until("Z")
                assert [m.code for m in out if m.type == "E"] == ["57014"] and out[-1].body == b"E"
                c.query("rollback")
        for c in clients:
            assert c.value("select 'still here'") == "still here"
    all_quiet(p)


@pytest.mark.workers(1, 2)
def test_r103_server_that_swallows_cancels(make_pooler):
    """It takes them and never closes: who asked is let go after cancel_wait_timeout, the server serves again, all counters are
    back, and the next cancel has its own time."""
    fake = Held()
    p = make_pooler(default_pool_size=1, cancel_wait_timeout=1, databases={"x": f"host=127.0.0.1 port={fake.port} dbname=p0"}).start()
    for _ in range(2):
        with p.login(database="x") as a:
            seen = len(fake.seen)
            fake.go_on.clear()
            a.send(query("slow"))
            wait_until(lambda: len(fake.seen) > seen, "it runs")
            stuck = [requested(p, a.key) for _ in range(5)]
            assert all(let_go(s) for s in stuck)
            fake.go_on.set()
            assert a.until()[-1].body == b"I"
            with p.login(database="x") as b:
                assert b.query("other")[-1].body == b"I"
    all_quiet(p)
    fake.let_go.set()


def test_r109_who_cancels_hears_when_it_is_done(make_pooler):
    """libpq waits for the end of its connection before it goes on: it comes when the server's side has ended, not before."""
    fake = Held()
    p = make_pooler(cancel_wait_timeout=60, databases={"x": f"host=127.0.0.1 port={fake.port} dbname=p0"}).start()
    with p.login(database="x") as a:
        a.send(query("slow"))
        wait_until(lambda: fake.seen, "it runs")
        cancel = requested(p, a.key)
        wait_until(lambda: fake.cancels, "the server has it")
        time.sleep(0.2)
        cancel.setblocking(False)
        with pytest.raises(BlockingIOError):
            cancel.recv(1)
        cancel.settimeout(60)
        fake.let_go.set()
        assert let_go(cancel)
        fake.go_on.set()
        assert a.until()[-1].body == b"I"
