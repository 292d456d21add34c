"""Section 11 of the reliability catalogue: limits and overload. Fairness (132) and most arithmetic (136): test_pool.py."""
import re
import resource
import socket
import struct
import subprocess

import pytest

import wire
from conftest import EXE, PASSWORD, SANITIZED, wait_until
from test_reliability_12 import at_work, error_of
from test_reliability_3 import codes, types
from wire import SYNC, execute, msg, parse, query

pytestmark = pytest.mark.ours


def login_error(p, **kw):
    with p.wire(**kw) as c:
        c.start()
        return c.fatal()


# ------------------------------------------------------------------------------------------------- 126: max_client_conn

@pytest.mark.workers(4)
@pytest.mark.one_engine
def test_r126_full_house(pooler, pg):
    """Exactly N, however many come at once (test_pool.py); the console gets in by both doors, cancels work, and a place
    is free as soon as one leaves."""
    p = pooler(max_client_conn=6)
    clients = [p.login() for _ in range(6)]
    for kw in ({}, {"unix": p.unix}):
        error = login_error(p, **kw)
        assert (error.text, error.code) == ("no more connections allowed (max_client_conn)", "53300")
    for kw in ({}, {"unix": p.unix}):
        with p.wire(**kw).login("admin", "pgbouncer") as c:
            assert c.query("SHOW POOLS")[0].type == "T"
    clients[0].send(query("select pg_sleep(60)"))
    wait_until(lambda: pg.sql("select 1 from pg_stat_activity where state = 'active' and query like '%pg_sleep(60)%' "
                              "and pid <> pg_backend_pid()"), "it runs")
    wire.cancel(("127.0.0.1", p.port), clients[0].key)
    assert codes(clients[0].until()) == ["57014"]
    for _ in range(10):
        clients.pop().send(wire.TERMINATE)

        def again():
            with p.wire() as c:
                c.start()
                return c.authenticate()[-1].type == "Z"
        wait_until(again, "a place is free")
        clients.insert(0, wait_until(lambda: (c := p.wire().start()).authenticate()[-1].type == "Z" and c))
    assert login_error(p).code == "53300"
    [c.close() for c in clients]


# ------------------------------------------------------------------------------------------------- 127: descriptors

@pytest.mark.skipif(SANITIZED, reason="a sanitizer opens files of its own")
def test_r127_out_of_descriptors(make_pooler, pg):
    """Who is in works on; RELOAD is refused and says why; who needs a new server connection waits for it; accepting
    pauses without a flood of lines, and goes on when there is room."""
    p = make_pooler(default_pool_size=5, max_client_conn=1000, server_login_retry="0.1")
    p.write_ini()
    p.proc = subprocess.Popen([EXE, p.ini], stderr=open(p.stderr, "a"), cwd=p.dir, preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (60, 90)))
    wait_until(p.ready, "it is up")
    assert re.search(r"LOG kernel file descriptor limit: 90 \(hard: 90\)", p.log()), "the soft limit is raised"
    assert re.search(r"WARNING file descriptors may not suffice: 90 of \d+ can be had", p.log())
    with p.console() as console, p.login() as c, p.login(database="p1") as waits, at_work(p, clients=2):
        waits.value("select 1")
        wait_until(lambda: not pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'p1' and "
                                      "client_addr is not null"), "its server is gone")
        wait_until(lambda: b"p1" not in b"".join(m.body for m in console.query("SHOW SERVERS")), "that is known")
        crowd = []

        def full():
            s = socket.create_connection(("127.0.0.1", p.port))
            s.sendall(wire.startup_packet({"user": "alice", "database": "p0"}))
            crowd.append(s)
            return "accept() failed: Too many open files" in p.log()
        wait_until(full, "no descriptor is left")
        waits.send(query("select 'came late'"))
        p.wait_log("cannot make a socket: Too many open files")
        error = error_of(console, "RELOAD")
        assert error.code == "F0000" and "Too many open files" in p.log()
        for i in range(50):
            assert c.value(f"select {i}") == str(i)
        assert console.query("SHOW CONFIG")[0].type == "T"
        assert p.log().count("accept() failed") < 20
        for s in crowd:
            s.close()
        assert [m.row for m in waits.until() if m.type == "D"] == [["came late"]]  # a notice that it is queued may come first
        with p.login() as late:
            assert late.value("select 'room again'") == "room again"
        assert console.query("RELOAD")[0].tag == "RELOAD"
    assert "server login has been failing" not in p.log()


# ------------------------------------------------------------------------------------------------- 128, 129: slow peers

@pytest.mark.workers(1, 2)
def test_r128_slow_readers(pooler, pg):
    """20 clients ask for 10 MB each and read nothing. What they cost is a buffer each; others are served; one that
    begins to read gets all of it."""
    p = pooler(default_pool_size=21, tcp_socket_buffer=65536)  # else the kernel buffers all of it
    with at_work(p, clients=2, database="p1"):
        before = p.rss()
        slow = [p.wire(rcvbuf=65536).login() for _ in range(20)]
        for c in slow:
            c.send(query("select repeat('x', 1000) from generate_series(1, 10000)"))
        wait_until(lambda: len(pg.backends("wait_event = 'ClientWrite'")) == 20, "all of them stand still")
        assert p.rss() - before < 20 * 400_000
        reader = slow.pop()
        assert sum(m.type == "D" for m in reader.until()) == 10_000
        assert reader.value("select 'in step'") == "in step"
        for c in slow:
            c.drop()
        reader.close()
    wait_until(lambda: not pg.backends("state = 'active' and datname = 'p0'"), "their servers are gone")


@pytest.mark.workers(1, 2)
@pytest.mark.one_engine
def test_r129_slow_writers(pooler, pg):
    """300 clients with the beginning of a query hold no server; one with more of it than is waited for gets one, and
    query_timeout takes it back."""
    p = pooler(default_pool_size=1, query_timeout=2)
    slow = [p.login() for _ in range(300)]
    for i, c in enumerate(slow):
        c.send((query("select 1 /*" + "x" * 8000 + "*/") if i % 2 else parse("", "select 1" + "x" * 8000))[:100 + i])
    with p.login() as c:
        for _ in range(20):
            assert c.value("select 'served'") == "served"
        assert p.pool()["sv_active"] == 0
        slow[1].send((query("select 1 /*" + "x" * 8000 + "*/"))[101:])
        assert slow[1].until()[1].row == ["1"]
        with p.login() as half:
            half.send(query("select '" + "x" * 100_000 + "'")[:50_000])
            wait_until(lambda: p.pool()["sv_active"] == 1, "it has the server")
            assert half.fatal().text == "query timeout"
        assert c.value("select 'free again'") == "free again"
    [c.close() for c in slow]
    wait_until(lambda: p.pool()["cl_active"] + p.pool()["cl_waiting"] == 0, "all are gone")


# ------------------------------------------------------------------------------------------------- 130: giant messages

def test_r130_giant_messages(pooler):
    """30 MB as SQL, as a parameter, as a row, as COPY data: it passes through and leaves nothing behind."""
    p = pooler()
    size = 30_000_000
    with p.login() as c:
        c.value("select 1")
        before = p.rss()
        big = b"x" * size
        c.send(b"Q" + struct.pack("!I", size + 4 + 18), b"select length('", big, b"')\0")
        assert [m.row for m in c.until() if m.type == "D"] == [[str(size)]]
        c.send(parse("", "select length($1::text)"),
               b"B" + struct.pack("!I", size + 4 + 12 ) + b"\0\0" + struct.pack("!HHi", 0, 1, size), big,
               struct.pack("!H", 0), execute(), SYNC)
        assert [m.row for m in c.until() if m.type == "D"] == [[str(size)]]
        assert len(c.value(f"select repeat('y', {size})")) == size
        c.send(query("create temp table big (v text); copy big from stdin"))
        c.until("G")
        c.send(b"d" + struct.pack("!I", size + 4 + 1), big, b"\n", msg("c"))
        assert "C" in types(c.until())
        assert c.value("select 'in step'") == "in step"
        assert p.rss() - before < 4_000_000


@pytest.mark.one_engine
def test_r130_over_max_packet_size(pooler):
    p = pooler(max_packet_size=100_000, default_pool_size=1)
    with p.login() as other:
        other.value("select 1")
        for begun in (False, True):
            with p.login() as c:
                assert len(c.value("select '" + "x" * 90_000 + "'")) == 90_000
                if begun:
                    c.query("begin")
                c.send(query("select '" + "x" * 110_000 + "'"))
                assert c.fatal().code == "08P01"
            assert other.value("select 'next'") == "next"


# ------------------------------------------------------------------------------------------------- 134, 135, 136: many

@pytest.mark.workers(2)
@pytest.mark.one_engine
def test_r134_reconnect_stampede(pooler):
    """All connections of 300 clients break at once and come back with SCRAM: everybody gets in, who works works on."""
    p = pooler(auth_type="scram-sha-256", default_pool_size=4, userlist={n: PASSWORD for n in ("alice", "bob", "admin")})
    p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
    with at_work(p, clients=2, user="bob", password=PASSWORD):
        for _ in range(2):
            crowd = [p.wire() for _ in range(300)]
            for c in crowd:
                c.start()
            for c in crowd:
                assert c.authenticate(PASSWORD)[-1].type == "Z"
            assert crowd[0].value("select 1") == crowd[-1].value("select 1") == "1"
            for c in crowd:
                c.drop()
            crowd.clear()
    wait_until(lambda: (x := {r["list"]: r["items"] for r in p.show("LISTS")})["used_clients"] == "1" and
               x["login_clients"] == "0", "nothing is left of them")


@pytest.mark.one_engine
def test_r135_many_pools(pooler, pg):
    """Hundreds of databases that only `*` knows, one client each: their pools go, those in use and paused stay."""
    p = pooler(databases={"*": None}, pool_idle_timeout=1, server_idle_timeout=1, autodb_idle_timeout=1,
               default_pool_size=2)
    p.databases["*"] = f"{p.server} dbname=p0"
    p.write_ini()
    p.admin("RELOAD")
    with p.login(database="used") as used:
        used.query("begin")
        p.admin("PAUSE paused")
        paused = p.wire().start(database="paused")
        for i in range(150):
            with p.login(database=f"db{i}") as c:
                assert c.value("select current_database()") == "p0"
        wait_until(lambda: len([r for r in p.show("POOLS") if r["database"].startswith("db")]) == 0, "their pools are gone")
        wait_until(lambda: not [r for r in p.show("DATABASES") if r["name"].startswith("db")], "and their databases")
        assert p.pool("used")["sv_active"] == 1 and p.pool("paused") is not None
        assert used.query("commit")[0].tag == "COMMIT"
        p.admin("RESUME paused")
        assert paused.authenticate()[-1].type == "Z" and paused.value("select 1") == "1"
        with p.login(database="db7") as c:
            assert c.value("select 'again'") == "again"
        paused.close()


@pytest.mark.workers(1, 4)
@pytest.mark.one_engine
def test_r136_eviction_instead_of_deadlock(pooler, pg):
    """One connection to the database for three pools of which one keeps a minimum: they take turns, nobody is stuck."""
    p = pooler(max_db_connections=1, default_pool_size=3, server_idle_timeout=0)
    with p.login() as a, p.login("bob") as b, p.login("carol") as c:
        for i in range(15):
            for w in (a, b, c):
                assert w.value(f"select {i}") == str(i)
                assert len(pg.backends("datname = 'p0'")) <= 1
        a.query("begin")
        b.send(query("select 'b'"))
        wait_until(lambda: p.pool(user="bob")["cl_waiting"] == 1, "bob waits: the one in use is not taken away")
        assert a.query("commit")[0].tag == "COMMIT"
        assert b.until()[1].row == ["b"]
        p.settings |= {"max_db_connections": 3, "min_pool_size": 2}
        p.write_ini()
        p.admin("RELOAD")  # minima that do not fit together: nobody is thrown out for one
        for w in (a, b, c):
            assert w.value("select 1") == "1"
        a.query("begin")
        pid = a.value("select pg_backend_pid()")
        for w in (b, c, b, c):
            assert w.value("select 2") == "2"
        assert a.value("select pg_backend_pid()") == pid
        a.query("commit")


# ------------------------------------------------------------------------------------------------- 138: clocks

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void start(void) {
  int fd = open(getenv("CLOCK_FILE"), O_RDWR | O_CLOEXEC);
  if (fd >= 0) offset = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
int clock_gettime(clockid_t clock, struct timespec *t) {
  int result = syscall(SYS_clock_gettime, clock, t);
  if (offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += *offset;
  return result;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
"""


@pytest.mark.skipif(SANITIZED, reason="sanitizers want to be loaded first")
@pytest.mark.one_engine
def test_r138_the_clock_jumps(make_pooler, pg):
    """Days ahead and back while clients are idle, in a transaction and in the queue: only the log notices."""
    p = make_pooler(default_pool_size=1, client_idle_timeout=600, idle_transaction_timeout=600, query_wait_timeout=600,
                    server_idle_timeout=600, server_lifetime=600, query_timeout=600, transaction_timeout=600)
    source, library, clock = p.dir / "clock.c", p.dir / "clock.so", p.dir / "clock"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    clock.write_bytes(b"\0" * 4096)
    p.extra_env = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(clock)}
    p.start()
    with p.login() as busy, p.login() as idle, p.login() as waits, p.login(database="p1") as other:
        other.value("select 1")
        busy.query("begin")
        pids = pg.backends()
        waits.send(query("select 'waited'"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "one waits")
        for hours in (1, 100, -1, -100, 0):
            with open(clock, "r+b") as f:
                f.write(struct.pack("q", hours * 3600))
            turns = [int(r["turns"]) for r in p.show("WORKERS")] if "turns" in p.show("WORKERS")[0] else None
            p.login("bob", "p1").close()
            p.login("carol", "p1").close()
            if turns:
                wait_until(lambda: all(int(r["turns"]) > t + 4 for r, t in zip(p.show("WORKERS"), turns)), "ticks went by")
            assert p.pool()["maxwait"] < 60
            assert set(pids) <= set(pg.backends())
            for what in ("CLIENTS", "SERVERS"):
                assert all(0 <= int(r["wait"]) < 60 and 0 <= int(r["wait_us"]) < 1_000_000 for r in p.show(what))
            assert all(int(v) >= 0 for r in p.show("STATS") for k, v in r.items() if k != "database")
        assert len({line[:10] for line in p.log().splitlines()}) >= 3, "the log has seen other days"
        assert busy.query("commit")[0].tag == "COMMIT"
        assert waits.until()[1].row == ["waited"]
        assert idle.value("select 1") == other.value("select 1") == "1"
        assert "timeout" not in p.log() and "closing because: server lifetime" not in p.log()
