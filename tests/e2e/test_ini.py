"""The ini, the command line, signals, the pidfile."""
import os
import re
import signal
import subprocess
import time

import pytest

import wire
from conftest import EXE, OURS, wait_until


def attempt(p, *flags, write=True):
    """Run it in the foreground with an ini that must not start: (status, everything it said)."""
    if write:
        p.write_ini()
    done = subprocess.run([EXE, *flags, p.ini], capture_output=True, text=True, cwd=p.dir, timeout=60)
    return done.returncode, done.stdout + done.stderr + p.log()


@pytest.mark.parametrize("key, value, near", [
    ("default_pool_sise", "3", "default_pool_size"), ("pool_mod", "session", "pool_mode"),
    ("max_client_connn", "3", "max_client_conn"), ("server_life_time", "3", "server_lifetime")])
def test_unknown_key(make_pooler, key, value, near):
    p = make_pooler(**{key: value})
    status, said = attempt(p)
    assert status == 1
    assert f"unknown parameter: pgbouncer/{key}" in said or OURS and key in said
    if OURS:
        line = 1 + p.ini.read_text().splitlines().index(f"{key} = {value}")
        assert f"{p.ini}:{line}" in said, "names file and line"
        assert re.search(rf"\b{near}\b", said), "names the nearest key"


@pytest.mark.parametrize("key, value", [
    ("default_pool_size", "many"), ("pool_mode", "sesion"), ("server_lifetime", "-1"), ("auth_type", "magic"),
    ("max_client_conn", "1x"), ("server_connect_timeout", "soon")])
def test_ill_typed_value(make_pooler, key, value):
    p = make_pooler(**{key: value})
    status, said = attempt(p)
    assert status == 1
    line = 1 + p.ini.read_text().splitlines().index(f"{key} = {value}")
    assert key in said and value in said and f"{p.ini}:{line}" in said


@pytest.mark.ours
@pytest.mark.parametrize("key, value", [("workers", "0"), ("workers", "-1"), ("workers", "some"),
                                        ("io_engine", "kqueue")])
def test_ill_typed_own_keys(make_pooler, key, value):
    p = make_pooler(**{key: value})
    status, said = attempt(p)
    assert status == 1 and key in said and str(p.ini) in said


@pytest.mark.parametrize("text", [
    "[databases]\np0 = host=127.0.0.1 nonsense=1\n[pgbouncer]\n", "[nowhere]\na = b\n", "key = before any section\n",
    "[databases]\np0 = host=127.0.0.1 port=\n[pgbouncer]\n", "[databases]\n\"p0\" = host=x\n[pgbouncer]\n",
    "[pgbouncer\nlisten_port = 1\n", "[pgbouncer]\nthis is no assignment\n", 
    "[databases]\npgbouncer = host=x\n[pgbouncer]\n",
    "%include /does/not/exist\n[pgbouncer]\n", "[databases]\np0 = host='open\n[pgbouncer]\n"], ids=range(10))
def test_syntax_errors(make_pooler, text):
    p = make_pooler()
    p.ini.write_text(text)
    status, said = attempt(p, write=False)
    assert status == 1 and said.strip()
    if OURS:
        assert re.search(rf"{re.escape(str(p.ini))}:\d+", said), said


def test_missing_ini(make_pooler):
    p = make_pooler()
    status, said = attempt(p, write=False)
    assert status == 1 and str(p.ini) in said


def test_include_and_grammar(make_pooler, pg):
    p = make_pooler()
    (p.dir / "dbs.ini").write_text("; a comment\n[databases]\n'my db' = dbname=p1 host=127.0.0.1   port = "
                                   f"{pg.port}\n# another\nodd.name-1*=host='127.0.0.1' port={pg.port} dbname='p0'\n")
    (p.dir / "more.ini").write_text("default_pool_size = 0x7   \n")
    p.write_ini()
    text = p.ini.read_text()
    p.ini.write_text(f"%include {p.dir / 'dbs.ini'}\n{text}%include {p.dir / 'more.ini'}\n\n")
    p.spawn()
    wait_until(p.ready)
    with p.login(database="my db") as c:
        assert c.value("select current_database()") == "p1"
    with p.login(database="odd.name-1*") as c:
        assert c.value("select current_database()") == "p0"
    assert {r["key"]: r["value"] for r in p.show("CONFIG")}["default_pool_size"] == "7"


@pytest.mark.ours
def test_every_pgbouncer_key_is_accepted(make_pooler):
    """Keys without effect yet are accepted, and said once at start."""
    p = make_pooler(peer_id=0, dns_max_ttl=15, dns_nxdomain_ttl=15, dns_zone_check_period=0, sbuf_loopcnt=5,
                    pkt_buf=4096, tcp_defer_accept=1, tcp_keepalive=1, tcp_keepcnt=0, tcp_keepidle=0, tcp_keepintvl=0,
                    tcp_socket_buffer=0, tcp_user_timeout=0, suspend_timeout=10, autodb_idle_timeout=3600,
                    server_fast_close=0, log_stats=1, stats_period=60, so_reuseport=1, max_packet_size=2147483647,
                    syslog=0, syslog_ident="x", syslog_facility="daemon", scram_iterations=4096, job_name="x",
                    application_name_add_host=0, disable_pqexec=0, server_round_robin=0, login_notify_message="")
    p.start()
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_version_and_help(make_pooler):
    p = make_pooler()
    for flag in ("-V", "--version"):
        done = p.run(EXE, flag)
        assert re.match(r"(PgBouncer|pgflotilla) \d+\.\d+", done.stdout)
    for flag in ("-h", "--help"):
        out = p.run(EXE, flag).stdout
        assert "config" in out.lower() and "--daemon" in out
    done = p.run(EXE, check=False)
    assert done.returncode == 1 and "no configuration file specified" in done.stderr
    assert p.run(EXE, "--no-such-flag", "x.ini", check=False).returncode == 1
    if OURS:
        assert "pgflotilla" in p.run(EXE, "-h").stdout


def test_quiet(make_pooler):
    p = make_pooler().start("-q")
    with p.login() as c:
        assert c.value("select 1") == "1"
    p.stop()
    assert p.stderr.read_text() == "" and "process up" in p.log()


def test_verbose(make_pooler):
    p = make_pooler().start("-v")
    with p.login() as c:
        assert c.value("select 1") == "1"
    wait_until(lambda: " DEBUG " in p.log(), "DEBUG lines")


def test_log_lines(pooler):
    p = pooler()
    with p.login() as c:
        c.value("select 1")
        c.send(wire.TERMINATE)
    p.wait_log("closing because: client close request (age=")
    log = p.log()
    line = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] LOG "
    assert re.search(line + r"listening on 127\.0\.0\.1:%d$" % p.port, log, re.M)
    assert re.search(line + r"process up: ", log, re.M)
    assert re.search(line + r"C-0x[0-9a-f]+: p0/alice@127\.0\.0\.1:\d+ login attempt: db=p0 user=alice tls=no "
                     r"replication=no$", log, re.M)
    assert re.search(line + r"S-0x[0-9a-f]+: p0/alice@127\.0\.0\.1:\d+ new connection to server "
                     r"\(from 127\.0\.0\.1:\d+\)$", log, re.M)
    assert all(re.match(r"\d{4}-|\t", x) for x in log.splitlines()), "every line has its prefix"


def test_log_switches(pooler):
    p = pooler(log_connections=0, log_disconnections=0, log_pooler_errors=0)
    with p.login() as c:
        c.value("select 1")
        c.send(wire.TERMINATE)
    with p.wire() as c:
        c.start("nobody-here")
        c.authenticate()
    time.sleep(0.3)
    for text in ("login attempt", "closing because", "pooler error"):
        assert text not in p.log()


def test_daemon(make_pooler):
    p = make_pooler()
    p.write_ini()
    done = subprocess.run([EXE, "-d", p.ini], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, timeout=60, cwd=p.dir)
    assert done.returncode == 0
    pid = int(wait_until(lambda: p.pidfile.exists() and p.pidfile.read_text()))
    try:
        with p.login() as c:
            assert c.value("select 1") == "1"
        assert oct(p.pidfile.stat().st_mode)[-3:] == "644"
    finally:
        os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not p.pidfile.exists(), "the pidfile is removed")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split(")")[-1])
    p.settings["pidfile"] = ""
    status, said = attempt(p, "-d")
    assert status == 1 and "pidfile" in said


def test_pidfile(pooler, make_pooler):
    p = pooler()
    wait_until(p.pidfile.exists)
    assert p.pidfile.read_text() == f"{p.proc.pid}\n"
    second = make_pooler(pidfile=p.pidfile)
    status, said = attempt(second)
    assert status == 1 and f"pidfile '{p.pidfile}' exists, another instance running?" in said
    p.stop()
    assert not p.pidfile.exists() and not os.path.exists(p.unix)
    p.pidfile.write_text("999999999\n")
    p.start()
    p.wait_log("stale pidfile, removing")


def test_port_in_use(pooler, make_pooler):
    p = pooler()
    second = make_pooler(unix_socket_dir=p.dir, listen_port=p.port)
    status, said = attempt(second)
    assert status == 1, said
    with p.login() as c:
        assert c.value("select 1") == "1"



# ---------------------------------------------------------------------------------------------- signals

def refused(p):
    try:
        p.wire().close()
    except OSError:
        return True


def test_sighup(pooler):
    p = pooler()
    p.databases["p2"] = f"{p.server} dbname=p2"
    p.write_ini()
    p.kill(signal.SIGHUP)
    p.wait_log("got SIGHUP, re-reading config")

    def there():
        with p.wire() as c:
            c.start(database="p2")
            return c.authenticate()[-1].type == "Z"
    wait_until(there, "p2 is known")


@pytest.mark.workers(1, 3)
def test_sigquit(pooler):
    p = pooler()
    c = p.login()
    c.query("begin")
    p.kill(signal.SIGQUIT)
    assert p.wait_exit() == 0
    assert "got SIGQUIT, fast exit" in p.log()
    c.close()


@pytest.mark.workers(1, 3)
def test_sigterm_waits_for_clients(pooler):
    p = pooler()
    c = p.login()
    p.kill(signal.SIGTERM)
    p.wait_log("got SIGTERM, shutting down, waiting for all clients disconnect")
    wait_until(lambda: refused(p), "the port is closed")
    for _ in range(3):
        assert c.value("select 1") == "1"
    with wire.Wire(0, unix=p.unix) as late:
        late.start()
        assert late.authenticate()[-1].text == "pooler is shutting down"
    c.close()
    assert p.wait_exit() == 0
    assert "client connections dropped, exiting" in p.log()


def test_sigint_waits_for_servers(pooler):
    p = pooler()
    c = p.login()
    c.query("begin")
    p.kill(signal.SIGINT)
    p.wait_log("got SIGINT, shutting down, waiting for all servers connections to be released")
    assert c.value("select 1") == "1"
    c.send(wire.query("commit"))
    assert p.wait_exit() == 0
    c.close()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(pooler, sig):
    p = pooler()
    c = p.login()
    c.query("begin")
    p.kill(sig)
    p.wait_log(f"got {sig.name}, shutting down")
    assert c.value("select 1") == "1"
    p.kill(sig)
    assert p.wait_exit() == 0
    assert f"got {sig.name} while shutting down, fast exit" in p.log()
    c.close()


def test_sigusr1_and_sigusr2(pooler):
    p = pooler()
    with p.login() as c:
        p.kill(signal.SIGUSR1)
        p.wait_log("got SIGUSR1, pausing all activity")
        c.send(wire.query("select 5"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "the client waits")
        p.kill(signal.SIGUSR2)
        p.wait_log("got SIGUSR2, continuing from PAUSE")
        assert c.until("Z")[1].row == ["5"]


@pytest.mark.ours
def test_engine_and_workers_are_said(pooler):
    p = pooler()
    log = p.log()
    assert p.engine in log
    assert re.search(r"\bworkers?\b", log)


@pytest.mark.ours
def test_auto(make_pooler):
    p = make_pooler(workers="auto", io_engine="auto").start()
    with p.login() as c:
        assert c.value("select 1") == "1"
    assert len(p.show("WORKERS")) == len(os.sched_getaffinity(0))
