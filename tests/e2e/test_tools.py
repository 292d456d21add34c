"""Tools that know PgBouncer's console, from Debian's archive and from elsewhere, run against ours.

What is not installed is skipped with a word; scripts/setup-debian installs what is small.
"""
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import psycopg
import psycopg2
import pytest

from conftest import PATIENCE, engines, free_port, wait_until

PERL = {"PERL5LIB": "/usr/share/perl5", "LC_ALL": "C"}


@pytest.fixture
def p(pooler):
    """A pooler that has done something, so that no report is empty."""
    p = pooler(ignore_startup_parameters="extra_float_digits", stats_users="stats, pgbouncer, postgres, exporter",
               userlist={name: "" for name in ("pgbouncer", "postgres", "exporter")})
    with p.login() as c:
        for _ in range(5):
            assert c.value("select 1") == "1"
        yield p


def tool(*argv, env=None, cwd=None, check=True):
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run([str(a) for a in argv], env={**os.environ, **(env or {})}, cwd=cwd, text=True, timeout=PATIENCE,
                          capture_output=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def scrape(port, proc):
    def ask():
        assert proc.poll() is None, proc.stderr.read()
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read().decode()
        except OSError:
            return None
    text = wait_until(ask, "the exporter answers")
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("pgbouncer_"))


# ---------------------------------------------------------------------------------------------- Prometheus

# The version in Debian (1.7) asks SHOW STATS for total_requests and SHOW DATABASES for reserve_pool, which PgBouncer itself
# renamed in 1.8 and 1.24: with any PgBouncer since, it stops at its start. These two words are put right, the rest is its own.
EXPORTER = """
import sys
from prometheus_pgbouncer_exporter import cli, collectors
if sys.argv.pop(1) == "mended":
    metrics = collectors.StatsCollector.metrics
    metrics["total_query_count"] = metrics.pop("total_requests")
    metrics = collectors.DatabasesCollector.metrics
    metrics["reserve_pool_size"] = metrics.pop("reserve_pool")
cli.main()
"""


def debian_exporter(p, how):
    try:
        import prometheus_pgbouncer_exporter  # noqa: F401
    except ImportError:
        pytest.skip("prometheus-pgbouncer-exporter is not installed")
    port = free_port()
    return port, subprocess.Popen([sys.executable, "-c", EXPORTER, how, "--host", "127.0.0.1", "--port", str(port),
                                   "--pgbouncer-host", "127.0.0.1", "--pgbouncer-port", str(p.port)],
                                  stderr=subprocess.PIPE, text=True, env={**os.environ, "PGSSLMODE": "disable"})


def test_prometheus_exporter_of_debian(p):
    port, proc = debian_exporter(p, "mended")
    try:
        got = scrape(port, proc)
        pools = ('active_clients', 'waiting_clients')
        assert {k for k in got if 'database="p0"' in k} == {
            *(f'pgbouncer_{n}{{database="p0"}}' for n in ("requests_total", "received_bytes_total", "sent_bytes_total",
                                                         "query_microseconds_total")),
            *(f'pgbouncer_{n}{{database="p0",user="alice"}}' for n in pools),
            'pgbouncer_pool_size{database="p0"}', 'pgbouncer_reserve_pool{database="p0"}',
        }
        assert float(got['pgbouncer_requests_total{database="p0"}']) >= 5
        for name in ("databases", "users", "pools", "free_clients", "used_clients", "login_clients", "free_servers",
                     "used_servers", "dns_names", "dns_zones", "dns_queries", "dns_pending"):
            assert float(got[f"pgbouncer_{name}"]) >= 0
        assert got["pgbouncer_databases"] == "3.0"
    finally:
        proc.kill()
        proc.wait()


def test_prometheus_exporter_of_debian_as_it_is(p):
    """Fails as it does with PgBouncer. If a later version does not, the test above can go."""
    _, proc = debian_exporter(p, "as it is")
    try:
        _, err = proc.communicate(timeout=PATIENCE)
        assert "KeyError: 'total_requests'" in err
    finally:
        proc.kill()


def test_prometheus_exporter_of_the_community(p):
    """prometheus-community/pgbouncer_exporter is no package of Debian's: POOLER_EXPORTER names one."""
    exe = os.environ.get("POOLER_EXPORTER")
    if not exe:
        pytest.skip("POOLER_EXPORTER names no pgbouncer_exporter")
    port = free_port()
    proc = subprocess.Popen([exe, f"--web.listen-address=127.0.0.1:{port}",
                             f"--pgBouncer.connectionString=postgres://exporter@127.0.0.1:{p.port}/pgbouncer?sslmode=disable"],
                            stderr=subprocess.PIPE, text=True)
    try:
        got = scrape(port, proc)
        assert got["pgbouncer_up"] == "1"
        names = {re.sub(r"\{.*", "", k) for k in got}
        assert {f"pgbouncer_{n}" for n in COMMUNITY.split()} <= names, names
        assert float(got['pgbouncer_stats_queries_pooled_total{database="p0"}']) >= 5
    finally:
        proc.kill()
        log = proc.communicate()[1]
    assert "level=error" not in log and "level=warn" not in log, log


COMMUNITY = """
up version_info databases users pools free_clients used_clients login_clients free_servers used_servers cached_dns_names
cached_dns_zones in_flight_dns_queries config_max_client_connections config_max_user_connections databases_pool_size
databases_max_connections databases_current_connections databases_paused databases_disabled
stats_queries_pooled_total stats_queries_duration_seconds_total stats_received_bytes_total stats_sent_bytes_total
stats_client_wait_seconds_total stats_sql_transactions_pooled_total stats_server_in_transaction_seconds_total
pools_client_active_connections pools_client_waiting_connections pools_server_active_connections
pools_server_idle_connections pools_server_used_connections pools_server_testing_connections
pools_server_login_connections pools_client_maxwait_seconds
"""

# Who reads what: the columns by which these find their figures, and which of them must be numbers.
READS = {
    "pgbouncer_exporter": {
        "DATABASES": ("name host port database force_user pool_mode", "pool_size reserve_pool_size max_connections "
                      "current_connections paused disabled"),
        "STATS_TOTALS": ("database", "query_count query_time bytes_received bytes_sent wait_time xact_count xact_time "
                         "client_parse_count server_parse_count bind_count server_assignment_count"),
        "POOLS": ("database user", "cl_active cl_active_cancel_req cl_waiting cl_waiting_cancel_req sv_active "
                  "sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait"),
        "CLIENTS": ("database user state application_name", ""),
    },
    "telegraf": {
        "STATS": ("database", "avg_query_count avg_query_time avg_wait_time avg_xact_count avg_xact_time "
                  "total_query_count total_query_time total_received total_sent total_wait_time total_xact_count "
                  "total_xact_time"),
        "POOLS": ("database user pool_mode", "cl_active cl_waiting maxwait maxwait_us sv_active sv_idle sv_login "
                  "sv_tested sv_used"),
    },
}


@pytest.mark.parametrize("who", READS)
def test_columns_that_tools_read(p, who):
    for view, (texts, numbers) in READS[who].items():
        rows = p.show(view, "exporter")
        assert rows, view
        for row in rows:
            assert set(texts.split()) | set(numbers.split()) <= set(row), view
            for column in numbers.split():
                float(row[column])


# ---------------------------------------------------------------------------------------------- check_postgres, munin

@pytest.mark.parametrize("what", ["cl_active", "cl_waiting", "sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login",
                                  "maxwait"])
def test_check_postgres_pools(p, what):
    said = tool("check_postgres", f"--action=pgb_pool_{what}", "-H", "127.0.0.1", "-p", p.port, "-u", "pgbouncer", "-w", 50,
                "-c", 60, env=PERL)
    assert " OK: " in said and re.search(r"p0=\d+", said), said


def test_check_postgres_limits_and_settings(p):
    at = ["-H", "127.0.0.1", "-p", p.port, "-u", "pgbouncer"]
    said = tool("check_postgres", "--action=pgbouncer_backends", *at, "-w", 50, "-c", 60, env=PERL)
    assert " OK: " in said and re.search(r"\d+ of 1000 connections", said), said
    said = tool("check_postgres", "--action=pgbouncer_checksum", *at, "-c", 0, env=PERL, check=False)
    (sum_,) = re.findall(r"checksum: ([0-9a-f]{32})", said)
    assert " OK: " in tool("check_postgres", "--action=pgbouncer_checksum", *at, "-c", sum_, env=PERL)
    p.admin("SET query_timeout = 77")
    said = tool("check_postgres", "--action=pgbouncer_checksum", *at, "-c", sum_, env=PERL, check=False)
    assert "CRITICAL" in said, said


@pytest.mark.parametrize("plugin, values", [("pgbouncer_connections", "cl_active cl_waiting sv_active sv_idle"),
                                            ("pgbouncer_requests", "p0")])
def test_munin(p, plugin, values):
    path = Path("/usr/share/munin/plugins") / plugin
    if not path.exists():
        pytest.skip("munin-plugins-core is not installed")
    env = {**PERL, "PGHOST": "127.0.0.1", "PGPORT": str(p.port), "PGUSER": "pgbouncer", "PGSSLMODE": "disable",
           "MUNIN_LIBDIR": "/usr/share/munin", "MUNIN_PLUGSTATE": str(p.dir)}
    assert tool("perl", path, "autoconf", env=env).startswith("yes")
    config, figures = tool("perl", path, "config", env=env), tool("perl", path, env=env)
    for name in values.split():
        assert f"{name}.label" in config
        assert re.search(rf"(?m)^{name}\.value \d+$", figures), figures


def test_pgcluu(p):
    out = p.dir / "pgcluu"
    out.mkdir()
    said = tool("pgcluu_collectd", "-i", 1, "--end-counter", 1, "--disable-sar", "--pid-file", p.dir / "pgcluu.pid", "-h", "127.0.0.1", "-p", p.port, "-U", "stats", "-d",
         "pgbouncer", "--pgbouncer-args", f"-h 127.0.0.1 -p {p.port} -U stats", "--metric", "pgbouncer,pgbouncer_req", out,
         env={"PGSSLMODE": "disable"}, cwd=p.dir, check=False)
    assert (out / "pgbouncer_stats.csv").exists(), said
    pools = (out / "pgbouncer_stats.csv").read_text().splitlines()
    stats = (out / "pgbouncer_req_stats.csv").read_text().splitlines()
    assert any(line.split(";")[1:3] == ["p0", "alice"] for line in pools), pools
    assert any(line.split(";")[1] == "p0" for line in stats), stats


# ---------------------------------------------------------------------------------------------- by hand, by program

def test_psql_by_hand(p):
    run = p.run("psql", "-XA", "-U", "admin", "pgbouncer", input="\\x\nshow version;\n\\x off\n\\t\nshow version\n\\g\n"
                "\\conninfo\n\\pset format csv\nshow lists;\n\\d\nreload;\nshow nothing;\nshow version;\n")
    assert run.stdout.count("version|") == 1  # expanded, then not
    assert "databases,3" in run.stdout and "RELOAD" in run.stdout
    assert 'You are connected to database "pgbouncer" as user "admin"' in run.stdout
    errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR:")]
    assert len(errors) == 2 and run.stderr.count("use SHOW HELP") == 2  # \d asks for tables, and `show nothing`
    # Several commands by -c are several messages.
    run = p.run("psql", "-XAtq", "-U", "admin", "pgbouncer", "-c", "show version", "-c", "show users", "--csv")
    assert "alice," in run.stdout


@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor])
@pytest.mark.parametrize("prepare", [None, 0, 5])
def test_psycopg_on_the_console(p, cursor, prepare):
    """Without parameters psycopg asks simply, and so it works. Parameters and statements prepared at once are the extended
    protocol: one plain error, as in PgBouncer, and the connection is over."""
    def connect():
        return psycopg.connect(host="127.0.0.1", port=p.port, user="admin", dbname="pgbouncer", autocommit=True,
                               sslmode="disable", prepare_threshold=prepare, cursor_factory=cursor)
    simple = cursor is psycopg.ClientCursor or prepare != 0
    with connect() as c:
        if simple:
            assert c.execute("SHOW VERSION").fetchone()[0].startswith("PgBouncer")
            assert {d[0] for d in c.execute("SHOW POOLS").description} >= {"database", "cl_active"}
            assert c.execute("RELOAD").statusmessage == "RELOAD"
            with pytest.raises(psycopg.Error, match="invalid command"):
                c.execute("SELECT no_such_thing")
            assert c.execute("SHOW USERS").fetchall()
    for sql, args in (("SHOW VERSION", None), ("SHOW %s", ("VERSION",))):
        if cursor is psycopg.ClientCursor or simple and args is None:
            continue
        with pytest.raises(psycopg.Error, match="extended query protocol not supported by admin console"), connect() as c:
            c.execute(sql, args)


def test_psycopg2_on_the_console(p):
    with psycopg2.connect(host="127.0.0.1", port=p.port, user="admin", dbname="pgbouncer", sslmode="disable") as c:
        with pytest.raises(psycopg2.Error, match="invalid command 'BEGIN"):
            c.cursor().execute("SHOW VERSION")  # it says BEGIN first
    c = psycopg2.connect(host="127.0.0.1", port=p.port, user="admin", dbname="pgbouncer", sslmode="disable")
    c.autocommit = True
    cursor = c.cursor()
    cursor.execute("SHOW %s" % "POOLS")
    assert "p0" in [row[0] for row in cursor.fetchall()]
    cursor.execute("RELOAD")
    assert cursor.statusmessage == "RELOAD"
    c.close()


JAVA = """
import java.sql.*;
public class Console {
  public static void main(String[] a) throws Exception {
    try (Connection c = DriverManager.getConnection(a[0]); Statement s = c.createStatement()) {
      for (String what : new String[] {"VERSION", "POOLS", "STATS", "LISTS"})
        try (ResultSet r = s.executeQuery("SHOW " + what)) {
          int rows = 0;
          while (r.next()) rows++;
          System.out.println(what + " " + rows);
        }
      s.executeUpdate("RELOAD");
    }
  }
}
"""


def test_jdbc_on_the_console(p):
    """preferQueryMode=simple is how one asks PgBouncer's console from Java."""
    if p.engine != engines()[0]:
        pytest.skip("once is enough: it is slow, and the engine is no part of it")
    jar = "/usr/share/java/postgresql.jar"
    if not os.path.exists(jar):
        pytest.skip("libpostgresql-jdbc-java is not installed")
    (p.dir / "Console.java").write_text(JAVA)
    said = tool("java", "-XX:TieredStopAtLevel=1", "-cp", jar, p.dir / "Console.java",
                f"jdbc:postgresql://127.0.0.1:{p.port}/pgbouncer?user=admin&sslmode=disable&preferQueryMode=simple")
    assert re.search(r"(?m)^VERSION 1$", said) and re.search(r"(?m)^POOLS [1-9]", said), said
