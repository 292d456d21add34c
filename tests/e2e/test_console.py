"""The console: exact columns, verbs, errors, and numbers that are summed over the workers."""
import re
import threading
import time

import psycopg
import pytest

import wire
from conftest import OURS, wait_until

S, I, Q, N = 25, 23, 20, 1700
CLIENT = [("type", S), ("user", S), ("database", S), ("replication", S), ("state", S), ("addr", S), ("port", I),
          ("local_addr", S), ("local_port", I), ("connect_time", S), ("request_time", S), ("wait", I), ("wait_us", I),
          ("close_needed", I), ("ptr", S), ("link", S), ("remote_pid", I), ("tls", S), ("application_name", S),
          ("prepared_statements", I), ("id", I)]
COUNTERS = ["server_assignment_count", "xact_count", "query_count", "received", "sent", "xact_time", "query_time",
            "wait_time", "client_parse_count", "server_parse_count", "bind_count", "client_login_count"]
COLUMNS = {
    "VERSION": [("version", S)],
    "CONFIG": [("key", S), ("value", S), ("default", S), ("changeable", S)],
    "CLIENTS": CLIENT,
    "SERVERS": CLIENT,
    "DATABASES": [("name", S), ("host", S), ("port", I), ("database", S), ("force_user", S), ("pool_size", I),
                  ("min_pool_size", I), ("reserve_pool_size", I), ("server_lifetime", I), ("pool_mode", S),
                  ("load_balance_hosts", S), ("max_connections", I), ("current_connections", I),
                  ("max_client_connections", I), ("current_client_connections", I), ("paused", I), ("disabled", I)],
    "POOLS": [("database", S), ("user", S)] + [(c, I) for c in (
        "cl_active", "cl_waiting", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active", "sv_active_cancel",
        "sv_being_canceled", "sv_idle", "sv_used", "sv_tested", "sv_login", "maxwait", "maxwait_us")] +
        [("pool_mode", S), ("load_balance_hosts", S)],
    "LISTS": [("list", S), ("items", I)],
    "STATS": [("database", S)] + [("total_" + c, N) for c in COUNTERS] +
        [("avg_" + {"received": "recv"}.get(c, c), N) for c in COUNTERS],
}
LISTS = ["databases", "users", "peers", "pools", "peer_pools", "free_clients", "used_clients", "login_clients",
         "free_servers", "used_servers", "dns_names", "dns_zones", "dns_queries", "dns_pending"]


@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("what", COLUMNS)
def test_columns(pooler, what):
    p = pooler()
    with p.login() as c, p.console() as console:
        c.value("select 1")
        out = console.query(f"SHOW {what}")
        assert [m.type for m in out][0] == "T" and [m.type for m in out][-2:] == ["C", "Z"], out
        columns = out[0].columns
        expected = COLUMNS[what]
        if what == "SERVERS" and OURS and len(columns) != len(expected):
            pytest.fail(f"{columns}")
        missing_in_release = {("total_client_login_count", N), ("avg_client_login_count", N)}  # [M]
        if not OURS and columns != expected:
            expected = [e for e in expected if e not in missing_in_release]
        assert columns == expected
        assert out[-2].tag == "SHOW"
        assert len([m for m in out if m.type == "D"]) > 0


def test_show_version(pooler):
    p = pooler()
    (row,) = p.show("VERSION")
    assert re.match(r"(PgBouncer|pgflotilla) \d+\.\d+", row["version"])
    assert p.run(__import__("conftest").EXE, "-V").stdout.splitlines()[0] == row["version"]


def test_show_help(pooler):
    with pooler().console() as c:
        out = c.query("SHOW HELP")
        assert [m.type for m in out] == ["N", "C", "Z"]
        assert out[0].text == "Console usage" and "SHOW HELP" in out[0].fields["D"]
        assert out[1].tag == "SHOW"


def test_show_lists(pooler):
    p = pooler()
    with p.login() as c:
        c.value("select 1")
        rows = p.show("LISTS")
        assert [r["list"] for r in rows] == LISTS
        items = {r["list"]: int(r["items"]) for r in rows}
        assert items["databases"] == 3 and items["used_clients"] == 2 and items["dns_pending"] == 0


def test_show_config(pooler):
    p = pooler(default_pool_size=7, unix_socket_mode="0700")
    rows = {r["key"]: r for r in p.show("CONFIG")}
    assert rows["default_pool_size"] == {"key": "default_pool_size", "value": "7", "default": "20", "changeable": "yes"}
    assert rows["listen_port"]["changeable"] == "no"
    assert rows["unix_socket_mode"]["value"] == "448"
    assert rows["server_lifetime"]["value"] == "3600"
    if OURS:
        assert {"workers", "io_engine"} <= set(rows)
        assert rows["pool_mode"]["value"] == "transaction"


def test_show_databases(pooler, pg):
    p = pooler(default_pool_size=9, max_db_connections=11)
    with p.login() as c:
        c.value("select 1")
        rows = {r["name"]: r for r in p.show("DATABASES")}
        assert list(rows) == sorted(rows) and set(rows) == {"p0", "p1", "pgbouncer"}
        row = rows["p0"]
        assert (row["host"], row["port"], row["database"]) == ("127.0.0.1", str(pg.port), "p0")
        assert (row["pool_size"], row["max_connections"], row["current_connections"]) == ("9", "11", "1")
        assert (row["paused"], row["disabled"], row["force_user"], row["pool_mode"]) == ("0", "0", None, None)
        assert row["current_client_connections"] == "1"


@pytest.mark.workers(1, 4)
def test_pools_and_clients_are_sums_over_workers(pooler):
    p = pooler(default_pool_size=4)
    clients = [p.login(application_name=f"c{i}") for i in range(20)]
    for c in clients:
        c.value("select 1")
    for c in clients[:4]:
        c.query("begin")
    for c in clients[4:10]:
        c.send(wire.query("select 1"))
    pool = wait_until(lambda: (x := p.pool())["cl_waiting"] == 6 and x, "six wait")
    assert (pool["cl_active"], pool["sv_active"], pool["sv_idle"], pool["pool_mode"]) == (14, 4, 0, "transaction")
    rows = [r for r in p.show("CLIENTS") if r["database"] == "p0"]
    assert len(rows) == 20 and len({r["id"] for r in rows}) == 20
    assert {r["application_name"] for r in rows} == {f"c{i}" for i in range(20)}
    states = [r["state"] for r in rows]
    assert states.count("waiting") == 6 and states.count("active") + states.count("idle") == 14
    servers = p.show("SERVERS")
    assert len(servers) == 4 and {r["type"] for r in servers} == {"S"}
    linked = {r["ptr"]: r["link"] for r in rows if r["link"]}
    assert sorted(linked.values()) == sorted(r["ptr"] for r in servers)
    assert int({r["name"]: r for r in p.show("DATABASES")}["p0"]["current_connections"]) == 4
    for c in clients[:4]:
        c.query("commit")
    for c in clients[4:10]:
        assert c.until("Z")[1].row == ["1"]
    for c in clients:
        c.close()


@pytest.mark.workers(1, 4)
def test_stats_are_sums_over_workers(pooler):
    p = pooler()
    clients = [p.login() for _ in range(12)]
    for c in clients:
        for _ in range(5):
            c.value("select 1")
        c.query("begin")
        c.value("select 1")
        c.query("commit")

    def stats():
        return {r["database"]: r for r in p.show("STATS")}["p0"]
    row = wait_until(lambda: (x := stats())["total_xact_count"] == "72" and x, "72 transactions")
    assert row["total_query_count"] == "96"
    assert int(row["total_received"]) >= 96 * 10 and int(row["total_sent"]) > 0
    assert int(row["total_query_time"]) > 0 and int(row["total_xact_time"]) >= int(row["total_query_time"]) > 0
    for c in clients:
        c.close()


@pytest.mark.ours
@pytest.mark.workers(1, 4)
def test_show_workers(pooler):
    p = pooler()
    clients = [p.login() for _ in range(16)]
    for c in clients:
        c.value("select 1")
    rows = p.show("WORKERS")
    assert len(rows) == p.workers
    assert sum(int(r["clients"]) for r in rows) in (16, 17)  # the console itself may count
    for c in clients:
        c.close()


# ---------------------------------------------------------------------------------------------- verbs

def test_reload(pooler):
    p = pooler()
    with p.login() as c:
        c.value("select 1")
        p.databases["p2"] = f"{p.server} dbname=p2"
        p.settings["default_pool_size"] = 3
        p.write_ini()
        assert p.admin("RELOAD") == "RELOAD"
        assert {r["key"]: r["value"] for r in p.show("CONFIG")}["default_pool_size"] == "3"
        with p.login(database="p2") as other:
            assert other.value("select current_database()") == "p2"
        assert c.value("select 1") == "1"
    p.wait_log("RELOAD command issued")


def test_failed_reload_keeps_everything(pooler):
    p = pooler()
    with p.login() as c:
        p.settings["no_such_key"] = 1
        p.write_ini()
        with p.console() as console:
            out = console.query("RELOAD")
            assert out[0].type == "E" and out[0].code == "F0000"
            assert out[0].text == "RELOAD failed, see logs for additional details"
            assert out[0].fields["S"] == "ERROR" and out[-1].body == b"I"
        assert c.value("select 1") == "1"
        with p.login() as other:
            assert other.value("select 1") == "1"


def test_removed_database(pooler):
    p = pooler()
    with p.login(database="p1") as c:
        c.value("select 1")
        del p.databases["p1"]
        p.write_ini()
        assert p.admin("RELOAD") == "RELOAD"
        assert c.fatal().text == "database removed"
    with p.wire() as c:
        c.start(database="p1")
        assert c.authenticate()[-1].text == "no such database: p1"


@pytest.mark.workers(1, 4)
def test_pause_and_resume(pooler, pg):
    p = pooler()
    a, b = p.login(), p.login()
    a.query("begin")
    a.query("select 1")
    with p.console() as console:
        console.send(wire.query("PAUSE"))
        wait_until(lambda: not [r for r in p.show("SERVERS") if r["state"] == "idle"], "idle servers are closed")
        b.send(wire.query("select 2"))
        wait_until(lambda: (x := p.pool()) and x["cl_waiting"] == 1, "b waits")
        assert a.value("select 'still in transaction'")
        a.query("commit")
        assert console.until("Z")[0].tag == "PAUSE"
        wait_until(lambda: not pg.backends("usename = 'alice'"), "every server is closed")
        out = console.query("PAUSE")
        assert out[0].text == "already suspended/paused"
        assert console.query("RESUME")[0].tag == "RESUME"
        assert b.until("Z")[1].row == ["2"]
        assert console.query("RESUME")[0].text == "pooler is not paused/suspended"
    assert a.value("select 1") == "1"
    a.close(), b.close()


def test_pause_one_database(pooler):
    p = pooler()
    with p.login() as a, p.login(database="p1") as b, p.console() as console:
        a.value("select 1")
        assert console.query("PAUSE p0")[0].tag == "PAUSE"
        a.send(wire.query("select 3"))
        assert b.value("select 4") == "4"
        assert {r["name"]: r["paused"] for r in p.show("DATABASES")} == {"p0": "1", "p1": "0", "pgbouncer": "0"}
        assert console.query("RESUME p0")[0].tag == "RESUME"
        assert a.until("Z")[1].row == ["3"]
        for command, text in {"PAUSE nope": "no such database: nope", "RESUME nope": "no such database: nope",
                              "RESUME p0": "database p0 is not paused",
                              "PAUSE pgbouncer": "cannot pause admin db: pgbouncer"}.items():
            assert console.query(command)[0].text == text


def test_shutdown(pooler):
    p = pooler()
    c, console = p.login(), p.console()
    c.value("select 1")
    console.send(wire.query("SHUTDOWN"))
    assert console.until_closed() == []
    assert p.wait_exit() == 0
    c.close()


@pytest.mark.workers(1, 3)
def test_shutdown_wait_for_clients(pooler):
    p = pooler()
    c = p.login()
    with p.console() as console, p.console() as other:
        assert console.query("SHUTDOWN WAIT_FOR_CLIENTS")[-1].type == "Z"
        assert refused(p), "whoever reads the answer finds the port closed"
        assert other.query("RESUME")[0].text == "pooler is shutting down"
    assert c.value("select 1") == "1"
    c.close()
    assert p.wait_exit() == 0


def test_shutdown_wait_for_servers(pooler):
    p = pooler()
    c, idle = p.login(), p.login()
    c.query("begin")
    with p.console() as console:
        console.send(wire.query("SHUTDOWN WAIT_FOR_SERVERS"))
        wait_until(lambda: refused(p), "no new connections")
        idle.send(wire.query("select 1"))
        assert idle.fatal().text == "server shutting down"
        assert c.value("select 1") == "1" and p.alive()
        c.send(wire.query("commit"))
        assert p.wait_exit() == 0
    c.close()


def refused(p):
    try:
        p.wire().close()
    except OSError:
        return True


# ---------------------------------------------------------------------------------------------- who, errors

def test_who_may(pooler):
    p = pooler()
    with p.wire() as c:
        c.start("alice", "pgbouncer")
        error = c.authenticate()[-1]
        assert (error.type, error.text) == ("E", "not allowed")
    with p.console("stats") as c:
        assert c.query("SHOW POOLS")[0].type == "T"
        for command in ("RELOAD", "PAUSE", "RESUME", "SHUTDOWN", "DISABLE", "KILL_CLIENT x"):
            error = c.query(command)[0]
            assert (error.type, error.text) == ("E", "admin access needed")
    with p.console() as c:
        assert c.params["server_version"].endswith("/bouncer")


def test_own_uid_over_the_unix_socket(pooler):
    p = pooler(auth_type="scram-sha-256", admin_users="")
    with wire.Wire(0, unix=p.unix) as c:
        c.start("pgbouncer", "pgbouncer")
        assert c.authenticate()[-1].type == "Z"
        assert c.query("SHOW VERSION")[0].type == "T"
        assert c.query("RELOAD")[0].tag == "RELOAD"
    p.wait_log("pgbouncer access from unix socket")


@pytest.mark.parametrize("text", ["", ";", "NONSENSE", "SHOW", "SHOW NOTHING", "SHOW 'quote", "RELOAD now",
                                  "SHOW VERSION; SHOW VERSION", "select 1 + 1", "\x01\x02", "SHUTDOWN sometime"])
def test_invalid_commands(pooler, text):
    with pooler().console() as c:
        out = c.query(text)
        assert [m.type for m in out] == ["E", "Z"], out
        assert out[0].fields["S"] == "ERROR" and out[0].text == f"invalid command '{text}', use SHOW HELP;"
        assert out[0].code == "08P01" or OURS
        assert c.query("show version;")[0].type == "T"
        assert c.query("SELECT version")[0].type == "T"


def test_extended_protocol_is_refused(pooler):
    p = pooler()
    with p.console() as c:
        c.send(wire.parse("", "SHOW VERSION"), wire.SYNC)
        out = c.until("E")
        assert out[-1].text == "extended query protocol not supported by admin console"
    assert p.show("VERSION")


def test_big_command(pooler):
    p = pooler()
    with p.console() as c:
        try:
            c.send(wire.query("SHOW " + "x" * 1_000_000))
            assert c.until("ZE")[-1].type == "E"
        except wire.Closed:
            pass
    assert p.show("VERSION")


def test_drivers_on_the_console(pooler):
    p = pooler()
    assert p.psql("show version", extra_env={"PGDATABASE": "pgbouncer", "PGUSER": "admin"}).stdout.strip()
    with psycopg.connect(host="127.0.0.1", port=p.port, dbname="pgbouncer", user="admin", autocommit=True,
                         sslmode="disable", cursor_factory=psycopg.ClientCursor) as c:
        row = c.execute("SHOW VERSION").fetchone()
        assert row and re.search(r"\d", row[0])
        assert c.execute("SHOW client_encoding").fetchone()


def test_console_under_load(pooler):
    """Every SHOW while clients come, work and go."""
    import threading
    p = pooler(default_pool_size=2)
    over = threading.Event()

    def churn():
        while not over.is_set():
            with p.login() as c:
                c.value("select 1")
    threads = [threading.Thread(target=churn, daemon=True) for _ in range(4)]
    [t.start() for t in threads]
    try:
        end = time.monotonic() + 2
        with p.console() as c:
            while time.monotonic() < end:
                for what in COLUMNS:
                    assert c.query(f"SHOW {what}")[-1].type == "Z"
    finally:
        over.set()
        [t.join(60) for t in threads]


@pytest.mark.workers(1, 4)
def test_suspend_stands_still_and_resume_goes_on(pooler):
    """A query under way is held where it is, queries that come wait in the kernel, new clients in the backlog."""
    p = pooler(default_pool_size=2, client_idle_timeout=1, suspend_timeout=5)
    with p.login() as busy, p.login() as idle, p.console() as admin:
        assert idle.value("select 1") == "1"
        busy.send(wire.query("select pg_sleep(0.5), 'busy'"))
        assert admin.query("SUSPEND")[0].tag == "SUSPEND"
        assert {r[0]: r[1] for r in admin.rows("SHOW STATE")}["suspended"] == "yes"
        idle.send(wire.query("select 'idle'"))
        late = p.wire()
        late.start()
        for w in (busy, idle, late):
            w.sock.settimeout(1.5)
            with pytest.raises(TimeoutError):
                w.exactly(1)
            w.sock.settimeout(60)
        assert [m.text for m in admin.query("SUSPEND") if m.type == "E"] == ["already suspended/paused"]
        assert admin.query("RESUME")[0].tag == "RESUME"
        assert busy.until()[1].row[1] == "busy"
        assert idle.until()[1].row == ["idle"]
        late.authenticate()
        assert late.value("select 'late'") == "late"
        late.close()


def make_stuck(client, pg):
    """Ask for more than all buffers hold, and do not read it."""
    client.send(wire.query("select repeat('x', 1000) from generate_series(1, 100000)"))
    stuck = "select 1 from pg_stat_activity where wait_event = 'ClientWrite' and client_addr is not null"
    # Once may be a slow moment of the pooler; it stopped reading when it stays so.
    wait_until(lambda: all(pg.sql(stuck) for _ in range(20)), "all buffers are full")


def test_active_sockets_are_those_with_bytes_to_send(pooler, pg):
    p = pooler()
    with p.wire(rcvbuf=4096).login() as deaf, p.login() as idle:
        idle.value("select 1")
        make_stuck(deaf, pg)
        rows = p.show("ACTIVE_SOCKETS")
        if OURS:
            assert [(r["type"], r["state"]) for r in rows] == [("C", "cl_active")], rows
            assert int(rows[0]["send_avail"]) > 0
        assert int(rows[0]["port"]) == deaf.sock.getsockname()[1]


def test_suspend_drops_who_does_not_read(pooler, pg):
    p = pooler(suspend_timeout=1)
    with p.wire(rcvbuf=4096).login() as deaf, p.console() as admin:
        make_stuck(deaf, pg)
        assert admin.query("SUSPEND")[0].tag == "SUSPEND"
        p.wait_log("closing because: suspend_timeout")
        assert admin.query("RESUME")[0].tag == "RESUME"
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_suspend_waits_for_the_rest_of_a_long_row(pooler):
    """The row that is under way goes to its end while its client reads on; nobody is dropped for it."""
    p = pooler(suspend_timeout=60)
    with p.wire(rcvbuf=4096, timeout=100).login() as slow, p.console() as admin:
        slow.send(wire.query("select repeat('x', 20000000) union all select repeat('y', 20000000)"))
        slow.sock.recv(4096)
        rest = []

        def read():
            while not rest or not rest[-1].endswith(b"SELECT 2\0" + wire.msg("Z", b"I")):
                data = slow.sock.recv(1 << 20)
                if not data:
                    return rest.append(b"dropped")
                rest[:] = [(b"".join(rest) + data)[-40:]]
        reader = threading.Thread(target=read)
        reader.start()
        assert admin.query("SUSPEND")[0].tag == "SUSPEND"
        assert admin.query("RESUME")[0].tag == "RESUME"
        reader.join()
        assert rest[-1] != b"dropped"
    assert "suspend_timeout" not in p.log_tail()


def test_suspend_ends_with_the_last_console(pooler):
    p = pooler()
    with p.login() as c:
        with p.console() as admin:
            assert admin.query("SUSPEND")[0].tag == "SUSPEND"
        p.wait_log("admin disappeared when suspended, doing RESUME")
        assert c.value("select 1") == "1"


def test_suspend_is_refused_while_paused(pooler):
    p = pooler()
    with p.login() as c, p.console() as admin:
        c.value("select 1")
        admin.query("PAUSE p0")
        assert [m.text for m in admin.query("SUSPEND") if m.type == "E"] == ["cannot suspend with paused databases"]
        admin.query("RESUME p0")
        admin.query("PAUSE")
        assert [m.text for m in admin.query("SUSPEND") if m.type == "E"] == ["already suspended/paused"]
