"""Cancel requests reach their own query from any worker, and never another's."""
import contextlib
import random
import socket
import struct
import threading
import time

import psycopg
import pytest

import wire
from conftest import wait_until
from test_bad_input import LOGIN, FakeBackend, with_fake


def sleeping(pg):
    """PostgreSQL runs the query: a cancel that comes before that is lost on it, and rightly so."""
    return pg.sql("select 1 from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'")


@pytest.mark.workers(1, 2, 4)
def test_cancel_running_query(pooler, pg):
    p = pooler()
    with p.login() as c:
        for _ in range(10):  # the kernel deals the cancel connections to different workers
            c.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: sleeping(pg), "the query runs")
            wire.cancel(c.address, c.key)
            out = c.until("Z")
            assert out[-2].code == "57014" and out[-1].body == b"I"
        assert c.value("select 1") == "1"


def test_cancel_through_unix_socket_and_driver(pooler, pg):
    p = pooler()
    with p.login() as c:
        c.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: sleeping(pg), "the query runs")
        wire.cancel(p.unix, c.key)
        assert c.until("Z")[-2].code == "57014"
    with p.connect() as c:
        timer = threading.Timer(0.3, c.cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute("select pg_sleep(600)")
        timer.join()
        assert c.execute("select 1").fetchone() == (1,)


def test_cancel_of_idle_wrong_and_gone(pooler):
    p = pooler(default_pool_size=1)
    a, b = p.login(), p.login()
    assert a.value("select 1") == "1"
    b.send(wire.query("select pg_sleep(0.5), 7"))
    wire.cancel(a.address, a.key)  # idle
    wire.cancel(a.address, bytes(8))  # nobody
    flipped = bytes(x ^ 1 if i == 6 else x for i, x in enumerate(b.key))
    wire.cancel(a.address, flipped)  # almost b
    a.close()
    wire.cancel(b.address, a.key)  # gone
    assert b.until("Z")[1].row[1] == "7"
    assert b.value("select 1") == "1"
    b.close()


@pytest.mark.parametrize("packet", [
    wire.cancel_packet(b""), wire.cancel_packet(b"1234"), wire.cancel_packet(b"123456789"),
    wire.cancel_packet(bytes(300))], ids=["0", "4", "9", "300"])
def test_cancel_packet_of_wrong_size(pooler, packet):
    p = pooler()
    with p.wire() as c:
        c.send(packet)
        assert c.until_closed() == []
    with p.login() as c:
        assert c.value("select 1") == "1"


@pytest.mark.workers(1, 4)
def test_keys_differ(pooler):
    p = pooler()
    clients = [p.login() for _ in range(60)]
    assert len({c.key for c in clients}) == 60
    for c in clients:
        c.close()


@pytest.mark.workers(1, 4)
def test_never_the_next_client(pooler):
    """Pool of one: a's short query ends while its cancel arrives; b, who gets the server next, must not feel it."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for i in range(150):
            a.send(wire.query("select pg_sleep(0.001)"))
            b.send(wire.query(f"select {i} from pg_sleep(0.004)"))
            t = threading.Thread(target=wire.cancel, args=(a.address, a.key))
            t.start()
            out = b.until("Z")
            assert [m.type for m in out] == ["T", "D", "C", "Z"], (i, out)
            assert out[1].row == [str(i)]
            a.until("Z")
            t.join()


def cancel_storm(poolers, goal, clients, patience, doors=None):
    """Clients with short and endless queries, dealt out to the poolers; each knows whether somebody asked to cancel it.
    The requests go to any of the doors, or to where the client is. Ends when there were `goal` of them."""
    total, lock, failures = [0], threading.Lock(), []

    def work(seed):
        rnd = random.Random(seed)
        try:
            with poolers[seed % len(poolers)].login() as c:
                while total[0] < goal:
                    kind = rnd.choice(["long", "short", "plain"])
                    if kind == "plain":
                        assert [m.type for m in c.query(f"select {seed} from pg_sleep(0.002)")] == ["T", "D", "C", "Z"]
                        continue
                    c.send(wire.query("select pg_sleep(600)" if kind == "long" else "select pg_sleep(0.003)"))
                    done = threading.Event()

                    def shoot():
                        # A queued or idle client ignores a cancel, so a long query needs them until it stops.
                        while True:
                            done.wait(rnd.random() * 0.004)
                            wire.cancel(rnd.choice(doors) if doors else c.address, c.key)
                            with lock:
                                total[0] += 1
                            if kind == "short" or done.wait(0.02):
                                return
                    t = threading.Thread(target=shoot, daemon=True)
                    t.start()
                    out = c.until("Z")
                    done.set()
                    t.join()  # none is on its way when the next query starts
                    if kind == "long":
                        assert out[-2].type == "E" and out[-2].code == "57014"
                    assert out[-1].body == b"I"
        except BaseException as e:  # noqa: BLE001
            failures.append((seed, repr(e)))
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(clients)]
    [t.start() for t in threads]
    [t.join(patience) for t in threads]
    assert not any(t.is_alive() for t in threads), "somebody hangs"
    assert not failures, failures[:3]
    assert total[0] >= goal
    print(f"{total[0]} cancels")


@pytest.mark.workers(2, 4, 8)
def test_thousand_random_cancels(pooler):
    p = pooler(default_pool_size=6)
    cancel_storm([p], goal=1000, clients=16, patience=240)
    pool = wait_until(lambda: (x := p.pool())["cl_active"] == 0 and x)
    assert all(pool[k] == 0 for k in ("cl_waiting", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active",
                                      "sv_active_cancel", "sv_being_canceled"))


@pytest.mark.ours
def test_cancel_of_a_waiting_client(pooler):
    """PgBouncer ignores it; here the queued query ends with 57014 and the client lives on."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("begin")
        b.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "b waits")
        wire.cancel(b.address, b.key)
        out = b.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
        a.query("commit")
        assert b.value("select 1") == "1"


@pytest.mark.workers(1, 4)
def test_cancels_do_not_count_as_clients(pooler):
    p = pooler(max_client_conn=1)
    with p.login() as c:
        c.send(wire.query("select pg_sleep(600)"))
        time.sleep(0.3)
        wire.cancel(c.address, c.key)
        assert c.until("Z")[-2].code == "57014"


def test_cancel_while_parameters_are_set(make_pooler):
    """The query is still here, behind the pooler's own SETs: it is answered as cancelled and never sent."""
    class Slow(FakeBackend):
        gate = threading.Event()

        def one(self, c):
            with contextlib.suppress(OSError), c:
                size = struct.unpack("!I", self.exactly(c, 4))[0]
                self.exactly(c, size - 4)
                c.sendall(self.login)
                while True:
                    kind = self.exactly(c, 1)
                    body = self.exactly(c, struct.unpack("!I", self.exactly(c, 4))[0] - 4)
                    if kind == b"X":
                        return
                    self.queries.append(body)
                    if body.startswith(b"SET"):
                        assert self.gate.wait(60)
                        c.sendall(wire.msg("C", b"SET\0") + wire.msg("S", b"TimeZone\0Europe/Rome\0") + wire.msg("Z", b"I"))
                    else:
                        c.sendall(wire.msg("C", b"DONE\0") + wire.msg("Z", b"I"))

    fake = Slow(LOGIN)
    p = with_fake(make_pooler(default_pool_size=1, server_tls_sslmode="disable"), fake)
    with p.wire().login(database="fake", TimeZone="Europe/Rome") as c:
        c.send(wire.query("never sent"))
        wait_until(lambda: fake.queries, "the SET is under way")
        wire.cancel(c.address, c.key)
        out = c.until("Z")
        assert out[0].code == "57014" and out[-1].body == b"I"
        fake.gate.set()
        # The server is free again, for the next query of anybody.
        with p.wire().login(database="fake", TimeZone="Europe/Rome") as other:
            assert other.query("another")[0].tag == "DONE"
        assert c.query("mine")[0].tag == "DONE"
    assert not any(b"never" in q for q in fake.queries)
    fake.close()


@pytest.mark.ours
def test_cancels_cost_no_idle_server(make_pooler):
    """They may take the pool beyond its size; the servers that are good for the next query stay."""
    class Held(FakeBackend):
        gate = threading.Event()
        cancels = 0

        def one(self, c):
            with contextlib.suppress(OSError), c:
                size, code = struct.unpack("!II", self.exactly(c, 8))
                self.exactly(c, size - 8)
                if code == wire.CANCEL_REQUEST:
                    self.cancels += 1
                    self.gate.wait(60)
                    return
                c.sendall(self.login)
                while self.exactly(c, 1) != b"X":
                    body = self.exactly(c, struct.unpack("!I", self.exactly(c, 4))[0] - 4)
                    if body.startswith(b"slow"):
                        assert self.gate.wait(60)
                    c.sendall(wire.msg("C", b"DONE\0") + wire.msg("Z", b"I"))

    fake = Held(LOGIN)
    p = with_fake(make_pooler(default_pool_size=2, server_tls_sslmode="disable", pool_mode="transaction"), fake)
    with p.login(database="fake") as a, p.login(database="fake") as b:
        a.send(wire.query("slow"))
        assert b.query("quick")[0].tag == "DONE"
        requests = []
        for _ in range(2):
            s = socket.create_connection(a.address)
            s.sendall(wire.cancel_packet(a.key))
            requests.append(s)
        wait_until(lambda: fake.cancels == 2, "both are at the server")
        time.sleep(1)  # some ticks
        pool = p.pool(database="fake")
        assert (pool["sv_active"], pool["sv_idle"], pool["sv_active_cancel"]) == (1, 1, 2)
        fake.gate.set()
        assert a.until("Z")[0].tag == "DONE"
        for s in requests:
            s.close()
    assert "too many servers" not in p.log()
    fake.close()
