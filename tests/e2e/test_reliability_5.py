"""Section 5 of the reliability catalogue: borders of transactions, and state between clients."""
import threading
import time

import pytest

import wire
from conftest import wait_until
from fakes import DONE, LOGIN, READY, Scripted, bystander, row, with_fake  # noqa: F401
from test_reliability_3 import codes, types
from test_reliability_4 import rows
from wire import FLUSH, SYNC, Wire, bind, execute, msg, parse, query


def idle_again(p, user="alice"):
    pool = wait_until(lambda: (x := p.pool(user=user))["cl_active"] == 0 and x["sv_active"] == 0 and x, "all is idle")
    assert pool["cl_waiting"] == 0, pool


@pytest.fixture
def account(pg):
    pg.sql("drop table if exists account; create table account (id int primary key, v text)")
    pg.sql("insert into account values (1, 'old')")
    yield
    pg.sql("set lock_timeout = '10s'; drop table account")


# ------------------------------------------------------------------------------------ 63: dies in a transaction

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["reset", "close", "terminate", "half close", "idle timeout", "kill"])
def test_r63_client_dies_in_a_transaction(pooler, pg, account, how):
    p = pooler(default_pool_size=1, **({"idle_transaction_timeout": 1} if how == "idle timeout" else {}))
    c = p.login()
    c.query("begin")
    c.query("update account set v = 'new' where id = 1")
    pid = int(c.value("select pg_backend_pid()"))
    assert pg.sql("select count(*) from pg_locks where pid = %s and relation = 'account'::regclass", pid) != [(0,)]
    if how == "reset":
        c.drop()
    elif how == "close":
        c.close()
    elif how == "terminate":
        c.send(wire.TERMINATE)
    elif how == "half close":
        c.sock.shutdown(1)
    elif how == "idle timeout":
        assert c.fatal().text == "idle transaction timeout"
    else:
        who = next(r for r in p.show("CLIENTS") if r["user"] == "alice")
        p.admin(f"KILL_CLIENT {who['id']}")
        assert c.fatal().text == "admin forced disconnect"
    wait_until(lambda: pg.sql("select count(*) from pg_locks where relation = 'account'::regclass") == [(0,)], "locks are gone")
    with p.login() as b:
        out = b.query("select v from account for update nowait")
        assert rows(out) == [["old"]] and out[-1].body == b"I"
    idle_again(p)


# ------------------------------------------------------------------------------------------ 64: answers are owed

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["half read", "nothing read", "sync not read", "flush", "many"])
def test_r64_client_dies_with_answers_owed(pooler, pg, how):
    """Five in a row on a pool of one: the next one gets only its own rows, and no place is lost."""
    p = pooler(default_pool_size=1)
    pg.sql("truncate t")
    for i in range(5):
        c = p.wire(rcvbuf=8192).login()
        if how in ("half read", "nothing read"):
            c.send(query(f"select 'secret {i}', repeat('x', 10000) from generate_series(1, 3000)"))
            if how == "half read":
                c.exactly(50_000)
        elif how == "sync not read":
            c.send(parse("", f"select 'secret {i}'") + bind("", "") + execute() + SYNC)
        elif how == "flush":  # executed, answered, never committed
            c.send(parse("", f"insert into t (v) values ('secret {i}')") + bind("", "") + execute() + FLUSH)
            assert [c.recv().type for _ in range(3)] == ["1", "2", "C"]
        else:
            c.send(*[query(f"select 'secret {i} {n}' from pg_sleep(0.001)") for n in range(200)])
        c.drop()
        with p.login() as b:
            out = b.query(f"select 'mine {i}'")
            assert types(out) == "TDCZ" and rows(out) == [[f"mine {i}"]] and out[-1].body == b"I"
            assert b.value("select count(*) from t") == "0"
    idle_again(p)
    wait_until(lambda: len(pg.backends("usename = 'alice'")) == 1, "one server, as before")


# -------------------------------------------------------------------------------------- 65: in the middle of a message

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("kind", ["bind", "named bind", "query", "copy data", "parse"])
def test_r65_client_dies_in_the_middle_of_a_message(pooler, pg, account, kind):
    """The server waits for the rest of it, with locks held: it is closed at once."""
    p = pooler(default_pool_size=1)
    c = p.login()
    c.query("begin")
    c.query("update account set v = 'new'")
    pid = int(c.value("select pg_backend_pid()"))
    big = "x" * 300_000
    if kind == "bind":
        c.send(parse("", "select $1"), bind("", "", [big])[:150_000])
    elif kind == "named bind":
        c.send(parse("s", "select $1"), bind("", "s", [big])[:150_000])
    elif kind == "query":
        c.send(query(f"select '{big}'")[:150_000])
    elif kind == "parse":
        c.send(parse("", f"select '{big}'")[:150_000])
    else:
        c.send(query("copy t (v) from stdin"))
        c.until("G")
        c.send(msg("d", big.encode())[:150_000])
    wait_until(lambda: pg.sql("select wait_event from pg_stat_activity where pid = %s", pid) == [("ClientRead",)], "it waits")
    c.drop()
    wait_until(lambda: not pg.backends(f"pid = {pid}"), "the server is gone")
    with p.login() as b:
        assert b.value("select v from account for update nowait") == "old"
        assert b.value("select pg_backend_pid()") != str(pid)
    idle_again(p)


# ------------------------------------------------------------------------------------------ 66: only after delivery

@pytest.mark.workers(1, 2)
def test_r66_slow_readers_of_one_server(pooler):
    """20 clients leave 90 kB each unread, all from one server, which goes on to serve others: every byte is its own."""
    p = pooler(default_pool_size=1)
    slow = [p.wire(rcvbuf=4096).login() for _ in range(20)]
    with p.login() as quick:
        for n in range(3):
            for i, c in enumerate(slow):
                c.send(query(f"select repeat('{chr(97 + i)}', 30000), {i}, {n}"))
            for k in range(10):
                assert quick.value(f"select repeat('{k}', 40000)") == str(k) * 40000
    for n in range(3):
        for i, c in enumerate(slow):
            out = c.until()
            assert types(out) == "TDCZ"
            assert rows(out) == [[chr(97 + i) * 30000, str(i), str(n)]]
    for c in slow:
        c.close()
    idle_again(p)


# --------------------------------------------------------------------------------------- 67: tracked parameters

SETTINGS = [{"TimeZone": "Asia/Tokyo", "DateStyle": "German, DMY", "client_encoding": "LATIN1", "application_name": "first",
             "IntervalStyle": "iso_8601", "standard_conforming_strings": "off"},
            {"TimeZone": "America/New_York", "DateStyle": "SQL, MDY", "client_encoding": "UTF8", "application_name": "First",
             "IntervalStyle": "sql_standard", "standard_conforming_strings": "on"},
            {"TimeZone": "UTC", "DateStyle": "ISO, YMD", "client_encoding": "SQL_ASCII", "application_name": "x'\\",
             "IntervalStyle": "postgres_verbose", "standard_conforming_strings": "off"}]


@pytest.mark.workers(1, 2)
def test_r67_each_client_its_own_parameters(pooler):
    """600 changes of hands on one server (the catalogue's 100,000, scaled): each sees its six values each time."""
    p = pooler(default_pool_size=1)
    clients = [p.login(**s) for s in SETTINGS]
    sql = "select " + ", ".join(f"current_setting('{k}')" for k in SETTINGS[0])
    for n in range(200):
        for c, s in zip(clients, SETTINGS):
            assert c.rows(sql) == [list(s.values())], n
        if n % 50 == 0:
            clients[0].query(f"set timezone = 'Etc/GMT+{n // 50}'")
            SETTINGS[0]["TimeZone"] = f"Etc/GMT+{n // 50}"
    SETTINGS[0]["TimeZone"] = "Asia/Tokyo"
    for c in clients:
        c.close()


def test_r67_no_needless_set(make_pooler):
    def talk(link):
        while True:
            kind, body = link.recv()
            if body.startswith(b"SET"):
                zone = body.split(b"TimeZone='")[1].split(b"'")[0]
                link.send(msg("C", b"SET\0") + msg("S", b"TimeZone\0" + zone + b"\0") + READY)
            else:
                link.send(row("x") + DONE)
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with p.login(database="fake") as a, p.login(database="fake", DateStyle="iso, mdy", TimeZone="utc") as b, \
            p.login(database="fake", TimeZone="Europe/Rome") as c:
        for _ in range(5):
            for w in (a, b, b, a):
                assert w.query("q")[0].row == ["x"]
        assert [q for _, _, q in fake.seen if q.startswith(b"SET")] == []
        for w in (c, c, a, a, c):
            w.query("q")
        assert len([q for _, _, q in fake.seen if q.startswith(b"SET")]) == 3
    fake.close()


def test_r67_new_defaults_of_the_server(pooler, pg):
    p = pooler(default_pool_size=1)
    try:
        with p.login(database="p1") as old:
            assert old.params["TimeZone"] == "UTC" and old.value("show timezone") == "UTC"
            pg.sql("alter database p1 set timezone = 'Asia/Tokyo'", dbname="postgres")
            p.admin("RECONNECT p1")
            assert old.value("show timezone") == "UTC"  # it was told so at its login
            with p.login(database="p1") as new:
                assert new.params["TimeZone"] == "Asia/Tokyo" and new.value("show timezone") == "Asia/Tokyo"
                assert old.value("show timezone") == "UTC"
    finally:
        pg.sql("alter database p1 reset timezone", dbname="postgres")


# ------------------------------------------------------------------------------------------- 68: SET and rollback

STORIES = {
    "rollback": ["begin", "set timezone = 'Asia/Tokyo'", "rollback"],
    "rollback to": ["begin", "set timezone = 'Asia/Tokyo'", "savepoint a", "set timezone = 'Europe/Rome'", "rollback to a", "commit"],
    "failed commit": ["begin", "set timezone = 'Asia/Tokyo'", "select 1/0", "commit"],
    "set local": ["begin", "set local timezone = 'Asia/Tokyo'", "commit"],
    "commit": ["begin", "set timezone = 'Asia/Tokyo'", "commit"],
    "one string": ["begin; set timezone = 'Asia/Tokyo'; rollback; set datestyle = 'German'"],
    "reset": ["set timezone = 'Asia/Tokyo'", "reset timezone"],
    "reset all": ["set timezone = 'Asia/Tokyo'", "set datestyle = 'German'", "reset all"],
    "discard all": ["set timezone = 'Asia/Tokyo'", "set application_name = 'x'", "discard all"],
    "failed statement": ["set timezone = 'Asia/Tokyo'; select 1/0"],
    "function": ["create or replace function pg_temp.f() returns int language sql set timezone = 'Asia/Tokyo' as 'select 1'; "
                 "select pg_temp.f()"],
    "set_config": ["select set_config('timezone', 'Asia/Tokyo', false), set_config('datestyle', 'German', true)"],
}


@pytest.mark.workers(1)
@pytest.mark.parametrize("mine", [{}, pytest.param(
    {"TimeZone": "Europe/Paris", "application_name": "mine"}, marks=pytest.mark.xfail(
        strict=True, reason="RESET and DISCARD ALL go back to the server's defaults, not to the client's startup packet; "
        "PgBouncer does the same"))], ids=["defaults", "startup"])
def test_r68_set_and_rollback(pooler, pg, mine):
    """Behind each story, the next transaction, on another server, sees what it would see without a pooler."""
    p = pooler(default_pool_size=2)
    show = "select current_setting('timezone'), current_setting('datestyle'), current_setting('application_name')"
    for name, story in STORIES.items():
        with Wire(pg.port).login(**mine) as direct, p.login(**mine) as c, p.login() as holder:
            for sql in story:
                assert codes(c.query(sql)) == codes(direct.query(sql)), name
            first = c.value("select pg_backend_pid()")
            holder.query("begin")  # takes the server used last
            assert holder.value("select pg_backend_pid()") == first
            assert c.rows(show) == direct.rows(show), name
            assert c.value("select pg_backend_pid()") != first
            holder.query("rollback")
            assert holder.rows(show) == [["UTC", "ISO, MDY", ""]], name


# -------------------------------------------------------------------------------------------- 69: security state

TRACES = ["set role bob", "set session authorization carol", "set row_security = off", "set search_path = pg_temp, public",
          "create temp table t as select 'shadow'::text as v", "select pg_advisory_lock(4711)", "listen somebody",
          "set statement_timeout = '1h'", "prepare trap as select 'trap'", "declare c cursor with hold for select 1"]
STATE = """select current_user, session_user, current_setting('row_security'), current_setting('search_path'),
    to_regclass('pg_temp.t'), (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
    (select count(*) from pg_listening_channels()), current_setting('statement_timeout'),
    (select count(*) from pg_prepared_statements), (select count(*) from pg_cursors where name <> ''), pg_backend_pid()"""
CLEAN = ["alice", "alice", "on", '"$user", public', None, "0", "0", "0", "0", "0"]


def leave_traces(p, how):
    with p.login() as a:
        for sql in TRACES:
            out = a.query(sql)
            assert not codes(out), (sql, codes(out))
        pid = a.value("select pg_backend_pid()")
        if how == "terminate":
            a.send(wire.TERMINATE)
        elif how == "reset":
            a.drop()
    return pid


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["terminate", "reset", "close"])
def test_r69_session_pooling_leaves_no_trace(pooler, how):
    p = pooler(pool_mode="session", default_pool_size=1)
    pid = leave_traces(p, how)
    with p.login() as b:
        assert b.rows(STATE) == [CLEAN + [pid]]
        assert b.value("select pg_try_advisory_lock(4711)") == "t"


@pytest.mark.workers(1, 2)
def test_r69_reset_query_always(pooler):
    """Transaction pooling with server_reset_query_always: the reset runs behind each transaction."""
    p = pooler(default_pool_size=1, server_reset_query_always=1)
    with p.login() as a, p.login() as b:
        for sql in TRACES:
            assert not codes(a.query(sql)), sql
            assert b.rows(STATE)[0][:10] == CLEAN, sql
            assert a.rows(STATE)[0][:10] == CLEAN, sql


def test_r69_without_reset_the_traces_stay(pooler):
    """What docs/compat.md says of transaction pooling: this is what server_reset_query_always is for."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("set role bob")
        assert b.value("select current_user") == "bob"
        a.query("reset role")


# ---------------------------------------------------------------------------------------- 70: the reset fails or hangs

@pytest.mark.ours  # PgBouncer ignores errors of the reset query
@pytest.mark.workers(1, 2)
def test_r70_reset_that_fails(pooler, pg):
    """The last client's statement_timeout ends it: what it should have reset is still there, so the server goes."""
    p = pooler(pool_mode="session", default_pool_size=1, server_reset_query="select pg_sleep(0.1); discard all")
    with p.login() as a:
        a.query("set role bob")
        a.query("set statement_timeout = 10")
        pid = a.value("select pg_backend_pid()")
    with p.login() as b:
        assert b.rows("select current_user, current_setting('statement_timeout')") == [["alice", "0"]]
        assert b.value("select pg_backend_pid()") != pid
    assert "reset query failed" in p.log()


def test_r70_reset_in_an_open_transaction(pooler):
    p = pooler(pool_mode="session", default_pool_size=1, server_reset_query="begin")
    with p.login() as a:
        pid = a.value("select pg_backend_pid()")
    with p.login() as b:
        assert b.value("select pg_backend_pid()") != pid
        assert b.query("select 1")[-1].body == b"I"


@pytest.mark.ours
@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("what", ["hangs", "dies"])
def test_r70_reset_that_never_ends(make_pooler, what):
    """A pool of one: the next client is served by another server, after server_connect_timeout at the latest."""
    def talk(link):
        while True:
            kind, body = link.recv()
            if body.startswith(b"DISCARD"):
                if what == "dies":
                    return
                link.fake.exactly(link.sock, 1)
            link.send(row(str(link.number)) + DONE)
    fake = Scripted(talk)
    p = with_fake(make_pooler(pool_mode="session", default_pool_size=1, server_connect_timeout=1), fake)
    with bystander(p):
        with p.login(database="fake") as a:
            assert a.query("select 1")[0].row == ["1"]
        with p.login(database="fake") as b:
            assert b.query("select 2")[0].row == ["2"]
        assert p.pool("fake")["cl_waiting"] == 0
    fake.close()


# ------------------------------------------------------------------------------------------- 72: a failed transaction

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("end", ["rollback", "commit", "leave", "pipelined"])
def test_r72_failed_transaction_stays_with_its_client(pooler, end):
    """The others wait, or use the other server: none ever sees 25P02."""
    p = pooler(default_pool_size=2)
    with p.login() as c, p.login() as b, p.login() as d:
        c.query("begin")
        pid = c.value("select pg_backend_pid()")
        assert codes(c.query("select 1/0")) == ["22012"]
        for i in range(30):
            assert b.rows(f"select {i}, pg_backend_pid() <> {pid}") == [[str(i), "t"]]
            assert d.rows(f"select 'd{i}', pg_backend_pid() <> {pid}") == [[f"d{i}", "t"]]
        out = c.query("select 1")
        assert codes(out) == ["25P02"] and out[-1].body == b"E"
        if end == "leave":
            c.drop()
        elif end == "pipelined":
            c.send(query("select 2"), query("rollback"), query("select 'back'"))
            assert codes(c.until()) == ["25P02"] and c.until()[-1].body == b"I" and rows(c.until()) == [["back"]]
        else:
            assert c.query(end)[-1].body == b"I"
        b.query("begin")
        d.query("begin")
        assert sorted({b.value("select 'b'"), d.value("select 'd'")}) == ["b", "d"]
        b.query("commit")
        d.query("commit")
    idle_again(p)


# --------------------------------------------------------------------------------------------------- 71: a bad parameter

@pytest.mark.workers(1, 2)
def test_r71_parameter_that_the_server_refuses(pooler, pg):
    """Only who asks for it is told; the server is clean for the next one."""
    p = pooler(default_pool_size=1)
    with p.login(application_name="good") as good:
        pid = good.value("select pg_backend_pid()")
        for value in ("Nowhere/City", "' ; drop table t; --"):
            with p.wire() as bad:
                bad.start(TimeZone=value)
                out = bad.authenticate()
                if out[-1].type == "Z":
                    bad.send(query("select 1"))
                    out = bad.until_closed()
                assert [m.type for m in out if m.type in "EZ"][-1] == "E", out
            assert rows(good.query("select current_setting('application_name'), current_setting('TimeZone')")) == [["good", "UTC"]]
        assert good.value("select pg_backend_pid()") == pid or not pg.backends(f"pid = {pid}")
        assert pg.sql("select to_regclass('t') is not null") == [(True,)]
    idle_again(p)


# ------------------------------------------------------------------------------------------------- 75: LISTEN

def test_r75_listen_in_transaction_mode(pooler, pg):
    """It belongs to the server, as with PgBouncer: docs/compat.md. What comes of it breaks no answer, and nobody gets what was
    notified in another database."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b, p.login(database="p1") as elsewhere:
        assert a.query("listen r75")[0].tag == "LISTEN"
        elsewhere.query("listen r75")
        for i in range(5):
            pg.sql(f"notify r75, 'news {i}'")
            for c in (b, a):
                out = c.query(f"select {i}")
                assert types([m for m in out if m.type != "A"]) == "TDCZ" and rows(out) == [[str(i)]]
        assert types(elsewhere.query("select 1")) == "TDCZ", "that was not its database"
    idle_again(p)


# ------------------------------------------------------------------------------------------------- 77: session mode

@pytest.mark.workers(1, 2)
def test_r77_session_keeps_its_server(pooler):
    """Through errors, RELOAD, RECONNECT and the end of the server's lifetime: the same until the client leaves."""
    p = pooler(pool_mode="session", default_pool_size=2, server_lifetime=1)
    with p.login() as c:
        pid = c.value("select pg_backend_pid()")
        c.query("set work_mem = '7MB'")
        for upset in (lambda: c.query("select 1/0"), lambda: p.admin("RELOAD"), lambda: p.admin("RECONNECT"),
                      lambda: (p.settings.update(default_pool_size=3), p.write_ini(), p.admin("RELOAD")),
                      lambda: time.sleep(1.5)):
            upset()
            assert rows(c.query("select pg_backend_pid(), current_setting('work_mem')")) == [[pid, "7MB"]]
    with p.login() as c:
        assert c.value("select pg_backend_pid()") != pid and c.value("show work_mem") != "7MB"
