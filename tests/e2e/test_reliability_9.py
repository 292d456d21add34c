"""Server death and failover of a single host: 111 to 113 and 115 to 120 of the reliability catalogue (docs/reliability.md). 114 is
test_hosts_network.py, lists of hosts are test_hosts.py."""
import contextlib
import os
import random
import signal
import threading
import time

import pytest

import wire
from clusters import independent
from conftest import code_is, wait_until
from fakes import DONE, Scripted, row
from test_hosts import refusal
from test_pool import pid_of
from wire import query

pytestmark = pytest.mark.ours


@pytest.fixture(scope="module")
def own():
    """A PostgreSQL of this file's own: it is ended in all ways there are."""
    with independent(["127.0.0.71"]) as (server,):
        server.sql("create table ledger (who text, n int)")
        yield server


@pytest.fixture
def single(pooler, own):
    def start(**settings):
        return pooler(**{"query_wait_timeout": 60, **settings},
                      databases={"db": f"host={own.address} port={own.port} dbname=p0"})
    return start


def back(own):
    """It is up, whatever has happened to it."""
    wait_until(own.ready, "PostgreSQL is back")


# ---------------------------------------------------------------------------------------------- 111

WAYS = ["terminate", "kill"]  # one backend is told to go; or dies, and all others with it


def end_backend(own, how, pid):
    if how == "terminate":
        own.sql("select pg_terminate_backend(%s)", int(pid))
    else:
        os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the backend is gone")
    back(own)


def alive(pid):
    with contextlib.suppress(OSError):
        os.kill(int(pid), 0)
        return True
    return False


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("when", ["query", "transaction", "copy"])
def test_r111_backend_dies(single, own, how, when):
    """Its client is told once, with PostgreSQL's words or ours; nothing is said again; whoever comes is served."""
    own.sql("truncate ledger")
    p = single()
    with p.login(database="db") as c, p.login(database="db") as other:
        c.query("begin")
        pid = pid_of(c)
        if when == "query":
            c.send(query("insert into ledger select 'c', 1 from pg_sleep(600)"))
            wait_until(lambda: own.backends("query like 'insert%'"), "it is under way")
        elif when == "copy":
            c.send(query("copy ledger from stdin"))
            c.until("G")
        else:
            c.query("insert into ledger values ('c', 1)")
        other.value("select 1")
        end_backend(own, how, pid)
        if when != "query":
            with contextlib.suppress(wire.Closed):
                c.send(query("select 1") if when == "transaction" else wire.msg("d", b"c\t1\n") + wire.msg("c"))
        out = c.until_closed()
        (error,) = [m for m in out if m.type == "E"]
        assert error.fields["S"] == "FATAL"
        assert error.code == "57P01" if how == "terminate" and error.code != "08006" else code_is(error.code, "08006"), error
        assert other.value("select 2") == "2"
        assert other.value("select count(*) from ledger") == "0"
    with p.login(database="db") as c:
        assert c.value("select 3") == "3"


@pytest.mark.parametrize("how", WAYS)
def test_r111_idle_backend_dies(single, own, how):
    """That is noticed before anybody gets it."""
    p = single()
    with p.login(database="db") as c:
        for _ in range(3):
            end_backend(own, how, pid_of(c))
            assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- 112

def test_r112_restarts_under_load(single, own):
    """Ten of them, in three ways, with more clients than servers. Those whose transaction was under way are told, once; the
    others wait, and are served. Nobody is told what a server says that is starting up."""
    p = single(default_pool_size=4, server_login_retry=1)
    stop, errors, done, broken = threading.Event(), [], [0] * 16, []

    def client(i):
        try:
            while not stop.is_set():
                with p.login(database="db") as c:
                    while not stop.is_set():
                        got = []
                        with contextlib.suppress(wire.Closed):
                            got = c.query("select pg_sleep(0.01)")
                        if not got or got[-1].type != "Z" or any(m.type == "E" for m in got):
                            errors.append(next((m.text for m in got if m.type == "E"), "closed"))
                            break
                        done[i] += 1
        except Exception as e:
            broken.append(repr(e))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(done))]
    for t in threads:
        t.start()
    try:
        for n in range(10):
            before = list(done)
            wait_until(lambda: all(a > b + 5 for a, b in zip(done, before)), "all are served")
            seen = len(errors)
            own.stop([signal.SIGINT, signal.SIGQUIT, signal.SIGKILL][n % 3])
            wait_until(lambda: not own_processes(own), "all of it has ended")
            time.sleep(0.2)
            own.start()
            before = list(done)
            wait_until(lambda: all(a > b for a, b in zip(done, before)) or broken, "all are served again")
            assert not broken, broken
            assert len(errors) - seen <= 4, errors[seen:]
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not [e for e in errors if "starting up" in e or "login" in e], errors
    assert not broken


def own_processes(own):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd") == str(own.data):
                found.append(pid)
    return found


# ---------------------------------------------------------------------------------------------- 113

CODES = [("53300", "sorry, too many clients already"), ("28P01", "password authentication failed"),
         ("3D000", 'database "x" does not exist')]


def answers(link):
    while True:
        link.recv()
        link.send(row("1"), DONE)


@pytest.mark.parametrize("code,text", CODES)
def test_r113_login_refused(pooler, code, text):
    """With no server that works, those who wait are told what it said; who logs in before the next try is told what that brings.
    With one that works, all go on."""
    fake = Scripted(answers)
    works = fake.login
    p = pooler(default_pool_size=2, server_login_retry=1, query_wait_timeout=30,
               databases={"db": f"host=127.0.0.1 port={fake.port} dbname=p0"})
    fake.login = refusal(code, text)
    with p.wire() as a:
        a.start(database="db")
        m = a.fatal()
        assert (m.code, text in m.text) == (code, True), m.fields
    with p.wire() as b:
        b.start(database="db")
        m = b.fatal()
        assert (m.code, text in m.text) == (code, True), m.fields
    fake.login = works
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(3)]
        clients[0].query("select 1")
        fake.login = refusal(code, text)
        for _ in range(5):  # one server for three: a second one is refused, and nobody hears of it
            for c in clients:
                c.send(query("select 1"))
            for c in clients:
                assert [m.type for m in c.until("Z")] == ["D", "C", "Z"]


def test_r113_starting_up_is_worth_the_wait(pooler):
    """57P03: clients that wait go on waiting, also those that come now."""
    fake = Scripted(answers)
    works, fake.login = fake.login, refusal("57P03", "the database system is starting up")
    p = pooler(server_login_retry=1, query_wait_timeout=30, databases={"db": f"host=127.0.0.1 port={fake.port} dbname=p0"})
    with p.wire() as a, p.wire() as b:
        a.start(database="db")
        p.wait_log("the database system is starting up")
        b.start(database="db")
        wait_until(lambda: p.log().count("the database system is starting up") > 1, "it is tried again")
        fake.login = works
        for c in (a, b):
            c.authenticate()
            assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- 115

def test_r115_frozen_backend_with_a_full_pipe(single, own):
    """A client sends without end to a server that stands still: what is read of it is bounded; then query_timeout says so."""
    p = single(query_timeout=4, default_pool_size=4)
    with p.login(database="db") as c, p.login(database="db") as other:
        c.query("begin")
        pid = int(pid_of(c))
        before = p.rss()
        os.kill(pid, signal.SIGSTOP)
        try:
            c.sock.settimeout(1)
            part, sent = b"x" * 65536, 0
            with contextlib.suppress(TimeoutError):
                c.send(b"Q" + (100_000_000 + 4).to_bytes(4, "big"))
                while sent < 100_000_000:
                    sent += c.sock.send(part)
            assert sent < 50_000_000
            assert other.value("select 1") == "1"
            if p.rss():
                assert p.rss() - before < 10_000_000
            c.sock.settimeout(30)
            assert c.fatal().text == "query timeout"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert other.value("select 2") == "2"


# ---------------------------------------------------------------------------------------------- 116

@pytest.mark.parametrize("when", ["after one byte", "before the answer", "before ReadyForQuery"])
def test_r116_nothing_is_said_again(pooler, when):
    """The server dies at the worst moments: the client is told each time, and the statement has run at most once."""
    ran = []

    def talk(link):
        if when == "after one byte":
            link.sock.recv(1)
            return
        link.recv()
        ran.append(link.number)
        if when == "before ReadyForQuery":
            link.send(wire.msg("C", b"INSERT 0 1\0"))

    fake = Scripted(talk)
    p = pooler(databases={"db": f"host=127.0.0.1 port={fake.port} dbname=p0"})
    for n in range(1, 6):
        with p.login(database="db") as c:
            c.send(query("insert into ledger values (1)"))
            out = c.until_closed()
            (error,) = [m for m in out if m.type == "E"]
            assert code_is(error.code, "08006")
            assert [m.type for m in out] == (["C", "E"] if when == "before ReadyForQuery" else ["E"])
        assert len(ran) == (0 if when == "after one byte" else n)
    assert len(set(ran)) == len(ran)


# ---------------------------------------------------------------------------------------------- 117

@pytest.mark.workers(4)
@pytest.mark.parametrize("listed", [1, 3])
def test_r117_a_dead_host_is_not_stormed(pooler, listed):
    """Many clients wait on all workers: the tries are those of one, by the clock, and removing the pool does not help them."""
    tries = []
    fake = Scripted(lambda link: tries.append(link.number), login=b"")  # takes connections and drops them
    p = pooler(server_login_retry=1, query_wait_timeout=60, databases={
        "db": f"host={','.join(['127.0.0.1'] * listed)} port={fake.port} dbname=p0"})
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(p.wire()).start(database="db")
        wait_until(lambda: p.pool("db")["cl_waiting"] == 200, "all wait")
        p.admin("RECONNECT db")
        p.admin("RELOAD")
        wait_until(lambda: len(tries) > 4, "it is tried again and again")
    assert len(tries) <= 2 + (time.monotonic() - began) / 0.4, tries


# ---------------------------------------------------------------------------------------------- 118

def test_r118_servers_of_one_burst_do_not_end_together(single):
    """server_lifetime is over for all of them at once; they go one by one, and those in use stay. min_pool_size is kept."""
    p = single(server_lifetime=4, default_pool_size=8, min_pool_size=2, server_idle_timeout=0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(8)]
        for c in clients:
            c.query("begin")
        held = pid_of(clients[0])
        for c in clients[1:]:
            c.query("commit")
        sizes = []

        def watch():
            sizes.append(len(p.show("SERVERS")))
            return p.log().count("server lifetime over") >= 7
        wait_until(watch, "their time is over")
        assert pid_of(clients[0]) == held
        # At once they would go from 8 to what is held and kept; so all steps are seen. A busy machine may miss one.
        assert len(set(sizes)) >= 4, sizes
        wait_until(lambda: len([s for s in p.show("SERVERS") if s["database"] == "db"]) >= 2, "some are kept")


# ---------------------------------------------------------------------------------------------- 119

@pytest.mark.workers(1, 4)
def test_r119_no_place_gets_lost(single, own):
    """Clients that leave while they wait, log in, run something; servers that die; connects that fail: then the pool has all its
    places, and a wrong count would show."""
    p = single(default_pool_size=3, server_login_retry=1)
    rng = random.Random(119)

    def odd(i):
        for _ in range(40):
            c = p.wire()
            with contextlib.suppress(wire.Closed, OSError, AssertionError):
                way = rng.randrange(6)
                c.start(database="db" if way else "nowhere")
                if way > 1:
                    c.authenticate()
                    c.send(query(["select 1", "select pg_sleep(0.01)", "begin", "select pg_terminate_backend(pg_backend_pid())"][way - 2]))
                if rng.randrange(2):
                    c.until("Z")
            c.drop()

    for _ in range(2):
        threads = [threading.Thread(target=odd, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        own.stop()
        own.start()
        for t in threads:
            t.join()
    wait_until(lambda: (x := p.pool("db")) and not x["cl_active"] + x["cl_waiting"] + x["sv_active"], "all are gone")
    with p.console() as console:
        console.query("RECONNECT")  # a server may be idle here and just being terminated there
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(4)]
        for c in clients[:3]:
            c.query("begin")
        assert len({pid_of(c) for c in clients[:3]}) == 3
        clients[3].send(query("select 1"))
        wait_until(lambda: p.pool("db")["cl_waiting"] == 1, "there is no fourth place")
        clients[0].query("commit")
        assert clients[3].until("Z")[1].row == ["1"]
    assert next(r for r in p.show("DATABASES") if r["name"] == "db")["current_connections"] in ("1", "2", "3")


# ---------------------------------------------------------------------------------------------- 120

@pytest.mark.workers(8)
def test_r120_no_wake_up_is_lost(single):
    """One server, 8 workers, 256 clients, short queries. All that a lost wake-up needs to show is that somebody stands still."""
    p = single(default_pool_size=1)
    stop, done, errors = threading.Event(), [0] * 256, []

    def group(mine):
        with contextlib.ExitStack() as stack:
            clients = {i: stack.enter_context(p.login(database="db")) for i in mine}
            while not stop.is_set():
                for c in clients.values():
                    c.send(query("select 1"))
                for i, c in clients.items():
                    if [m.type for m in c.until("Z")] != ["T", "D", "C", "Z"]:
                        errors.append(i)
                    done[i] += 1

    threads = [threading.Thread(target=group, args=(range(i, 256, 8),)) for i in range(8)]
    for t in threads:
        t.start()
    try:
        wait_until(lambda: min(done) >= 20 or errors, "each has been served twenty times", 120)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not errors
    assert len(p.show("SERVERS")) == 1
