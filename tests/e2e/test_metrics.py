"""metrics_listen: the page for Prometheus, health, and an HTTP server that bad clients cannot hurt."""
import concurrent.futures
import http.client
import re
import socket
import struct
import subprocess

import pytest

import wire
from conftest import PATIENCE, SANITIZED, free_port, wait_until
from fakes import relay
from prometheus import Prometheus

pytestmark = pytest.mark.ours
LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@pytest.fixture
def serving(make_pooler):
    def make(**settings):
        port = free_port()
        p = make_pooler(**{"metrics_listen": f"127.0.0.1:{port}", **settings})
        p.metrics_port = port
        return p.start()
    return make


def get(p, path, method="GET", **headers):
    c = http.client.HTTPConnection("127.0.0.1", p.metrics_port, timeout=60)
    c.request(method, path, headers=headers)
    r = c.getresponse()
    return r.status, r.headers, r.read().decode()


def samples(text):
    """{(name, labels as sorted pairs): value} of an exposition; every line must be one."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        m = LINE.match(line)
        assert m, line
        key = m[1], tuple(sorted(LABEL.findall(m[2] or "")))
        assert key not in found, f"twice: {line}"
        found[key] = float(m[3])
    return found


def value(found, name, /, **labels):
    return found[name, tuple(sorted(labels.items()))]


def total(found, name, /, **labels):
    """The sum over all series of that name which have these labels."""
    return sum(v for (n, of), v in found.items() if n == name and set(labels.items()) <= set(of))


def scrape(p, **headers):
    return samples(get(p, "/metrics", **headers)[2])


def test_counts_are_exact(serving):
    p = serving()
    with p.login() as c:
        for _ in range(25):
            c.value("select 1")
        for q in ("begin", "select 2", "commit"):
            c.query(q)
    wait_until(lambda: p.pool()["cl_active"] == 0, "the client has left")
    got = samples(get(p, "/metrics")[2])
    stats = {r["database"]: r for r in p.show("STATS_TOTALS")}["p0"]
    at = {"database": "p0"}
    assert value(got, "pgbouncer_stats_queries_pooled_total", **at) == 28 == int(stats["query_count"])
    assert value(got, "pgbouncer_stats_received_bytes_total", **at) == int(stats["bytes_received"])
    assert value(got, "pgbouncer_stats_sent_bytes_total", **at) == int(stats["bytes_sent"])
    pool = {"database": "p0", "user": "alice"}
    transactions = int(stats["xact_count"])
    assert value(got, "pgbouncer_stats_sql_transactions_pooled_total", **at) == transactions
    assert value(got, "pgflotilla_query_seconds_count", **pool) == 28
    assert value(got, "pgflotilla_transaction_seconds_count", **pool) == transactions
    assert value(got, "pgflotilla_wait_seconds_count", **pool) == int(stats["server_assignment_count"])
    assert value(got, "pgflotilla_login_seconds_count", **pool) == 1
    assert value(got, "pgflotilla_connect_seconds_count", **pool) == 1
    assert value(got, "pgflotilla_query_seconds_sum", **pool) == pytest.approx(int(stats["query_time"]) / 1e6)
    assert value(got, "pgbouncer_pools_server_idle_connections", **pool) in (0, 1)  # session pooling may have reset it


def test_buckets_add_up(serving):
    p = serving(pool_mode="transaction")
    with p.login() as c:
        for _ in range(10):
            c.value("select 1")
        c.value("select pg_sleep(0.3)")
    got = samples(get(p, "/metrics")[2])
    buckets = sorted((float("inf") if dict(labels)["le"] == "+Inf" else float(dict(labels)["le"]), v)
                     for (name, labels), v in got.items()
                     if name == "pgflotilla_query_seconds_bucket" and ("user", "alice") in labels)
    counts = [v for _, v in buckets]
    assert counts == sorted(counts) and counts[-1] == 11
    assert max(v for le, v in buckets if le < 0.3) <= 10  # the slow one is not among the quick ones
    rows = {r["what"]: r for r in p.show("LATENCY") if r["user"] == "alice"}
    assert int(rows["query"]["count"]) == 11
    assert int(rows["query"]["max_us"]) >= 300_000 == max(300_000, int(rows["query"]["p50_us"]))
    assert int(rows["query"]["p50_us"]) <= int(rows["query"]["p90_us"]) <= int(rows["query"]["p99_us"]) \
        <= int(rows["query"]["p999_us"]) <= int(rows["query"]["max_us"])


def test_waiting_clients_are_seen(serving):
    p = serving(pool_mode="transaction", default_pool_size=1)
    with p.login() as holder, p.login() as waiter:
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
        got = samples(get(p, "/metrics")[2])
        pool = {"database": "p0", "user": "alice"}
        assert value(got, "pgbouncer_pools_client_waiting_connections", **pool) == 1
        assert value(got, "pgbouncer_pools_client_maxwait_seconds", **pool) > 0
        holder.query("commit")
        assert waiter.until()[1].row == ["1"]
    got = samples(get(p, "/metrics")[2])
    assert value(got, "pgflotilla_wait_seconds_sum", **pool) > 0


def test_openmetrics(serving):
    p = serving()
    status, headers, text = get(p, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200 and headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert "# TYPE pgflotilla_worker_transactions counter\n" in text
    assert "pgflotilla_worker_transactions_total{" in text
    status, headers, text = get(p, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4") and "# EOF" not in text
    assert "# TYPE pgflotilla_worker_transactions_total counter\n" in text


def test_promtool_accepts_it(serving):
    p = serving()
    with p.login() as c:
        c.value("select 1")
    text = get(p, "/metrics")[2]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    # Its only complaints are about two names that the PgBouncer exporter has chosen.
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if not line.startswith("pgbouncer_")] == [], done.stdout + done.stderr
    assert done.returncode in (0, 3), done


@pytest.mark.one_engine
@pytest.mark.skipif(SANITIZED, reason="ten thousand logins")
def test_ten_thousand_pools_stay_a_small_page(serving):
    """Bounded, and whoever is among the foremost stays there."""
    p = serving(databases={"*": "host=127.0.0.1 port=1"}, max_client_conn=20000, metrics_max_pools=50)
    with p.login() as c:
        for _ in range(10):
            c.value("select 1")
        assert value(scrape(p), "pgflotilla_query_seconds_count", database="p0", user="alice") == 10
        hello = struct.pack("!I", 3 << 16) + b"user\0alice\0database\0"

        def come_and_go(numbers):  # a pool exists from its first client on; nothing listens behind these
            for i in numbers:
                with socket.create_connection(("127.0.0.1", p.port)) as s:
                    body = hello + f"d{i}".encode() + b"\0\0"
                    s.sendall(struct.pack("!I", len(body) + 4) + body)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(come_and_go, [range(k, 10_000, 8) for k in range(8)]))
        wait_until(lambda: value(scrape(p), "pgbouncer_pools") > 10_000, "they have all been seen")
        got, text = scrape(p), get(p, "/metrics")[2]
        who = {dict(labels)["database"] for (name, labels) in got if name == "pgbouncer_pools_client_active_connections"}
        assert len(who) <= 51 and {"p0", "(others)"} <= who
        assert len({dict(of)["name"] for (name, of) in got if name == "pgbouncer_databases_pool_size"}) <= 51
        assert len(text) < 1_000_000
        assert value(got, "pgflotilla_query_seconds_count", database="p0", user="alice") == 10
        assert total(got, "pgflotilla_login_seconds_count") == total(got, "pgflotilla_client_logins_total")
        assert c.value("select 1") == "1"


def test_health(serving):
    p = serving()
    assert get(p, "/livez")[::2] == (200, "ok\n")
    assert get(p, "/readyz")[::2] == (200, "ok\n")
    with p.console() as admin:
        admin.query("PAUSE")
        assert get(p, "/readyz")[::2] == (503, "paused\n")
        assert get(p, "/livez")[0] == 200
        admin.query("RESUME")
        assert get(p, "/readyz")[0] == 200
        with p.login() as c:
            c.value("select 1")
            admin.query("SHUTDOWN WAIT_FOR_CLIENTS")
            assert get(p, "/readyz")[::2] == (503, "shutting down\n")


def test_ready_when_a_host_is_usable(serving, pg):
    """No host: not ready. And ready again when it is back, though no client has come meanwhile."""
    port = free_port()
    p = serving(databases={"p0": None, "p1": None, "x": f"host=127.0.0.1 port={port} dbname=p0"})
    p.admin("SET query_wait_timeout = 1")
    assert get(p, "/readyz")[0] == 200  # not known to be bad
    with p.wire() as c:
        c.start("alice", "x")
        c.authenticate()
        c.until_closed()
    assert get(p, "/readyz")[::2] == (503, "no usable host\n")
    assert get(p, "/livez")[0] == 200
    with relay(port, pg.port):
        wait_until(lambda: get(p, "/readyz")[0] == 200, "it is ready again")
        p.admin("SET query_wait_timeout = 60")
        with p.login(database="x") as c:
            assert c.value("select 1") == "1"


def test_one_usable_host_is_enough(serving):
    p = serving(databases={"x": "host=127.0.0.1 port=1"}, query_wait_timeout=1)
    with p.wire() as c:
        c.start("alice", "x")
        c.authenticate()
        c.until_closed()
    assert get(p, "/readyz")[0] == 200  # p0 and p1 work
    got = scrape(p)
    assert value(got, "pgflotilla_host_out", database="x", host="127.0.0.1", port="1", address="127.0.0.1:1") == 1
    assert value(got, "pgflotilla_host_failures_total", database="x", host="127.0.0.1", port="1",
                 address="127.0.0.1:1") >= 1


# ---------------------------------------------------------------------------------------------- the same as the console

# The names of prometheus-community/pgbouncer_exporter: column of SHOW, name of the metric, factor.
OF_POOLS = {"cl_active": "client_active_connections", "cl_waiting": "client_waiting_connections",
            "cl_active_cancel_req": "client_active_cancel_connections",
            "cl_waiting_cancel_req": "client_waiting_cancel_connections", "sv_active": "server_active_connections",
            "sv_active_cancel": "server_active_cancel_connections",
            "sv_being_canceled": "server_being_canceled_connections", "sv_idle": "server_idle_connections",
            "sv_used": "server_used_connections", "sv_tested": "server_testing_connections",
            "sv_login": "server_login_connections"}
OF_STATS = {"query_count": ("queries_pooled_total", 1), "query_time": ("queries_duration_seconds_total", 1e-6),
            "bytes_received": ("received_bytes_total", 1), "bytes_sent": ("sent_bytes_total", 1),
            "wait_time": ("client_wait_seconds_total", 1e-6), "xact_count": ("sql_transactions_pooled_total", 1),
            "xact_time": ("server_in_transaction_seconds_total", 1e-6), "client_parse_count": ("client_parses_total", 1),
            "server_parse_count": ("server_parses_total", 1), "bind_count": ("binds_total", 1)}
OF_DATABASES = {"pool_size": "pool_size", "reserve_pool_size": "reserve_pool", "max_connections": "max_connections",
                "current_connections": "current_connections", "paused": "paused", "disabled": "disabled"}
OF_LISTS = {"databases": "databases", "users": "users", "pools": "pools", "free_clients": "free_clients",
            "used_clients": "used_clients", "login_clients": "login_clients", "free_servers": "free_servers",
            "used_servers": "used_servers", "dns_names": "cached_dns_names", "dns_zones": "cached_dns_zones",
            "dns_queries": "in_flight_dns_queries"}


def test_equal_to_the_console_and_to_the_generator(serving):
    """After a run of pgbench: every number of the exporter, the hosts', the workers', and pgbench's own counts."""
    p = serving(default_pool_size=3, server_idle_timeout=0, max_user_connections=50)
    p.databases["p1"] += " max_db_connections=7"
    p.write_ini()
    p.admin("RELOAD")
    sql = p.dir / "two.sql"
    sql.write_text("begin;\nselect 1;\nselect 2;\nend;\n")
    done = p.run("pgbench", "-n", "-f", sql, "-c", 8, "-j", 2, "-t", 100, "p0")
    assert "processed: 800/800" in done.stdout
    with p.login(user="bob", database="p1") as c, p.console("stats") as console:
        c.value("select 1")
        # The console that asks is there for both.
        def show(what):
            out = console.query(f"SHOW {what}")
            names = [n for n, _ in next(m for m in out if m.type == "T").columns]
            return [dict(zip(names, m.row)) for m in out if m.type == "D"]
        wait_until(lambda: sum(int(r["cl_active"]) for r in show("POOLS") if r["database"] == "p0") == 0, "pgbench has left")
        wait_until(lambda: {r["items"] for r in show("LISTS") if r["list"] in ("dns_queries", "login_clients")} == {"0"})
        got = scrape(p)
        pools = [r for r in show("POOLS") if r["database"] != "pgbouncer"]  # the console's own clients count there
        assert {r["database"] for r in pools} == {"p0", "p1"}
        for row in pools:
            for column, name in OF_POOLS.items():
                assert value(got, f"pgbouncer_pools_{name}", database=row["database"], user=row["user"]) == \
                    int(row[column]), (row, name)
        for row in show("STATS_TOTALS"):
            if row["database"] == "pgbouncer":
                continue
            for column, (name, factor) in OF_STATS.items():
                assert value(got, f"pgbouncer_stats_{name}", database=row["database"]) == \
                    pytest.approx(int(row[column]) * factor), (row, name)
        for row in show("DATABASES"):
            of = {k: row[k] or "" for k in ("name", "host", "port", "database", "force_user", "pool_mode")}
            for column, name in OF_DATABASES.items():
                assert value(got, f"pgbouncer_databases_{name}", **of) == int(row[column]), (row, name)
        for row in show("LISTS"):
            if row["list"] in OF_LISTS:
                assert value(got, f"pgbouncer_{OF_LISTS[row['list']]}") == int(row["items"]), row
        config = {r["key"]: r["value"] for r in show("CONFIG")}
        assert value(got, "pgbouncer_config_max_client_connections") == int(config["max_client_conn"])
        assert value(got, "pgbouncer_config_max_user_connections") == 50
        for row in show("HOSTS"):
            of = {k: row[k] or "" for k in ("database", "host", "port", "address")}
            assert value(got, "pgflotilla_host_connections", **of) == int(row["open"]), row
            assert value(got, "pgflotilla_host_active_connections", **of) == int(row["active"]), row
            assert value(got, "pgflotilla_host_info", **of, role=row["role"], state=row["state"]) == 1
        for row in show("WORKERS"):
            of = {"worker": row["worker"]}
            assert value(got, "pgflotilla_worker_clients", **of) == int(row["clients"])
            assert value(got, "pgflotilla_worker_servers_idle", **of) == int(row["servers_idle"])
        assert total(got, "pgflotilla_worker_transactions_total") == \
            total(got, "pgbouncer_stats_sql_transactions_pooled_total")
        for row in show("USERS"):
            assert value(got, "pgflotilla_user_servers", user=row["name"]) == int(row["current_connections"])
            assert value(got, "pgflotilla_user_clients", user=row["name"]) == int(row["current_client_connections"])

    # What pgbench did: 800 transactions of four requests from 8 clients, 3 servers.
    of = {"database": "p0", "user": "alice"}
    assert value(got, "pgflotilla_transaction_seconds_count", **of) == 800
    assert value(got, "pgflotilla_wait_seconds_count", **of) == 800
    assert value(got, "pgflotilla_query_seconds_count", **of) == 3200
    assert value(got, "pgflotilla_login_seconds_count", **of) == 9  # it comes once before, to look around
    assert value(got, "pgflotilla_connect_seconds_count", **of) == 3 == value(got, "pgflotilla_pool_size", **of)
    for what, n in (("transaction", 801), ("query", 3201), ("wait", 801), ("connect", 4)):
        assert total(got, f"pgflotilla_worker_{what}_seconds_count") == n, what
        assert total(got, f"pgflotilla_worker_{what}_seconds_bucket", le="+Inf") == n
    address = f"127.0.0.1:{p.pg.port}"
    assert value(got, "pgflotilla_host_query_seconds_count", address=address) == 3201
    assert value(got, "pgflotilla_host_connect_seconds_count", address=address) == 4
    assert value(got, "pgflotilla_database_clients", database="p1") == 1
    assert value(got, "pgbouncer_databases_max_connections", name="p1", host="127.0.0.1", port=str(p.pg.port),
                 database="p1", force_user="", pool_mode="") == 7


def test_cancels_by_outcome(serving):
    p = serving(default_pool_size=1)

    def counts():
        return {dict(of)["outcome"]: int(v) for (name, of), v in scrape(p).items() if name == "pgflotilla_cancels_total"}
    none = {o: 0 for o in ("sent", "queued", "idle", "console", "unknown", "timeout", "failed")}
    assert counts() == none
    with p.login() as runs, p.login() as queued, p.console() as console:
        runs.value("select 1")
        wire.cancel(runs.address, runs.key)
        assert counts() == none | {"idle": 1}
        runs.send(wire.query("select pg_sleep(60)"))
        wait_until(lambda: p.pool()["sv_active"] == 1)
        queued.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        wire.cancel(queued.address, queued.key)
        wait_until(lambda: counts() == none | {"idle": 1, "queued": 1})
        wire.cancel(runs.address, runs.key)
        assert [m.code for m in runs.until() if m.type == "E"] == ["57014"]
        wait_until(lambda: counts() == none | {"idle": 1, "queued": 1, "sent": 1})
        wire.cancel(runs.address, bytes(8))
        wire.cancel(console.address, console.key)
        wait_until(lambda: counts() == none | {"idle": 1, "queued": 1, "sent": 1, "unknown": 1, "console": 1})


def test_refused_logins(serving):
    p = serving(auth_type="plain", userlist={"alice": "pw"})
    with p.login(password="pw") as c:
        c.value("select 1")
        assert total(scrape(p), "pgflotilla_worker_logins_refused_total") == 0
        for user, database, password in (("alice", "p0", "wrong"), ("nobody", "p0", "pw"), ("alice", "nowhere", "pw")):
            with p.wire() as other:
                other.start(user, database)
                assert other.authenticate(password)[-1].type == "E"
        with p.wire() as other:  # who leaves by himself has not been refused
            other.start("alice", "p0")
            other.recv()
    wait_until(lambda: value(scrape(p), "pgbouncer_used_clients") == 0, "they have left")
    assert total(scrape(p), "pgflotilla_worker_logins_refused_total") == 3


def test_servers_that_change_workers_take_their_host_along(serving):
    """One server, clients on two workers: every query is the address's, whoever's worker it was on."""
    p = serving(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for _ in range(20):
            a.value("select 1")
            b.value("select 1")
        got = scrape(p)
        assert value(got, "pgflotilla_host_query_seconds_count", address=f"127.0.0.1:{p.pg.port}") == 40
        assert total(got, "pgflotilla_worker_servers_in_total") == total(got, "pgflotilla_worker_servers_out_total")


def test_after_a_takeover(serving):
    p = serving()
    with p.login() as c:
        c.value("select 1")
        old = p.proc
        p.spawn("-R")
        assert old.wait(60) == 0, p.log_tail()
        wait_until(p.ready, "the new process is up")
        wait_until(lambda: get_or_none(p) == 200, "the new process serves pages")
        c.value("select 1")
        got = scrape(p)
        assert value(got, "pgflotilla_query_seconds_count", database="p0", user="alice") == 1
        assert value(got, "pgflotilla_host_query_seconds_count", address=f"127.0.0.1:{p.pg.port}") == 1


def test_a_real_prometheus(serving):
    """Debian's, with a token, in the format that it prefers. It finds the very numbers that the page shows."""
    p = serving(metrics_token="s3cret")
    with p.login() as c:
        for _ in range(7):
            c.value("select 1")
    with Prometheus(p, authorization={"credentials": "s3cret"}) as monitor:
        def query(expression):
            found = monitor.query(expression)
            return found and [float(r["value"][1]) for r in found]
        wait_until(lambda: query("up") == [1.0], "Prometheus has scraped")
        wait_until(lambda: query('pgflotilla_query_seconds_count{database="p0"}') == [7.0])
        assert query("pgbouncer_up") == [1.0]
        assert query('pgflotilla_query_seconds_bucket{database="p0",le="+Inf"}') == [7.0]
        assert query('pgbouncer_stats_queries_pooled_total{database="p0"}') == [7.0]
        assert 0 < query('histogram_quantile(0.99, pgflotilla_query_seconds_bucket{database="p0"})')[0] < 67.2
        (target,) = monitor.ask("/api/v1/targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert query("scrape_samples_scraped")[0] == len(scrape(p, Authorization="Bearer s3cret"))
        assert "out of order" not in (text := monitor.log.read_text()) and "duplicate" not in text, text


# ---------------------------------------------------------------------------------------------- HTTP

def test_token(serving):
    p = serving(metrics_token="s3cret")
    assert get(p, "/metrics")[0] == 401
    assert get(p, "/metrics", Authorization="Bearer wrong")[0] == 401
    assert get(p, "/metrics", Authorization="s3cret")[0] == 401
    status, _, text = get(p, "/metrics", Authorization="Bearer s3cret")
    assert status == 200 and "pgbouncer_up 1" in text
    assert get(p, "/livez")[0] == 200  # tells nothing
    shown = {r["key"]: r["value"] for r in p.show("CONFIG")}
    assert "s3cret" not in shown.values() and shown["metrics_token"] == "********"


def test_what_is_not_there(serving):
    p = serving()
    assert get(p, "/")[0] == 404
    assert get(p, "/../etc/passwd")[0] == 404
    status, headers, _ = get(p, "/metrics", method="POST")
    assert status == 405 and headers["Allow"] == "GET, HEAD"
    status, headers, text = get(p, "/metrics", method="HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 0 and text == ""


def test_bad_clients_cost_nothing(serving):
    p = serving()
    silent = [socket.create_connection(("127.0.0.1", p.metrics_port)) for _ in range(40)]
    half = socket.create_connection(("127.0.0.1", p.metrics_port))
    half.sendall(b"GET /metr")
    for bad in (b"\x16\x03\x01\x02\x00\x01", b"\0\0\0\x08\x04\xd2\x16\x2f", b"GET / HTTP/9\r\n\r\n", b"A" * 9000,
                b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"):
        with socket.create_connection(("127.0.0.1", p.metrics_port)) as s:
            s.settimeout(60)
            s.sendall(bad)
            assert s.recv(100).startswith(b"HTTP/1.1 505" if b"HTTP/9" in bad else b"HTTP/1.1 4"), bad
    deaf = socket.create_connection(("127.0.0.1", p.metrics_port))
    deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    gone = socket.create_connection(("127.0.0.1", p.metrics_port))
    gone.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    gone.close()
    assert get(p, "/metrics")[0] == 200
    with p.login() as c:
        assert c.value("select 1") == "1"
    # There is room for 64: the oldest that have asked for nothing make way.
    more = [socket.create_connection(("127.0.0.1", p.metrics_port)) for _ in range(60)]
    silent[0].settimeout(PATIENCE)
    assert silent[0].recv(1) == b""
    assert p.alive()
    for s in (*silent, *more, half, deaf):
        s.close()
    wait_until(lambda: get_or_none(p) == 200, "it serves again")


def get_or_none(p):
    try:
        return get(p, "/livez")[0]
    except OSError:
        return None
    except http.client.HTTPException:
        return None


def test_a_port_that_is_taken_is_an_error(make_pooler):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        with pytest.raises(AssertionError) as failed:
            p = make_pooler(metrics_listen=f"127.0.0.1:{s.getsockname()[1]}")
            p.expect_exit = 1
            p.start()
    assert "cannot listen on metrics_listen" in str(failed.value)
