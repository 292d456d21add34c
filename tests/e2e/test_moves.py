"""Clients change their worker while they run. `placement = shuffle` moves everybody who is silent, all the time: whatever
holds there holds for the few moves of `adaptive`."""
import contextlib
import itertools
import random
import signal
import threading
import time

import psycopg
import pytest

import wire
from conftest import OURS, PATIENCE, wait_until
from test_cancel import sleeping
from test_lifecycle import take_over
from test_tls import certs, connect, one_value, pg_tls, tls_pooler  # noqa: F401

pytestmark = [pytest.mark.ours, pytest.mark.workers(2, 4)]


def moved(p, what="clients_moved_in"):
    return sum(int(w[what]) for w in p.show("WORKERS"))


def wait_moves(p, n=20):
    before = moved(p)
    wait_until(lambda: moved(p) >= before + n, f"{n} moves")


def in_threads(work, n):
    failed = []

    def run(i):
        try:
            work(i)
        except BaseException as e:  # noqa: BLE001
            failed.append((i, repr(e)))
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
    [t.start() for t in threads]
    [t.join(2 * PATIENCE) for t in threads]
    assert not any(t.is_alive() for t in threads), "somebody hangs"
    assert not failed, failed[:3]


@pytest.fixture
def shuffled(pooler):
    return lambda **kw: pooler(**({"placement": "shuffle", "default_pool_size": 4} | kw))


# ---------------------------------------------------------------------------------------------- what moves along

def test_r160_everything_moves_along(shuffled):
    """Statements, the unnamed statement, parameters, the key: after moves as before."""
    p = shuffled()
    with p.login(application_name="traveller") as c, p.login() as other:
        c.query("set datestyle = 'German'")
        c.send(wire.parse("one", "select 'one', $1::text", [25]), wire.parse("", "select 'unnamed', $1::text", [25]),
               wire.SYNC)
        assert [m.type for m in c.until("Z")] == ["1", "1", "Z"]
        for n in range(5):
            wait_moves(p)
            c.send(wire.bind("", "", [n]), wire.execute(), wire.SYNC)
            assert c.until("Z")[1].row == ["unnamed", str(n)]
            c.send(wire.bind("", "one", [n]), wire.execute(), wire.SYNC)
            assert c.until("Z")[1].row == ["one", str(n)]
            assert c.value("select '2026-11-30'::date") == "30.11.2026"
            assert c.value("show application_name") == "traveller"
            assert other.value("show application_name") == ""
            c.send(wire.parse("", "select 'unnamed', $1::text", [25]), wire.SYNC)
            assert c.until("Z")[0].type == "1"
        [row] = [r for r in p.show("CLIENTS") if r["application_name"] == "traveller"]
        assert row["prepared_statements"] == "1" and row["state"] == "idle"
        assert int(row["port"]) == c.sock.getsockname()[1]


def test_r160_protocol_3_2_key_moves_along(shuffled, pg):
    p = shuffled()
    with p.wire() as c:
        c.start(version=0x30002)
        assert c.authenticate()[-1].type == "Z"
        for _ in range(5):
            wait_moves(p)
            c.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: sleeping(pg), "the query runs")
            wire.cancel(c.address, c.key)
            assert c.until("Z")[-2].code == "57014"


def test_r160_busy_clients(shuffled):
    """All kinds of traffic from clients that move between any two messages; not a byte is lost, doubled or mixed up."""
    p = shuffled()
    rounds = 60

    def work(n):
        with p.login(application_name=f"app{n}") as c:
            big = "x" * (n * 1000)
            c.send(wire.parse("s", "select $1::text || repeat('y', 3000)", [25]), wire.SYNC)
            c.until("Z")
            for i in range(rounds):
                assert c.value(f"select '{n}-{i}{big}'") == f"{n}-{i}{big}"
                c.send(wire.bind("", "s", [f"{n}.{i}"]), wire.execute(), wire.SYNC)
                assert c.until("Z")[1].row == [f"{n}.{i}" + "y" * 3000]
                assert c.value("show application_name") == f"app{n}"
                c.send(*[wire.query(f"select {k}") for k in range(5)])
                assert [c.until("Z")[1].row for _ in range(5)] == [[str(k)] for k in range(5)]
                c.query("begin")
                c.value("select txid_current()")
                assert c.query("rollback")[-1].body == b"I"
                time.sleep(random.random() * 0.02)
    before = moved(p)
    in_threads(work, 12)
    assert moved(p) - before > 50, "they did move"


def test_r160_half_messages(shuffled):
    """A client with half a message stays where it is until it has said the rest; a whole one may come in the middle of a
    move."""
    p = shuffled()
    packet = wire.query("select 'in pieces'")
    with p.login() as c:
        for cut in range(1, len(packet)):
            c.send(packet[:cut])
            time.sleep(0.03)
            c.send(packet[cut:])
            assert c.until("Z")[1].row == ["in pieces"]
        c.send_slowly(packet * 3, 0.005)
        for _ in range(3):
            assert c.until("Z")[1].row == ["in pieces"]


def test_r160_tls_moves_along(tls_pooler, pg_tls):  # noqa: F811
    p = tls_pooler("prefer", "require", placement="shuffle", default_pool_size=2)

    def work(n):
        with connect(p, "require") as c:
            for i in range(100):
                assert one_value(c, f"select '{n}-{i}' || repeat('z', 20000)") == f"{n}-{i}" + "z" * 20000
                time.sleep(random.random() * 0.02)
    in_threads(work, 8)
    assert moved(p) > 20
    assert "TLS handshake error" not in p.log() and "pooler error" not in p.log()


def test_r160_session_mode(shuffled):
    p = shuffled(pool_mode="session", default_pool_size=20)
    with p.login() as c:
        wait_moves(p, 3)
        pid = c.value("select pg_backend_pid()")
        c.query("set work_mem = '7MB'")
        time.sleep(0.2)
        assert c.value("show work_mem") == "7MB" and c.value("select pg_backend_pid()") == pid


# ---------------------------------------------------------------------------------------------- cancel

def test_r160_cancels_find_their_client(shuffled, pg):
    """Each client's query starts right after it has moved, maybe while it moves. Each cancel hits its own, and only it."""
    p = shuffled(default_pool_size=20)
    hit = itertools.count()

    def work(n):
        with p.login() as c:
            for i in range(12):
                time.sleep(random.random() * 0.05)
                sql = f"select pg_sleep(600) /* {n} {i} */"
                c.send(wire.query(sql))
                wait_until(lambda: pg.sql("select 1 from pg_stat_activity where state = 'active' and query = %s", sql),
                           "the query runs")
                wire.cancel(c.address, c.key)
                out = c.until("Z")
                assert out[-2].code == "57014", out[-2].fields
                next(hit)
                assert c.value(f"select {n}") == str(n), "nobody else's cancel came here"
    in_threads(work, 6)
    assert next(hit) == 72


def test_r160_late_cancels_hit_nobody(shuffled):
    """Cancels for clients that run short queries and move: an answer is a value or this client's own cancellation."""
    p = shuffled(default_pool_size=2)
    stop = threading.Event()
    clients = [p.login() for _ in range(6)]
    victims, quiet = clients[:3], clients[3:]

    def shoot():
        while not stop.is_set():
            for c in victims:
                wire.cancel(c.address, c.key)
    shooter = threading.Thread(target=shoot, daemon=True)
    shooter.start()
    try:
        for i in range(150):
            for c in clients:
                c.send(wire.query(f"select {i}"))
            for c in clients:
                out = c.until("Z")
                errors = [m for m in out if m.type == "E"]
                if errors:
                    assert c in victims and errors[0].code == "57014", errors[0].fields
                else:
                    assert out[1].row == [str(i)]
            time.sleep(0.005)
    finally:
        stop.set()
        shooter.join(PATIENCE)
    for c in clients:
        c.close()
    assert quiet


# ---------------------------------------------------------------------------------------------- ends on the way

def test_r160_clients_that_leave_on_their_way(shuffled):
    """Dropped, closed, terminated at any moment: every count is back to zero, and nobody's place is lost."""
    p = shuffled(max_client_conn=40)
    for how in ("drop", "close", "terminate") * 4:
        clients = [p.login() for _ in range(30)]
        time.sleep(random.random() * 0.05)
        for c in clients:
            c.drop() if how == "drop" else (c.send(wire.TERMINATE) if how == "terminate" else None, c.close())
        wait_until(lambda: p.pool()["cl_active"] == 0, "all gone")
    clients = [p.login() for _ in range(39)]  # + the console
    assert len({c.value("select 1") for c in clients}) == 1
    assert p.pool()["cl_active"] == 39
    for c in clients:
        c.close()
    wait_until(lambda: sum(int(w["clients"]) for w in p.show("WORKERS")) == 1, "only the console is left")


def test_r162_show_and_kill_miss_nobody(shuffled):
    """A client between two workers is not to be seen twice, or not at all; KILL_CLIENT always finds it."""
    p = shuffled()
    clients = [p.login(application_name=f"c{n}") for n in range(20)]
    expected = sorted(f"c{n}" for n in range(20))
    wait_moves(p)
    with p.console() as console:
        for _ in range(100):
            out = console.query("SHOW CLIENTS")
            names = [n for n, _ in out[0].columns]
            rows = [dict(zip(names, m.row)) for m in out if m.type == "D"]
            assert sorted(r["application_name"] for r in rows if r["database"] == "p0") == expected
        ids = {r["application_name"]: r["id"] for r in rows if r["database"] == "p0"}
        for n, c in enumerate(clients):
            out = console.query(f"KILL_CLIENT {ids[f'c{n}']}")
            assert out[0].type == "C", out[0].fields
            assert c.fatal().code == "57P01"
    assert p.pool()["cl_active"] == 0


def test_r162_kill_database(shuffled):
    p = shuffled()
    for _ in range(5):
        clients = [p.login() for _ in range(20)]
        wait_moves(p)
        p.admin("KILL p0")
        assert p.pool()["cl_active"] == 0
        for c in clients:
            c.fatal()
        p.admin("RESUME p0")


def test_r160_timeouts_move_along(shuffled):
    p = shuffled(client_idle_timeout=2)
    with p.login() as c:
        c.value("select 1")
        wait_moves(p, 3)
        assert c.fatal().text == "client_idle_timeout"


# ---------------------------------------------------------------------------------------------- orders on the way

def test_r162_orders_while_clients_move(shuffled):
    """RELOAD, PAUSE, SUSPEND, RECONNECT under traffic of clients that move."""
    p = shuffled()
    stop = threading.Event()

    def orders():
        n = 0
        with p.console() as console:  # SUSPEND ends with its console
            while not stop.is_set():
                n += 1
                p.settings["query_wait_timeout"] = 60 + n % 2
                p.write_ini()
                for order in ("RELOAD", "PAUSE", "RESUME", "SUSPEND", "RESUME", "RECONNECT"):
                    out = console.query(order)
                    assert out[0].type == "C", (order, out[0].fields)

    def work(n):
        if n == 0:
            return orders()
        with p.login() as c:
            for i in range(80):
                assert c.value(f"select {n * 1000 + i}") == str(n * 1000 + i)
                time.sleep(random.random() * 0.02)
        if next(left) == 7:
            stop.set()
    left = itertools.count()
    in_threads(work, 9)
    assert moved(p) > 20


def test_r160_removed_database(shuffled):
    """RELOAD without the entry: all its clients are told, wherever they are."""
    p = shuffled()
    for _ in range(3):
        clients = [p.login(database="p1") for _ in range(15)]
        wait_moves(p)
        entry = p.databases.pop("p1")
        p.write_ini()
        p.admin("RELOAD")
        for c in clients:
            assert "database" in c.fatal().text
        p.databases["p1"] = entry
        p.write_ini()
        p.admin("RELOAD")


def test_r160_takeover_while_clients_move(shuffled):
    p = shuffled()
    clients = [p.login(application_name=f"c{n}") for n in range(20)]
    for c in clients:
        c.send(wire.parse("s", "select $1::text", [25]), wire.SYNC)
        c.until("Z")
    for round_ in range(2):
        wait_moves(p)
        take_over(p)
        for n, c in enumerate(clients):
            c.send(wire.bind("", "s", [f"{round_}{n}"]), wire.execute(), wire.SYNC)
            assert c.until("Z")[1].row == [f"{round_}{n}"]
            assert c.value("show application_name") == f"c{n}"
    for c in clients:
        c.close()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_r163_orderly_end_while_clients_move(shuffled, sig):
    p = shuffled()
    clients = [p.login() for _ in range(20)]
    for c in clients:
        c.value("select 1")
    wait_moves(p)
    p.kill(sig)
    if sig == signal.SIGTERM:
        time.sleep(0.5)
        assert p.alive()
        for c in clients:
            assert c.value("select 2") == "2"
            c.close()
    assert p.wait_exit() == 0
    p.proc = None
    p.assert_clean()
    for c in clients:
        c.close()


# ---------------------------------------------------------------------------------------------- policies

def clients_per_worker(p):
    return [int(w["clients"]) for w in p.show("WORKERS")]


def talk(stop, clients):
    while not stop.is_set():
        for c in clients:
            assert c.value("select 1") == "1"
        time.sleep(0.01)


@contextlib.contextmanager
def talking(clients):
    stop = threading.Event()
    thread = threading.Thread(target=talk, args=(stop, clients), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)


@pytest.mark.workers(4, 16)
def test_quiet_clients_come_together(pooler):
    """adaptive, the default: a few clients with little to do end on one worker, and stay there. The silent stay apart."""
    p = pooler()
    silent = [p.login() for _ in range(p.workers)]
    clients = [p.login() for _ in range(8)]
    with talking(clients):
        rows = wait_until(lambda: (r := p.show("WORKERS")) and max(int(w["clients"]) for w in r) >= 8 and r, "gathered")
        [target] = [w for w in rows if int(w["gather_in"])]
        assert target["last_move"].startswith("gather: "), target["last_move"]
        for c in silent:
            assert c.value("select 2") == "2"
            c.close()
        wait_until(lambda: sorted(clients_per_worker(p))[-2:] == [1, 8], "all talkers in one place, the console elsewhere")
        before = moved(p, "gather_in")
        time.sleep(2)
        assert moved(p, "gather_in") == before, "once there, they stay"
    assert {c.value("select 2") for c in clients} == {"2"}
    p.admin("SET placement = 'spread'")
    assert moved(p, "relieve_in") == moved(p, "level_in") == 0
    for c in clients:
        c.close()


@pytest.mark.workers(16)
@pytest.mark.parametrize("policy", ["spread", "adaptive"])
@pytest.mark.parametrize("n", [8, 32, 64, 256])
def test_long_lived_clients_are_spread(pooler, policy, n):
    """The fullest of 16 workers has at most 1.25 times the mean, and one."""
    p = pooler(placement=policy)
    clients = [p.login() for _ in range(n)]
    per_worker = clients_per_worker(p)
    assert max(per_worker) <= 1.25 * n / 16 + 1 + 1, per_worker  # + the console
    for c in clients:
        c.close()


@pytest.mark.workers(4)
def test_kernel_leaves_clients_where_they_are(pooler):
    p = pooler(placement="kernel")
    clients = [p.login() for _ in range(32)]
    with talking(clients[:4]):
        time.sleep(1.5)
    rows = p.show("WORKERS")
    assert sum(int(w["clients_moved_in"]) for w in rows) == 0
    assert all(w["last_move"] is None for w in rows)
    for c in clients:
        c.close()


@pytest.mark.workers(1)
def test_one_worker_moves_nobody(pooler):
    p = pooler(placement="shuffle")
    with p.login() as c, psycopg.connect(host=str(p.dir), port=p.port, user="alice", dbname="p0") as u:
        assert c.value("select 1") == "1" and u.execute("select 1").fetchone() == (1,)
        assert moved(p) == 0


def test_bad_placement(make_pooler):
    p = make_pooler(placement="everywhere")
    p.write_ini()
    p.spawn()
    assert p.wait_exit() == 1
    assert "expected one of adaptive, spread, kernel, shuffle" in p.log() + p.stderr.read_text()
    p.proc = None
    assert OURS
