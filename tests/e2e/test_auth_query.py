"""auth_query: who it finds and how, what goes wrong with it, and that strangers cannot reach anything through it."""
import contextlib
import struct
import threading

import psycopg
import pytest

import wire
from conftest import OURS, PASSWORD, code_is, md5_secret, wait_until
from test_auth import login_error

LOOKUP = "SELECT usename, passwd FROM pg_shadow WHERE usename=$1"
NO_USER = "no such user"
TROUBLE = "bouncer config error"


@pytest.fixture
def lookup(make_pooler):
    """A pooler that knows nobody but auth_user bob (and the console's users); alice and others come from the server."""
    def start(auth_type="scram-sha-256", databases=None, **settings):
        p = make_pooler(databases=databases, **{"auth_type": auth_type, "auth_user": "bob"} | settings)
        p.userlist = {"bob": "", "admin": PASSWORD, "stats": PASSWORD}
        p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
        return p.start()
    return start


@pytest.fixture
def role(pg):
    """role(name, password, encryption="scram-sha-256", more="") -> a role for the time of the test."""
    made = []

    def make(name, password=PASSWORD, encryption="scram-sha-256", more=""):
        quoted = psycopg.sql.Identifier(name)
        with pg.connect() as c:
            c.execute(f"set password_encryption = '{encryption}'")
            c.execute(psycopg.sql.SQL("create role {} login {}").format(quoted, psycopg.sql.SQL(more)))
            made.append(quoted)
            if password is not None:
                c.execute(psycopg.sql.SQL("alter role {} password {}").format(quoted, psycopg.sql.Literal(password)))
    yield make
    with pg.connect() as c:
        for quoted in made:
            c.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = "
                      + psycopg.sql.Literal(quoted.as_string(c).strip('"')).as_string(c))
            c.execute(psycopg.sql.SQL("drop role {}").format(quoted))


# ---------------------------------------------------------------------------------------------- finding users

@pytest.mark.parametrize("auth_type", ["scram-sha-256", "md5", "plain"])
@pytest.mark.parametrize("encryption", ["scram-sha-256", "md5"])
def test_user_is_found(lookup, role, auth_type, encryption):
    role("found", encryption=encryption)
    p = lookup(auth_type)
    if (auth_type, encryption) == ("scram-sha-256", "md5"):  # an md5 secret is no use for SCRAM
        assert login_error(p, "found", password=PASSWORD).text == "SASL authentication failed"
        return
    for _ in range(2):
        with p.login("found", password=PASSWORD) as c:
            assert c.value("select current_user") == "found"
    error = login_error(p, "found", password=PASSWORD + "x")
    assert error.text in ("SASL authentication failed", "password authentication failed")
    assert code_is(error.code, "28P01")
    pool = p.pool("p0", "bob")
    assert pool["cl_waiting"] == 0 and pool["sv_active"] == 0 and pool["sv_idle"] == 1
    assert p.pool("p0", "found")["sv_idle"] == 1
    assert "found" in [r["name"] for r in p.show("USERS")]


@pytest.mark.parametrize("pool_mode", ["session", "statement"])
def test_every_pool_mode(lookup, role, pool_mode):
    role("found")
    p = lookup(pool_mode=pool_mode)
    for _ in range(3):
        with p.login("found", password=PASSWORD) as c:
            assert c.value("select current_user") == "found"
    wait_until(lambda: p.pool("p0", "bob")["sv_idle"] == 1, "its reset is over")


@pytest.mark.parametrize("user", ["s_md5", "s_scram", "s_password"])
def test_secret_logs_in_to_the_server(lookup, user):
    """The server asks these for their password over TCP; what auth_query found has to do."""
    auth_type = {"s_md5": "md5", "s_scram": "scram-sha-256", "s_password": "plain"}[user]
    p = lookup(auth_type)
    if user == "s_password":  # a SCRAM secret is no clear text
        error = login_error(p, user, password=PASSWORD)
        assert error.text == "server login failed: wrong password type" or not OURS and "failed" in error.text
        return
    with p.login(user, password=PASSWORD) as c:
        assert c.value("select current_user") == user
    p.admin("RECONNECT")
    with p.login(user, password=PASSWORD) as c:  # and again from what is remembered
        assert c.value("select current_user") == user


def test_changed_password_counts_at_once(lookup, role, pg):
    role("changing")
    p = lookup()
    p.login("changing", password=PASSWORD).close()
    pg.sql("alter role changing password 'other'")
    assert login_error(p, "changing", password=PASSWORD).text == "SASL authentication failed"
    p.login("changing", password="other").close()


def test_expired_password(lookup, role, pg):
    role("expiring", more="valid until 'infinity'")
    p = lookup("md5")
    p.login("expiring", password=PASSWORD).close()
    pg.sql("alter role expiring valid until '1999-01-01'")
    error = login_error(p, "expiring", password=PASSWORD)
    assert error.text == "password authentication failed" and code_is(error.code, "28P01")
    pg.sql("alter role expiring valid until 'infinity'")
    p.login("expiring", password=PASSWORD).close()


def test_user_without_password(lookup, role):
    role("bare", password=None)
    p = lookup("plain")
    for attempt in ("x", PASSWORD, *(["md5", "SCRAM-SHA-256"] if OURS else [])):
        assert login_error(p, "bare", password=attempt).text == "password authentication failed"
    p.admin("SET auth_type = 'trust'")
    with p.login("bare") as c:
        assert c.value("select current_user") == "bare"


def test_auth_file_comes_first(lookup, role, pg):
    role("listed")
    p = lookup("plain", auth_query="SELECT no_such_function($1)")
    p.userlist["listed"] = "from the file"
    p.write_ini()
    p.admin("RELOAD")
    p.login("listed", password="from the file").close()
    assert login_error(p, "listed", password=PASSWORD).text == "password authentication failed"


def test_users_section_gives_no_password(lookup, role):
    role("named")
    p = lookup()
    p.users["named"] = "pool_mode=session"
    p.write_ini()
    p.admin("RELOAD")
    with p.login("named", password=PASSWORD) as c:
        c.query("set my.var = 'kept'")
        assert c.value("show my.var") == "kept"
        assert p.pool("p0", "named")["pool_mode"] == "session"


def test_name_from_the_answer_counts(lookup, role):
    role("right_name")
    p = lookup(auth_query="SELECT usename, passwd FROM pg_shadow WHERE usename = replace($1, 'wrong', 'right')")
    with p.login("wrong_name", password=PASSWORD) as c:
        assert c.value("select current_user") == "right_name"


@pytest.mark.parametrize("name", ["it's", 'quo"te', "back\\slash", "semi;colon", "новый", "$1", "a b", "new\nline"])
def test_hostile_names(lookup, role, name):
    role(name)
    p = lookup("plain")
    with p.login(name, password=PASSWORD) as c:
        assert c.value("select current_user") == name
    assert login_error(p, name + "'; drop table t; --", password="x").text == NO_USER


def test_database_settings_win(lookup, role, pg):
    role("found")
    p = lookup("md5", auth_user=None, auth_query="SELECT broken")
    p.databases["p0"] = f"{p.server} dbname=p0 auth_user=bob auth_dbname=p1 auth_query='{LOOKUP}'"
    p.write_ini()
    p.admin("RELOAD")
    p.login("found", password=PASSWORD).close()
    assert p.pool("p1", "bob")["sv_idle"] == 1 and p.pool("p0", "bob") is None
    # The other database has no auth_user: an unknown user like any other.
    assert login_error(p, "found", "p1", password=PASSWORD).text == "password authentication failed"


def test_auth_dbname_through_the_wildcard(lookup, role, pg):
    role("found")
    p = lookup(auth_dbname="p2", databases={"*": f"host=127.0.0.1 port={pg.port}"})
    p.login("found", "p0", PASSWORD).close()
    p.wait_log("registered new auto-database: p2")
    assert p.pool("p2", "bob")["sv_idle"] == 1


def test_console_needs_another_database(lookup, role):
    role("found")
    p = lookup(stats_users="stats,found")
    assert login_error(p, "found", "pgbouncer", password=PASSWORD).text == TROUBLE
    p.wait_log('cannot use the reserved "pgbouncer" database as an auth_dbname')
    p.admin("SET auth_dbname = 'p0'")
    with p.login("found", "pgbouncer", PASSWORD) as c:
        assert c.query("SHOW VERSION")
    assert login_error(p, "s_scram", "pgbouncer", password=PASSWORD).text == "not allowed"
    p.databases["p1"] += " auth_dbname=pgbouncer"
    p.write_ini()
    p.admin("RELOAD")
    assert login_error(p, "found", "p1", password=PASSWORD).text == TROUBLE


def test_unknown_database_asks_nobody(lookup):
    p = lookup("plain")
    assert login_error(p, "s_scram", "nowhere", password=PASSWORD).text == "password authentication failed"
    assert p.pool("p0", "bob") is None


# ---------------------------------------------------------------------------------------------- when it does not work

def test_no_such_user(lookup):
    p = lookup()
    error = login_error(p, "nobody-here", password="x")
    assert error.text == NO_USER and code_is(error.code, "28P01")
    p.wait_log("login failed: db=p0")
    p.wait_log("closing because: no such user (age=")


@pytest.mark.parametrize("sql, reason", [
    ("SELECT usename FROM pg_shadow WHERE usename=$1", "expected 2 columns from auth_query, not 1"),
    ("SELECT usename, passwd, 1 FROM pg_shadow WHERE usename=$1", "expected 2 columns from auth_query, not 3"),
    ("SELECT FROM pg_shadow WHERE usename=$1", "expected 2 columns from auth_query, not 0"),
    ("SELECT NULL, passwd FROM pg_shadow WHERE usename=$1", "auth_query response contained null user name"),
    ("SELECT repeat('x', 128), passwd FROM pg_shadow WHERE usename=$1", None),
    ("SELECT usename, repeat('x', 1000000) FROM pg_shadow WHERE usename=$1", None),
    ("SELECT usename, repeat('x', 3000000) FROM pg_shadow WHERE usename=$1", None),
    ("COPY pg_shadow TO STDOUT", None),
    ("SELECT 1/0, $1::text", "error response from auth_query"),
    ("not sql at all", "error response from auth_query"),
])
def test_odd_answers(lookup, role, sql, reason):
    role("found")
    p = lookup(auth_query=sql)
    if not OURS and reason is None:
        pytest.skip("PgBouncer cuts these short")
    for _ in range(2):
        error = login_error(p, "found", password=PASSWORD)
        assert error.text == TROUBLE and code_is(error.code, "08P01")
    if reason:
        p.wait_log(f"closing because: {reason} (age=")
    if reason and reason.startswith("error"):
        p.wait_log("S: error in auth_query: ERROR: ")
    # Such a connection is not used again, and the pool is not worse for it.
    p.admin(f"SET auth_query = '{LOOKUP}'")
    p.login("found", password=PASSWORD).close()


@pytest.mark.ours
def test_two_rows_are_nobody(lookup, role):
    role("found")
    p = lookup(auth_query="SELECT usename, passwd FROM pg_shadow WHERE $1 <> ''")
    assert login_error(p, "found", password=PASSWORD).text == TROUBLE
    p.wait_log("auth_query response contained more than one row")


def test_notices_do_not_disturb(lookup, role, pg):
    role("found")
    pg.sql("create or replace function noisy(name text, out usename name, out passwd text) returns setof record as $$"
           "begin raise notice 'hello'; raise warning 'there'; return query select s.usename, s.passwd from pg_shadow s"
           " where s.usename = name; end $$ language plpgsql")
    p = lookup(auth_query="SELECT * FROM noisy($1)")
    with p.login("found", password=PASSWORD) as c:
        assert c.value("select 1") == "1"


def test_auth_database_missing(lookup):
    p = lookup(auth_dbname="not_configured")
    assert login_error(p, "s_scram", password=PASSWORD).text == TROUBLE
    p.wait_log('authentication database "not_configured" is not configured.')


def test_auth_database_disabled(lookup):
    p = lookup(auth_dbname="p1")
    p.admin("DISABLE p1")
    error = login_error(p, "s_scram", password=PASSWORD)
    assert error.text == 'authentication database "p1" is disabled'
    p.admin("ENABLE p1")
    p.login("s_scram", password=PASSWORD).close()


def test_auth_database_does_not_exist_on_the_server(lookup):
    p = lookup(auth_dbname="gone", databases={"gone": None})
    p.databases["gone"] = f"{p.server} dbname=gone"
    p.write_ini()
    p.admin("RELOAD")
    error = login_error(p, "s_scram", password=PASSWORD)
    assert error.text == 'database "gone" does not exist' and error.code == "3D000"


def test_paused_database_holds_the_login(lookup):
    p = lookup(auth_dbname="p1", client_login_timeout=30)
    p.admin("PAUSE p1")
    with p.wire() as c:
        c.start("s_scram")
        wait_until(lambda: (p.pool("p1", "bob") or {}).get("cl_waiting") == 1, "the login waits in the auth pool")
        p.admin("RESUME p1")
        assert c.authenticate(PASSWORD)[-1].type == "Z"
        assert c.value("select 1") == "1"


@pytest.mark.parametrize("setting", ["query_wait_timeout",
                                     pytest.param("client_login_timeout", marks=pytest.mark.ours)])
def test_timeouts_while_waiting(lookup, setting):
    p = lookup(**{setting: 1})
    p.admin("PAUSE p0")
    with p.wire() as c:
        c.start("s_scram")
        assert c.fatal().text == setting + (" (server down)" if setting == "client_login_timeout" else "")
    p.admin("RESUME p0")
    p.login("s_scram", password=PASSWORD).close()


def test_timeout_while_the_query_runs(lookup, pg):
    p = lookup(auth_query="SELECT usename, passwd FROM pg_shadow, pg_sleep(60) WHERE usename=$1", client_login_timeout=1)
    with p.wire() as c:
        c.start("s_scram")
        assert c.fatal().text == "client_login_timeout"
    wait_until(lambda: p.pool("p0", "bob")["sv_active"] == 0, "the server of the lookup is gone")


@pytest.mark.ours  # PgBouncer counts client_login_timeout only for clients that it has authenticated
def test_server_not_there(lookup):
    p = lookup(client_login_timeout=2, databases={"down": "host=127.0.0.1 port=1 dbname=p0"}, auth_dbname="down")
    error = login_error(p, "s_scram", password=PASSWORD)
    assert error.text == "client_login_timeout (server down)"
    p.admin("SET auth_dbname = 'p0'")
    p.login("s_scram", password=PASSWORD).close()


def slow(seconds=60):
    return f"SELECT usename, passwd FROM pg_shadow, pg_sleep({seconds}) WHERE usename=$1"


def test_client_leaves_while_its_lookup_runs(lookup, pg):
    p = lookup(auth_query=slow())
    c = p.wire().start("s_scram")
    wait_until(lambda: pg.backends("usename = 'bob' and wait_event = 'PgSleep'"), "the query runs")
    c.drop()
    wait_until(lambda: p.pool("p0", "bob")["sv_active"] == 0, "its server is let go of")
    p.admin(f"SET auth_query = '{LOOKUP}'")
    p.login("s_scram", password=PASSWORD).close()


def test_server_dies_while_the_lookup_runs(lookup, pg):
    p = lookup(auth_query=slow())
    with p.wire() as c:
        c.start("s_scram")
        pid = wait_until(lambda: pg.backends("usename = 'bob' and wait_event = 'PgSleep'"), "the query runs")[0]
        pg.sql("select pg_terminate_backend(%s)", pid)
        assert c.fatal().text == TROUBLE
    p.admin(f"SET auth_query = '{LOOKUP}'")
    p.login("s_scram", password=PASSWORD).close()


def test_client_leaves_the_queue(lookup):
    p = lookup()
    p.admin("PAUSE p0")
    c = p.wire().start("s_scram")
    wait_until(lambda: p.pool("p0", "bob")["cl_waiting"] == 1, "it waits")
    c.close()
    if OURS:  # PgBouncer does not look at clients that wait
        wait_until(lambda: p.pool("p0", "bob")["cl_waiting"] == 0, "it is gone")
    p.admin("RESUME p0")
    p.login("s_scram", password=PASSWORD).close()


@pytest.mark.workers(1)
def test_slow_lookup_blocks_nobody_else(lookup, pg):
    p = lookup(auth_query=slow())
    with p.wire() as c:
        c.start("s_scram")
        wait_until(lambda: pg.backends("usename = 'bob' and wait_event = 'PgSleep'"), "the query runs")
        assert p.show("VERSION")  # the same worker serves another login and its commands meanwhile
        with p.wire() as other:
            other.start("admin", "p0")
            assert other.authenticate(PASSWORD)[-1].type == "Z"
            assert other.value("select 1") == "1"


def test_limits_of_the_auth_pool_hold(lookup, pg):
    p = lookup(auth_query=slow(0.2), default_pool_size=2)
    clients = [p.wire().start("s_scram") for _ in range(6)]
    most = 0

    def finished():
        nonlocal most
        most = max(most, len(pg.backends("usename = 'bob'")))
        return len(done) == len(clients)
    done = []
    threads = [threading.Thread(target=lambda c=c: done.append(c.authenticate(PASSWORD)[-1].type)) for c in clients]
    for t in threads:
        t.start()
    wait_until(finished, "all are in")
    for t in threads:
        t.join()
    assert done == ["Z"] * 6 and most <= 2
    for c in clients:
        c.close()


def test_max_user_client_connections(lookup):
    p = lookup(max_user_client_connections=2)
    with p.login("s_scram", password=PASSWORD), p.login("s_scram", password=PASSWORD):
        error = login_error(p, "s_scram", password=PASSWORD)
        assert error.text == "client connections exceeded (max_user_client_connections)"
    wait_until(lambda: [r["current_client_connections"] for r in p.show("USERS") if r["name"] == "s_scram"] == ["0"],
               "places are given back")
    p.login("s_scram", password=PASSWORD).close()


# ---------------------------------------------------------------------------------------------- strangers

def test_nothing_of_the_client_reaches_the_server(lookup, role, pg):
    """CVE-2025-12819: an unqualified name in auth_query, and a search_path from somebody who has proved nothing."""
    role("found")
    pg.sql("create schema if not exists evil")
    pg.sql("create or replace view evil.secrets as select 'found'::name as usename, 'mine'::text as passwd")
    pg.sql("create or replace view public.secrets as select usename, passwd from pg_shadow")
    p = lookup("plain", track_extra_parameters="search_path, IntervalStyle", log_connections=1,
               auth_query="SELECT usename, passwd FROM secrets WHERE usename=$1")
    pg.sql("alter system set log_statement = 'all'")
    pg.sql("select pg_reload_conf()")
    try:
        at = len(pg.log())
        for params in ({"search_path": "evil,pg_catalog"}, {"options": "-c search_path=evil"},
                       {"DateStyle": "German", "client_encoding": "LATIN1", "application_name": "evil app"}):
            for _ in range(2):
                assert login_error(p, "found", password="mine", **params).text == "password authentication failed"
        said = pg.log()[at:]
        lines = [x for x in said.splitlines() if "bob@p0" in x]
        assert any("FROM secrets" in x for x in lines)
        for word in ("evil", "German", "LATIN1", "SET "):
            assert not any(word in x for x in lines), lines
    finally:
        pg.sql("alter system reset log_statement")
        pg.sql("select pg_reload_conf()")
    # What the server says about itself in a lookup is nothing that the client asked for either.
    with p.login("found", password=PASSWORD, DateStyle="German") as c:
        assert c.value("show datestyle").startswith("German")


def test_negotiation_is_sent_once(lookup):
    p = lookup()
    with p.wire() as c:
        c.start("s_scram", version=0x30000 | 9999)
        m = c.recv()
        assert m.type == "v" and m.body == struct.pack("!II", 0x30002, 0)
        assert c.recv().type == "R"


def test_bytes_sent_ahead_are_kept(lookup, role):
    """Startup and password in one go, in pieces, before the lookup has answered."""
    role("found")
    p = lookup("plain")
    with p.wire() as c:
        c.send(wire.startup_packet({"user": "found", "database": "p0"}) + wire.msg("p", wire.cstr(PASSWORD)))
        out = c.until("Z")
        assert [m for m in out if m.type == "E"] == []
        assert c.value("select current_user") == "found"
    with p.wire() as c:
        c.send_slowly(wire.startup_packet({"user": "found", "database": "p0"}) + wire.msg("p", wire.cstr(PASSWORD)))
        c.until("Z")
        assert c.value("select current_user") == "found"


def test_garbage_during_the_lookup_ends_it(lookup, pg):
    p = lookup(auth_query=slow(1))
    with p.wire() as c:
        c.start("s_scram")
        with contextlib.suppress(wire.Closed, OSError):
            c.send(b"\x00" * 300_000)
        c.until_closed()
    p.admin(f"SET auth_query = '{LOOKUP}'")
    p.login("s_scram", password=PASSWORD).close()


def test_thousand_unknown_users_leak_nothing(lookup):
    p = lookup()
    for n in range(200):
        assert login_error(p, f"nobody{n}", password="x").text == NO_USER
    before = p.rss()
    for n in range(1000):
        assert login_error(p, f"stranger{n}", password="x").text == NO_USER
    assert p.rss() - before < 1_000_000
    assert not [r for r in p.show("USERS") if r["name"].startswith(("nobody", "stranger"))]
    assert not [r for r in p.show("POOLS") if r["user"].startswith(("nobody", "stranger"))]
    idle = p.pool("p0", "bob")["sv_idle"]  # each worker may have needed one
    assert 1 <= idle <= p.workers if OURS else idle == 0  # PgBouncer gives up a connection each time
    lists = {r["list"]: int(r["items"]) for r in p.show("LISTS")}
    assert lists["login_clients"] == 0
    p.login("s_scram", password=PASSWORD).close()


@pytest.mark.workers(1, 3)
def test_fifty_at_once(lookup, role):
    role("crowd")
    p = lookup(default_pool_size=5)
    clients = [p.wire().start("crowd") for _ in range(50)]
    bad = []

    def login(c):
        out = c.authenticate(PASSWORD)
        if out[-1].type != "Z" or c.value("select current_user") != "crowd":
            bad.append(out)
    threads = [threading.Thread(target=login, args=(c,)) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad
    assert p.pool("p0", "bob")["sv_idle"] <= 5 and p.pool("p0", "bob")["cl_waiting"] == 0
    for c in clients:
        c.close()


@pytest.mark.ours  # PgBouncer at verbose=2 logs packets
def test_no_secrets_in_the_log(lookup, role, pg):
    role("found", encryption="md5")
    p = lookup("md5", verbose=2)
    p.login("found", password=PASSWORD).close()
    login_error(p, "found", password="hunter2-wrong")
    login_error(p, "s_scram", password="hunter2-wrong")
    secrets = [r[0] for r in pg.sql("select passwd from pg_shadow where passwd is not null")]
    for secret in [PASSWORD, "hunter2-wrong", md5_secret("found"), *secrets]:
        assert secret not in p.log()


def test_lookup_takes_the_unnamed_statement_of_nobody(lookup, role):
    """A client logged in as auth_user shares its server with the lookups; each keeps its own unnamed statement."""
    role("found")
    p = lookup("plain", default_pool_size=1)
    p.userlist["bob"] = PASSWORD
    p.write_ini()
    p.admin("RELOAD")
    with p.login("bob", password=PASSWORD) as bob:
        bob.send(wire.parse("", "select 'of bob'"), wire.SYNC)
        bob.until()
        p.login("found", password=PASSWORD).close()
        bob.send(wire.bind("", ""), wire.execute(), wire.SYNC)
        assert [m.row for m in bob.until() if m.type == "D"] == [["of bob"]]
