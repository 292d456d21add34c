"""Pooling: the release rule, resets, ageing, queueing, tracked parameters, limits over all workers together."""
import contextlib
import threading
import time

import pytest

import wire
from conftest import code_is, free_port, wait_until


def pid_of(c):
    return c.value("select pg_backend_pid()")


# ---------------------------------------------------------------------------------------------- release

@pytest.mark.workers(1, 4)
def test_two_clients_share_one_server(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        assert pid_of(a) == pid_of(b) == pid_of(a)


@pytest.mark.workers(1, 4)
def test_begin_holds_the_server(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("begin")
        pid = pid_of(a)
        b.send(wire.query("select pg_backend_pid()"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "b waits")
        assert pid_of(a) == pid
        a.query("commit")
        assert b.until("Z")[1].row == [pid]


def test_release_waits_for_every_reply(pooler):
    """Three queries in one write: the server is not free after the first ReadyForQuery."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        pid_of(a)
        a.send(wire.query("select pg_sleep(0.2), 1"), wire.query("begin"), wire.query("select 2"), wire.query("commit"))
        b.send(wire.query("select txid_current_if_assigned()"))
        assert b.until("Z")[1].row == [None]
        assert [a.until("Z")[-1].body for _ in range(4)] == [b"I", b"T", b"T", b"I"]


@pytest.mark.workers(1, 4)
def test_idle_server_serves_every_worker(pooler, pg):
    """pool_size 1: whichever worker has the server, the clients of all others get it in turn."""
    p = pooler(default_pool_size=1)
    clients = [p.login() for _ in range(24)]
    pids = {pid_of(c) for _ in range(5) for c in clients}
    assert len(pids) == 1
    for c in clients:
        c.send(*[wire.query("select pg_backend_pid()")] * 5)
    for c in clients:
        assert {c.until("Z")[1].row[0] for _ in range(5)} == pids
    for c in clients:
        c.close()
    assert len(pg.backends("usename = 'alice'")) == 1


@pytest.mark.ours
@pytest.mark.one_engine
def test_two_clients_take_two_servers(pooler, pg):
    """They log in and ask at the same moment, on two workers, of a pool that has no server yet. One that is on its way from
    worker to worker is no reason to open a third."""
    p = pooler(databases={"*": f"host=127.0.0.1 port={pg.port} dbname=p0"})
    both = threading.Barrier(2)

    def client(database):
        with p.wire() as c:
            both.wait()
            c.login(database=database)
            c.send(wire.query("select pg_sleep(0.05)"))
            c.until("Z")
            both.wait()

    names = [f"d{i}" for i in range(150)]
    for name in names:
        threads = [threading.Thread(target=client, args=(name,)) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    opened = [line for line in p.log().splitlines() if "new connection to server" in line]
    count = {name: sum(f" {name}/" in line for line in opened) for name in names}
    assert all(count.values()) and not [n for n in count.values() if n > 2], count


@pytest.mark.workers(2, 4)
def test_no_client_starves(pooler):
    """No lost wake-up: many clients, one server, short queries; all of them finish."""
    p = pooler(default_pool_size=1)
    done = []

    def work(i):
        with p.login() as c:
            for n in range(50):
                assert c.value(f"select {i * 1000 + n}") == str(i * 1000 + n)
        done.append(i)
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(32)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert len(done) == 32


@pytest.mark.workers(1, 4)
@pytest.mark.parametrize("state", ["in transaction", "query running", "copy in", "half a message", "unread result"])
def test_client_killed_with_a_server(pooler, pg, state):
    """The transaction is rolled back, the next client gets a clean server, nothing leaks."""
    p = pooler(default_pool_size=1)
    pg.sql("truncate t")
    c = p.login()
    c.query("begin")
    c.query("insert into t (v) values ('lost')")
    if state == "query running":
        c.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: pg.backends("query like '%pg_sleep(600)%' and state = 'active'"), "the query runs")
    elif state == "copy in":
        c.send(wire.query("copy t (v) from stdin"))
        assert c.until("G")
        c.send(wire.msg("d", b"row\n"))
    elif state == "half a message":
        c.send(wire.query("select 1" + " " * 100000)[:50000])
    elif state == "unread result":
        c.send(wire.query("select repeat('x', 10000) from generate_series(1, 10000)"))
    c.drop()
    with p.login() as b:
        assert b.value("select count(*) from t") == "0"
        assert b.query("select 1")[-1].body == b"I"
    pool = wait_until(lambda: (x := p.pool())["cl_active"] == 0 and x, "client gone")
    assert pool["sv_active"] == 0 and pool["cl_waiting"] == 0


def test_waiting_client_that_leaves_costs_nothing(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.query("begin")
        waiting = [p.login() for _ in range(5)]
        for w in waiting:
            w.send(wire.query("insert into t (v) values ('never')"))
        wait_until(lambda: p.pool()["cl_waiting"] == 5, "all wait")
        for w in waiting:
            w.drop()
        a.query("commit")
        with p.login() as b:
            assert b.value("select 1") == "1"
        pool = wait_until(lambda: (x := p.pool())["cl_waiting"] == 0 and x["cl_active"] == 1 and x)
        assert pool["sv_active"] == 0
        assert a.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- session mode

def test_session_mode_keeps_the_server(pooler):
    p = pooler(pool_mode="session", default_pool_size=1)
    with p.login() as a:
        pid = pid_of(a)
        a.query("set work_mem = '7MB'")
        a.query("select 1/0")
        with p.login() as b:
            b.send(wire.query("show work_mem"))
            wait_until(lambda: p.pool()["cl_waiting"] == 1, "b waits")
            assert pid_of(a) == pid and a.value("show work_mem") == "7MB"
            a.send(wire.TERMINATE)
            a.close()
            assert b.until("Z")[1].row != ["7MB"]
            assert pid_of(b) == pid


@pytest.mark.parametrize("query, reset", [("DISCARD ALL", True), ("", False), ("set work_mem = '9MB'", None)])
def test_server_reset_query(pooler, query, reset):
    p = pooler(pool_mode="session", default_pool_size=1, server_reset_query=query)
    with p.login() as a:
        a.query("set work_mem = '7MB'")
        pid = pid_of(a)
        a.send(wire.TERMINATE)
    with p.login() as b:
        assert pid_of(b) == pid
        expected = {True: "4MB", False: "7MB", None: "9MB"}[reset]
        assert b.value("show work_mem") == expected


def test_reset_query_is_not_sent_in_transaction_mode(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("set work_mem = '7MB'")
        assert b.value("show work_mem") == "7MB"


def test_reset_query_always(pooler):
    p = pooler(default_pool_size=1, server_reset_query_always=1)
    with p.login() as a, p.login() as b:
        a.query("set work_mem = '7MB'")
        assert b.value("show work_mem") == "4MB"


def test_failing_reset_query_is_ignored(pooler):
    p = pooler(pool_mode="session", default_pool_size=1, server_reset_query="select 1/0")
    for _ in range(3):
        with p.login() as a:
            assert a.value("select 1") == "1"
            a.send(wire.TERMINATE)


# ---------------------------------------------------------------------------------------------- ageing and checks

def test_server_lifetime(pooler, pg):
    p = pooler(server_lifetime=1)
    with p.login() as c:
        pid = pid_of(c)
        wait_until(lambda: not pg.backends(f"pid = {pid}"), "the old server is gone")
        assert pid_of(c) != pid
    p.wait_log("server lifetime over")


def test_server_lifetime_spares_transactions(pooler, pg):
    p = pooler(server_lifetime=1)
    with p.login() as c:
        c.query("begin")
        pid = pid_of(c)
        time.sleep(2)
        assert pid_of(c) == pid
        c.query("commit")
        wait_until(lambda: not pg.backends(f"pid = {pid}"), "closed at release")


def test_server_idle_timeout(pooler, pg):
    p = pooler(server_idle_timeout=1)
    with p.login() as c:
        pid = pid_of(c)
        wait_until(lambda: not pg.backends(f"pid = {pid}"), "the idle server is gone")
        assert pid_of(c) != pid
    p.wait_log("server idle timeout")


@pytest.mark.workers(1, 3)
def test_min_pool_size(pooler, pg):
    p = pooler(min_pool_size=3)
    with p.login() as c:
        pid_of(c)
        wait_until(lambda: len(pg.backends("usename = 'alice'")) == 3, "three servers")
        time.sleep(1)
        assert len(pg.backends("usename = 'alice'")) == 3


def test_server_check_query(pooler, pg):
    pg.sql("create table if not exists checks (v text); truncate checks")
    p = pooler(default_pool_size=1, server_check_delay=0, server_check_query="insert into checks values ('seen')")
    with p.login() as c:
        for _ in range(5):
            assert c.value("select 1") == "1"
    assert len(pg.backends("usename = 'alice'")) == 1
    assert pg.sql("select count(*) from checks")[0][0] >= 3


def test_query_wait_timeout(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        p.admin("SET query_wait_timeout = 1")
        a.query("begin")
        b.send(wire.query("select 1"))
        error = b.fatal()
        assert error.text == "query_wait_timeout"
        assert a.query("commit")[-1].body == b"I"
        assert a.value("select 1") == "1"


def test_query_wait_notify(pooler):
    p = pooler(default_pool_size=1, query_wait_notify=1)
    with p.login() as a, p.login() as b:
        a.query("begin")
        b.send(wire.query("select 1"))
        notice = b.recv()
        assert notice.type == "N"
        assert notice.text == "No server connection available in postgres backend, client being queued"
        a.query("commit")
        assert b.until("Z")[1].row == ["1"]


@pytest.mark.parametrize("setting, text, steps", [
    ("client_idle_timeout", "client_idle_timeout", []),
    ("idle_transaction_timeout", "idle transaction timeout", ["begin"]),
    ("transaction_timeout", "transaction timeout", ["begin"]),
    ("query_timeout", "query timeout", [None]),
    ("client_login_timeout", "client_login_timeout", None),
])
def test_timeouts_of_clients(pooler, pg, setting, text, steps):
    p = pooler(**{setting: 1})
    with p.wire() as c:
        if steps is not None:
            c.login()
            for sql in steps:
                c.send(wire.query(sql or "select pg_sleep(600)"))
                if sql:
                    c.until("Z")
        assert c.fatal().text == text
    wait_until(lambda: not pg.backends("state = 'idle in transaction'"), "the server was cleaned")
    with p.login() as c:
        assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- opening servers

def test_backend_down_then_up(pooler):
    """Nobody listens: the first login waits and then fails clearly; it works as soon as the server is there."""
    port = free_port()
    p = pooler(databases={"down": f"host=127.0.0.1 port={port} dbname=p0 query_wait_timeout=2"},
               client_login_timeout=3)
    with p.wire() as c:
        c.start(database="down")
        out = c.until_closed()
        assert [m.type for m in out][-1] == "E"
        assert out[-1].text in ("query_wait_timeout", "client_login_timeout (server down)"), out[-1].text
    with p.login() as c:
        assert c.value("select 1") == "1"
    p.wait_log("connect failed")


def test_silent_backend(pooler):
    """Accepts and never answers: server_connect_timeout ends it, and nobody else notices."""
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(50)
        p = pooler(databases={"silent": f"host=127.0.0.1 port={s.getsockname()[1]} dbname=p0"},
                   server_connect_timeout=1, query_wait_timeout=4)
        with p.wire() as c:
            c.start(database="silent")
            with p.login() as other:
                assert other.value("select 1") == "1"
            assert c.fatal().text in ("query_wait_timeout", "client_login_timeout (server down)", "connect timeout")
        p.wait_log("connect timeout")


def test_cached_login_error(pooler, pg):
    """A logged-in client whose server cannot be opened again is told why."""
    role = "temp_role"
    pg.sql(f"drop role if exists {role}; create role {role} login")
    p = pooler(userlist={role: ""}, server_login_retry=60)
    with p.login(role) as c:
        pg.sql(f"alter role {role} nologin")
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", role)
        wait_until(lambda: not pg.backends(f"usename = '{role}'"), "its server is gone")
        time.sleep(1)
        c.send(wire.query("select 1"))
        error = c.fatal()
        assert "not permitted to log in" in error.text or "server conn" in error.text, error.text
    pg.sql(f"drop role {role}")


# ---------------------------------------------------------------------------------------------- tracked parameters

@pytest.mark.workers(1, 4)
def test_tracked_parameters_follow_the_client(pooler):
    p = pooler(default_pool_size=1)
    zones = ["Asia/Tokyo", "America/New_York", "Europe/Berlin"]
    styles = ["German, DMY", "SQL, MDY", "ISO, YMD"]
    encodings = ["LATIN1", "UTF8", "SQL_ASCII"]
    clients = [p.login(application_name=f"app '{i}'\\", TimeZone=zones[i], DateStyle=styles[i],
                       client_encoding=encodings[i]) for i in range(3)]
    for _ in range(10):
        for i, c in enumerate(clients):
            assert c.value("show application_name") == f"app '{i}'\\"
            assert c.value("show timezone") == zones[i]
            assert c.value("show datestyle") == styles[i]
            assert c.value("show client_encoding") == encodings[i]
    clients[0].query("set timezone = 'Europe/Paris'")
    clients[1].query("set application_name = 'x''; drop table t; --'")
    for _ in range(5):
        assert [c.value("show timezone") for c in clients] == ["Europe/Paris"] + zones[1:]
        assert clients[1].value("show application_name") == "x'; drop table t; --"
        assert clients[2].value("show application_name") == "app '2'\\"
    for c in clients:
        c.close()


def test_parameter_status_at_login(pooler):
    p = pooler()
    with p.login(application_name="hello", TimeZone="Asia/Tokyo") as c:
        assert c.params["application_name"] == "hello"
        assert c.params["TimeZone"] == "Asia/Tokyo"
        assert {"server_version", "server_encoding", "client_encoding", "DateStyle", "integer_datetimes",
                "standard_conforming_strings", "IntervalStyle"} <= set(c.params)


def test_invalid_tracked_parameter(pooler):
    p = pooler(default_pool_size=1)
    with p.login(TimeZone="Mars/Olympus") as c:
        c.send(wire.query("select 1"))
        assert c.fatal().text == "invalid server parameter"
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_set_in_rolled_back_transaction(pooler):
    p = pooler(default_pool_size=1)
    with p.login(application_name="before") as a, p.login(application_name="other") as b:
        a.query("begin")
        a.query("set application_name = 'inside'")
        a.query("rollback")
        assert b.value("show application_name") == "other"
        assert a.value("show application_name") == "before"


# ---------------------------------------------------------------------------------------------- limits

class Sampler(threading.Thread):
    """Counts the pooler's backends every 10 ms, as PostgreSQL sees them: those that are just exiting included."""

    def __init__(self, pg, group, limit):
        super().__init__(daemon=True)
        self.pg, self.group, self.limit = pg, group, limit
        self.most, self.samples, self.bad = 0, 0, []
        self.over = threading.Event()

    def run(self):
        with self.pg.connect() as c:
            while not self.over.is_set():
                rows = c.execute(f"select {self.group}, count(*) from pg_stat_activity where client_addr is not null "
                                 "and backend_type = 'client backend' and datname is not null group by 1").fetchall()
                top = max((n for _, n in rows), default=0)
                self.samples += 1
                self.most = max(self.most, top)
                if top > self.limit:
                    self.bad.append(rows)
                time.sleep(0.01)


def load(p, who, clients=40, rounds=30):
    """`clients` threads over the (user, database) pairs of `who`."""
    errors = []

    def work(i):
        user, database = who[i % len(who)]
        try:
            with p.login(user, database) as c:
                for n in range(rounds):
                    assert c.value(f"select {n} from pg_sleep(0.002)") == str(n)
        except Exception as e:  # noqa: BLE001
            errors.append(e)
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(clients)]
    [t.start() for t in threads]
    [t.join(200) for t in threads]
    assert not errors, errors[:3]


LIMITS = {
    "pool_size": (dict(default_pool_size=3), [("alice", "p0")], "usename || datname", 3),
    "reserve": (dict(default_pool_size=2, reserve_pool_size=2, reserve_pool_timeout=0.01), [("alice", "p0")],
                "usename || datname", 4),
    "max_db_connections": (dict(default_pool_size=4, max_db_connections=5),
                           [("alice", "p0"), ("bob", "p0"), ("carol", "p0")], "datname", 5),
    "max_user_connections": (dict(default_pool_size=4, max_user_connections=5), [("alice", "p0"), ("alice", "p1")],
                             "usename", 5),
}


@pytest.mark.workers(4)
@pytest.mark.parametrize("name", LIMITS)
def test_limit_is_never_exceeded(pooler, pg, name):
    settings, who, group, limit = LIMITS[name]
    wait_until(lambda: not pg.backends(), "no backends left from before")
    p = pooler(**settings)
    sampler = Sampler(pg, group, limit)
    sampler.start()
    try:
        load(p, who)
    finally:
        sampler.over.set()
        sampler.join()
    assert sampler.samples > 10 and not sampler.bad, (sampler.most, sampler.bad[:3])
    if name in ("pool_size", "max_user_connections", "max_db_connections"):
        assert sampler.most >= limit, "the limit was used, none of it lay idle"


@pytest.mark.workers(1, 4)
def test_max_client_conn_is_exact(pooler):
    p = pooler(max_client_conn=20)
    got, refused, lock = [], [], threading.Lock()

    def work():
        c = p.wire()
        c.start()
        out = c.authenticate()
        with lock:
            (got if out[-1].type == "Z" else refused).append((c, out[-1]))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(45)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert (len(got), len(refused)) == (20, 25)
    for _, error in refused:
        assert error.text == "no more connections allowed (max_client_conn)"
        assert error.fields["S"] == "FATAL" and code_is(error.code, "53300")
    for c, _ in got:
        assert c.value("select 1") == "1"
    with p.console() as c:  # not counted for the console
        assert c.query("SHOW VERSION")[-1].type == "Z"
    for c, _ in refused:
        c.close()
    got.pop()[0].close()

    def again():
        with contextlib.suppress(wire.Closed):
            c = p.wire()
            c.start()
            return c.authenticate()[-1].type == "Z" and c
    wait_until(again, "the slot is free again")


@pytest.mark.workers(1, 4)
def test_idle_connections_count_for_max_client_conn(pooler):
    """Sockets that never log in are clients too; they do not shut out the console."""
    p = pooler(max_client_conn=5, tcp_defer_accept=0)
    silent = [p.wire() for _ in range(5)]

    def full():
        with p.wire() as c:
            c.start()
            out = c.authenticate()
            return out[-1].type == "E" and out[-1].text == "no more connections allowed (max_client_conn)"
    wait_until(full, "the silent ones are counted")
    assert p.show("VERSION")
    for c in silent:
        c.close()

    def again():
        with p.wire() as c:
            c.start()
            return c.authenticate()[-1].type == "Z"
    wait_until(again, "slots are free again")


@pytest.mark.parametrize("setting", ["max_db_client_connections", "max_user_client_connections"])
@pytest.mark.workers(1, 4)
def test_client_limits(pooler, setting):
    p = pooler(**{setting: 3})
    clients = [p.login() for _ in range(3)]
    with p.wire() as c:
        error = c.start().fatal()
        assert error.text == f"client connections exceeded ({setting})" and code_is(error.code, "53300")
    for c in clients:
        c.close()


@pytest.mark.workers(1, 4)
def test_counters_return_to_zero(pooler, pg):
    p = pooler(default_pool_size=3)
    load(p, [("alice", "p0"), ("bob", "p0")], clients=20, rounds=10)
    for user in ("alice", "bob"):
        pool = wait_until(lambda: (x := p.pool(user=user)) and x["cl_active"] == 0 and x, "clients are gone")
        assert (pool["cl_waiting"], pool["sv_active"], pool["maxwait"]) == (0, 0, 0)
        assert 1 <= pool["sv_idle"] <= 3
    assert {r["list"]: r["items"] for r in p.show("LISTS")}["used_clients"] == "1"


def test_per_user_and_database_overrides(pooler):
    p = pooler(databases={}, users={"bob": "pool_mode=session"})
    p.databases["p1"] += " pool_mode=statement"
    p.write_ini()
    p.admin("RELOAD")
    with p.login("bob", "p1") as b:
        assert b.query("begin")[-1].body == b"T"
    with p.login("alice", "p1") as a:
        a.send(wire.query("begin"))
        assert a.fatal().text == "transaction blocks not allowed in statement pooling mode"
    with p.login("alice", "p0") as a:
        a.query("begin")
        assert a.query("commit")[-1].body == b"I"


@pytest.mark.workers(1, 4)
def test_pool_idle_timeout_frees_the_pool(pooler):
    p = pooler(pool_idle_timeout=1, server_idle_timeout=1)
    with p.login() as c:
        assert c.value("select 1") == "1"
    p.wait_log("cleaning up idle pool for user alice on db p0 because: pool idle timeout (age=")
    wait_until(lambda: p.pool() is None, "the pool is gone")
    with p.login() as c:  # and comes back when it is wanted
        assert c.value("select 1") == "1"
    assert p.pool()["sv_idle"] == 1


def test_fast_close_ends_idle_sessions_after_reconnect(pooler):
    """Session mode: a session between transactions gives way to a server of the new generation, one inside does not."""
    p = pooler(pool_mode="session", server_fast_close=1)
    with p.login() as idle, p.login() as busy:
        idle.value("select 1")
        busy.query("begin")
        p.admin("RECONNECT")
        assert idle.fatal().text == "database configuration changed"
        assert busy.value("select 1") == "1"
        busy.query("commit")
        assert busy.fatal().text == "database configuration changed"


def test_client_limits_on_the_console(pooler):
    """Statistics users count, administrators are exempt: they must get in when it matters."""
    p = pooler(max_db_client_connections=2)
    with p.console("stats"), p.console("stats"):
        with p.wire() as c:
            assert c.start("stats", "pgbouncer").fatal().text == "client connections exceeded (max_db_client_connections)"
        row = next(r for r in p.show("DATABASES") if r["name"] == "pgbouncer")
        assert (row["current_client_connections"], row["max_client_connections"]) == ("3", "2")


@pytest.mark.workers(1, 2)
def test_server_check_on_every_worker(pooler, pg):
    """A server that is lent to another worker is checked before its use like any other."""
    pg.sql("drop sequence if exists lent_checks; create sequence lent_checks")
    p = pooler(default_pool_size=1, server_check_delay=0, server_check_query="select nextval('lent_checks')")
    for _ in range(8):
        with p.login() as c:
            assert c.value("select 1") == "1"
    assert pg.sql("select last_value from lent_checks") == [(7,)]
