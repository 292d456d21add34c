"""Inis that others wrote for PgBouncer: --check finds them good, and they start and serve. See inis/README.md."""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from conftest import PASSWORD, free_port, wait_until
from test_check import check
from wire import Wire

pytestmark = pytest.mark.ours
HERE = Path(__file__).parent / "inis"
INIS = sorted(HERE.glob("*.ini"))
FOLDERS = {"/etc/pooler": "etc", "/run/pooler": "run", "/var/log/pooler": "log",  # ours, and PgBouncer's in its own sample
           "/etc/pgbouncer": "etc", "/var/run/pgbouncer": "run", "/var/log/pgbouncer": "log"}
PGBOUNCER = os.environ.get("BOUNCER_EXE", "")
SERVED = {"operator": ("shop", "alice"), "layered": ("orders", "alice"), "buildpack": ("db1", "alice"),
          "fleet": ("meta", "alice"), "cluster": ("ledger", "s_scram")}


@pytest.fixture
def home():
    """Short, because of the Unix socket's path, with what the inis refer to."""
    folder = Path(tempfile.mkdtemp(prefix="pgf-", dir="/tmp"))
    for name in set(FOLDERS.values()):
        (folder / name).mkdir()
    etc = folder / "etc"
    for name in ("users.txt", "userlist.txt"):
        (etc / name).write_text("".join(f'"{user}" "{PASSWORD.replace(chr(34), chr(34) * 2)}"\n' for user in (
            "alice", "admin", "postgres", "lookup", "_pooler")))
    (etc / "custom.ini").write_text("")
    (etc / "hba.conf").write_text("local all postgres peer\nhost all all 127.0.0.1/32 scram-sha-256\n"
                                  "host all all all scram-sha-256\n")
    (etc / "useropts.txt").write_text("dbuser_meta = pool_mode=session max_user_connections=16\nalice = pool_size=9\n")
    (etc / "database.txt").write_text("meta = host=/run/postgresql port=5432 dbname=p0 pool_mode=session pool_size=20\n"
                                      "grafana = host=/run/postgresql port=5432 dbname=p1\n")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=localhost", "-keyout", etc / "server.key", "-out", etc / "server.crt"], check=True,
                   capture_output=True)
    shutil.copy(etc / "server.crt", etc / "root.crt")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def moved(ini, home):
    """The ini with its folders moved to `home`, and itself there."""
    text = ini.read_text()
    for there, here in FOLDERS.items():
        text = text.replace(there, str(home / here))
    copy = home / ini.name
    copy.write_text(text)
    return copy


@pytest.mark.parametrize("ini", INIS, ids=lambda p: p.stem)
def test_check_of_an_ini_of_others(ini, home):
    status, said = check(moved(ini, home), cwd=home)
    assert status == 0 and " 0 errors, " in said and "good to start" in said, said
    allowed = ("admin_users is empty", "file descriptors may be needed")
    assert all(any(a in line for a in allowed) for line in said.splitlines() if line.startswith("warning: ")), said
    if ini.stem == "cluster":
        assert "so_reuseport: one process uses all cores" in said
        assert "Old Shop" in said and "50 + 1 reserve servers" in said


@pytest.fixture
def user_search(pg):
    """What cluster.ini looks its users up with."""
    pg.sql("create role pooler_lookup login")
    pg.sql("create function user_search(name text, out usename name, out passwd text) returns record language sql "
           "security definer as 'select s.usename, s.passwd from pg_shadow s where s.usename = name'")
    yield
    pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'pooler_lookup'")
    pg.sql("drop function user_search")
    pg.sql("drop role pooler_lookup")


@pytest.mark.parametrize("ini", INIS, ids=lambda p: p.stem)
def test_ini_of_others_starts_and_serves(ini, home, make_pooler, pg, user_search):
    """As it is but for hosts and ports, and the server's TLS (this one has none), which are not everybody's."""
    p = make_pooler()
    copy = moved(ini, home)
    files = [copy, home / "etc" / "database.txt"]
    for f in files:
        text = re.sub(r"host=\S+", "host=127.0.0.1", f.read_text())
        text = re.sub(r"port=\d+", f"port={pg.port}", text)
        text = re.sub(r"dbname=(?!p\d\b)('[^']*'|\S+)", "dbname=p0", text)
        text = re.sub(r"(?m)^\* = (?!.*dbname)", "* = dbname=p0 ", text)
        text = re.sub(r"(?m)^listen_port( *=) *\d+", rf"listen_port\1 {p.port}", text)
        text = re.sub(r"(?m)^server_tls_(sslmode|ca_file).*\n", "", text)
        f.write_text(text)
    p.ini, p.dir = copy, home
    p.logfile, p.pidfile = home / "log" / "no", home / "run" / "no"
    p.spawn()
    database, user = SERVED[ini.stem]
    wait_until(lambda: (p.alive() or pytest.fail(p.stderr.read_text())) and "process up" in p.stderr.read_text(), "it is up")
    tls = "client_tls_sslmode = require" in copy.read_text()
    with psycopg.connect(host="127.0.0.1", port=p.port, dbname=database, user=user, password=PASSWORD, autocommit=True,
                         sslmode="require" if tls else "prefer") as c:
        assert c.execute("select current_user::text, current_database()::text").fetchone() == (user, "p0")
        assert c.pgconn.ssl_in_use == ("client_tls_sslmode" in copy.read_text())
    if tls:
        with Wire(p.port) as c:
            c.start(user, database)
            assert c.fatal().text == "SSL required"


@pytest.mark.skipif(not PGBOUNCER, reason="BOUNCER_EXE names a PgBouncer whose sources are beside it")
@pytest.mark.parametrize("name, settings", [("pgbouncer.ini", 80), ("pgbouncer-minimal.ini", 12)])
def test_check_of_pgbouncers_own_sample(name, settings, home):
    sample = Path(PGBOUNCER).parent / "etc" / name
    if not os.access(sample, os.R_OK):
        pytest.skip(f"{sample} is not there")
    status, said = check(moved(sample, home), cwd=home)
    assert status == 0 and " 0 errors, " in said and "good to start" in said, said
    # Whatever it shows in a comment with a value is taken as that, but for files and users that are not here.
    shown = re.findall(r"(?m)^;([a-z_0-9]+) = *(\S.*)$", sample.read_text().split("[pgbouncer]")[1])
    shown = [(k, v) for k, v in shown if k not in ("user", "resolv_conf", "service_name", "so_reuseport") and
             "_tls_" not in k and not k.endswith(("_file", "_group"))]
    assert len(shown) > settings / 2
    full = home / "full.ini"
    full.write_text("[databases]\nx =\n[pgbouncer]\n" + "".join(f"{k} = {v}\n" for k, v in shown) +
                    f"listen_port = {free_port()}\nauth_file = {home}/etc/users.txt\n")
    status, said = check(full, cwd=home)
    assert status == 0, said


def test_there_are_five():
    assert len(INIS) == 5 and {p.stem for p in INIS} == set(SERVED)
