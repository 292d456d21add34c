"""From start to end: takeover (-R), rolling restarts, systemd, idle auto-databases, the journal."""
import array
import os
import pwd
import re
import signal
import socket
import subprocess
import threading

import psycopg
import pytest

import wire
from conftest import EXE, wait_until

pytestmark = pytest.mark.ours


def take_over(p, **settings):
    """Start the next process, see the old one end."""
    old = p.proc
    p.settings |= settings
    p.write_ini()
    p.spawn("-R")
    assert old.wait(60) == 0, p.log_tail()
    wait_until(p.ready, "the new process is up")
    wait_until(lambda: p.log().count("process up:") >= 2)


def own_console(p):
    c = wire.Wire(0, unix=p.unix)
    c.start("pgbouncer", "pgbouncer")
    c.authenticate()
    return c


# ---------------------------------------------------------------------------------------------- takeover

@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("next_workers", [1, 2])
def test_takeover_keeps_everybody(pooler, pg, next_workers):
    """Open transaction, running query, queued query, half a message, parameters, cancel keys."""
    p = pooler(default_pool_size=2)
    with p.login(application_name="mine", TimeZone="Asia/Tokyo") as open_, p.login() as runs, p.login() as queued, \
            p.login(database="p1") as half, p.login(database="p1") as idle:
        open_.query("begin")
        open_.query("create temp table kept as select 42 as n")
        runs.send(wire.query("select pg_sleep(1.5), 'ran'"))
        wait_until(lambda: p.pool()["sv_active"] == 2)
        queued.send(wire.query("select 'queued'"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        idle.value("select 1")
        message = wire.query("select 'half'")
        half.send(message[:7])
        backend = open_.value("select pg_backend_pid()")

        take_over(p, workers=next_workers)

        half.send(message[7:])
        assert half.until()[1].row == ["half"]
        assert runs.until()[1].row[1] == "ran"
        assert queued.until()[1].row == ["queued"]
        assert open_.value("select n from kept") == "42"
        assert open_.value("select pg_backend_pid()") == backend, "the same transaction on the same connection"
        assert open_.value("show timezone") == "Asia/Tokyo" and open_.value("show application_name") == "mine"
        assert open_.query("rollback")[-1].type == "Z"
        assert idle.value("select 2") == "2"
        runs.send(wire.query("select pg_sleep(60)"))
        wait_until(lambda: pg.sql("select 1 from pg_stat_activity where query like 'select pg_sleep(60)%' and "
                                  "state = 'active'"))
        wire.cancel(("127.0.0.1", p.port), runs.key)
        assert [m.code for m in runs.until() if m.type == "E"] == ["57014"], "the cancel key is good in the new process"
        with p.login() as fresh:
            assert fresh.value("select 'fresh'") == "fresh"
        pools = {(r["database"], r["user"]): r for r in p.show("POOLS")}
        assert pools["p0", "alice"]["cl_active"] == "3"
        assert int(pools["p0", "alice"]["sv_active"]) == 0 and int(pools["p0", "alice"]["sv_idle"]) <= 2
    wait_until(lambda: p.pool()["cl_active"] == 0)


def test_takeover_of_prepared_statements(pooler):
    p = pooler(max_prepared_statements=10, default_pool_size=1)
    with p.login() as c, p.login() as other:
        c.send(wire.parse("mine", "select 'of c'"), wire.msg("S"))
        c.until()
        other.send(wire.parse("mine", "select 'of other'"), wire.msg("S"))
        other.until()
        take_over(p)
        for w, what in ((c, "of c"), (other, "of other"), (c, "of c")):
            w.send(wire.bind("", "mine"), wire.execute(), wire.msg("S"))
            assert [m.row for m in w.until() if m.type == "D"] == [[what]]
        c.send(wire.parse("new", "select 'new'"), wire.bind("", "new"), wire.execute(), wire.msg("S"))
        assert [m.row for m in c.until() if m.type == "D"] == [["new"]]


def test_takeover_in_session_mode(pooler):
    p = pooler(pool_mode="session", default_pool_size=2)
    with p.login() as c:
        c.query("create temp table kept as select 1 as n")
        take_over(p)
        assert c.value("select n from kept") == "1"
        with p.login() as second:
            assert second.value("select to_regclass('kept')") is None
    wait_until(lambda: p.pool()["sv_active"] == 0)


@pytest.mark.workers(1, 4)
def test_takeover_under_load(pooler):
    """Nobody sees an error, nobody gets another's answer."""
    p = pooler(default_pool_size=5, max_prepared_statements=10)
    over, errors, done = threading.Event(), [], [0]

    def work(n):
        try:
            with p.connect(prepare_threshold=2 if n % 2 else None) as c:
                i = 0
                while not over.is_set():
                    i += 1
                    assert c.execute("select %s::int * 1000 + %s::int", (n, i % 1000)).fetchone() == (n * 1000 + i % 1000,)
                    done[0] += 1
        except Exception as e:  # noqa: BLE001
            errors.append(repr(e))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    [t.start() for t in threads]
    try:
        for _ in range(4):
            before = done[0]
            wait_until(lambda: done[0] > before + 50 or errors)
            take_over(p)
        before = done[0]
        wait_until(lambda: done[0] > before + 50 or errors)
    finally:
        over.set()
        [t.join(60) for t in threads]
    assert not errors


def test_takeover_closes_tls_connections(make_pooler):
    p = make_pooler()
    key, crt = p.dir / "key", p.dir / "crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=localhost", "-keyout", key, "-out", crt], check=True, capture_output=True)
    p.settings |= {"client_tls_sslmode": "allow", "client_tls_key_file": key, "client_tls_cert_file": crt}
    p.start()
    secure = psycopg.connect(host="127.0.0.1", port=p.port, dbname="p0", user="alice", sslmode="require",
                             sslcert="/none", sslkey="/none", sslrootcert="/none", autocommit=True)
    secure.execute("begin")
    with p.login() as plain:
        plain.query("begin")
        take_over(p)
        assert plain.query("commit")[0].tag == "COMMIT"
    with pytest.raises(psycopg.OperationalError):
        secure.execute("commit")
    wait_until(lambda: p.pool()["sv_active"] == 0)


@pytest.mark.workers(2)
def test_takeover_in_a_copy(pooler, pg):
    """COPY IN and COPY OUT stand still in the middle, also with an error ahead."""
    p = pooler()
    with p.login() as into, p.login() as out, p.login() as pipeline:
        into.query("create table if not exists fills (n int)")
        into.query("truncate fills")
        into.send(wire.query("copy fills from stdin"))
        into.until("G")
        into.send(wire.msg("d", b"1\n"))
        out.send(wire.query("copy (select g, pg_sleep(0.015) from generate_series(1, 100) g) to stdout"))
        pipeline.send(wire.query("select pg_sleep(0.8); select 1/0"), wire.query("select 'after'"))
        wait_until(lambda: p.pool()["sv_active"] == 3)
        take_over(p)
        into.send(wire.msg("d", b"2\n"), wire.msg("c"))
        assert [m.tag for m in into.until() if m.type == "C"] == ["COPY 2"]
        assert sum(m.type == "d" for m in out.until()) == 100
        assert [m.code for m in pipeline.until() if m.type == "E"] == ["22012"]
        assert pipeline.until()[1].row == ["after"]
        assert into.value("select count(*) from fills") == "2"
        into.query("drop table fills")
    wait_until(lambda: p.pool()["sv_active"] == 0)


def test_takeover_with_nobody_there(make_pooler):
    p = make_pooler()
    p.start("-R")
    p.wait_log("old process not found, try to continue normally")
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_takeover_that_breaks_off(pooler):
    """The new process dies with the sockets in its hands: the old one goes on."""
    p = pooler()
    with p.login() as c:
        c.query("begin")
        console = own_console(p)
        assert console.query("SUSPEND")[0].tag == "SUSPEND"
        console.sock.sendall(wire.query("SHOW FDS"))
        fds, data = array.array("i"), b""
        while not data.endswith(b"Z\0\0\0\5I"):
            part, ancillary, _, _ = console.sock.recvmsg(65536, socket.CMSG_SPACE(4 * 100))
            data += part
            for _, _, bytes_ in ancillary:
                fds.frombytes(bytes_)
        assert len(fds) >= 3, "listeners, a client, its server"
        [os.close(fd) for fd in fds]
        console.drop()
        p.wait_log("admin disappeared when suspended, doing RESUME")
        assert c.value("select 1") == "1"
        assert c.query("commit")[0].tag == "COMMIT"


COLUMNS = ("fd task user database addr port cancel link client_encoding std_strings datestyle timezone password "
           "scram_client_key scram_server_key").split()


def test_show_fds(pooler):
    p = pooler()
    with p.login() as c, own_console(p) as admin:
        c.query("begin")
        rows = admin.query("SHOW FDS")
        assert [n for n, _ in rows[0].columns] == COLUMNS
        tasks = [m.row[1] for m in rows if m.type == "D"]
        assert tasks.count("client") == 1 and tasks.count("server") == 1 and tasks.count("pooler") >= 2
        by_task = {m.row[1]: m.row for m in rows if m.type == "D"}
        assert by_task["client"][7] == by_task["server"][0] and by_task["server"][7] == by_task["client"][0]
        assert int(by_task["client"][6]).to_bytes(8, "big") == c.key[:8]


def test_descriptors_are_for_the_own_user_only(pooler):
    p = pooler()
    with p.login() as c, p.console("stats") as stats, p.console() as admin:
        assert stats.query("SHOW FDS")[0].text == "admin access needed"
        assert stats.query("SHOW TAKEOVER")[0].text == "admin access needed"
        c.value("select 1")
        with wire.Wire(0, unix=p.unix).login("admin", "pgbouncer") as over_unix:
            assert over_unix.query("SUSPEND")[0].tag == "SUSPEND"
            over_unix.sock.sendall(wire.query("SHOW FDS"))
            _, ancillary, _, _ = over_unix.sock.recvmsg(65536, socket.CMSG_SPACE(400))
            assert ancillary == []
            admin.query("RESUME")
        assert c.value("select 1") == "1"


PGBOUNCER = os.environ.get("BOUNCER_EXE")


@pytest.mark.skipif(not PGBOUNCER, reason="BOUNCER_EXE names a PgBouncer to take over from")
def test_takeover_from_pgbouncer(make_pooler):
    p = make_pooler(default_pool_size=2)
    mine = {k: p.settings.pop(k) for k in ("workers", "io_engine")}
    p.write_ini()
    p.proc = subprocess.Popen([PGBOUNCER, "-q", p.ini], cwd=p.dir)
    wait_until(p.ready)
    with p.login() as open_, p.login() as runs, p.login() as idle:
        open_.query("begin")
        open_.query("create temp table kept as select 42 as n")
        runs.send(wire.query("select pg_sleep(1), 'ran'"))
        wait_until(lambda: p.pool()["sv_active"] == 2)
        take_over(p, **mine)
        assert runs.until()[1].row[1] == "ran"
        assert open_.value("select n from kept") == "42"
        open_.query("commit")
        assert idle.value("select 1") == "1"
        with p.login() as fresh:
            assert fresh.value("select 'fresh'") == "fresh"


@pytest.mark.skipif(not PGBOUNCER, reason="BOUNCER_EXE names a PgBouncer that takes over")
def test_takeover_by_pgbouncer(pooler):
    """The way back. Its format has no place for a queued query: that client loses its connection, nobody waits."""
    p = pooler(default_pool_size=2)
    with p.login() as open_, p.login() as runs, p.login() as queued, p.login() as idle:
        idle.value("select 1")
        open_.query("begin")
        open_.query("create temp table kept as select 42 as n")
        runs.send(wire.query("select pg_sleep(1), 'ran'"))
        wait_until(lambda: p.pool()["sv_active"] == 2)
        queued.send(wire.query("select 'queued'"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        old, lines = p.proc, p.ini.read_text().splitlines()
        p.ini.write_text("\n".join(line for line in lines if not line.startswith(("workers", "io_engine"))) + "\n")
        p.proc = subprocess.Popen([PGBOUNCER, "-q", "-R", p.ini], cwd=p.dir)
        assert old.wait(60) == 0
        wait_until(p.ready)
        assert queued.until_closed() == []
        assert runs.until()[1].row[1] == "ran"
        assert open_.value("select n from kept") == "42"
        open_.query("commit")
        assert idle.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- rolling restarts

@pytest.mark.workers(1, 3)
def test_rolling_restart(make_pooler):
    first = make_pooler(so_reuseport=1).start()
    second = make_pooler(so_reuseport=1, listen_port=first.port)
    second.port = first.port
    second.start()
    clients = [first.login() for _ in range(20)]
    of_first = [c for c in clients if f"C-" in first.log() and f":{c.sock.getsockname()[1]} login" in first.log()]
    assert 0 < len(of_first) < 20, "the kernel spreads them"
    first.kill(signal.SIGTERM)
    first.wait_log("got SIGTERM, shutting down, waiting for all clients disconnect")
    with own_console(first) as console:
        wait_until(lambda: console.query("RESUME")[0].text == "pooler is shutting down", "its port is closed")
    late = [first.login() for _ in range(20)]
    for c in clients + late:
        assert c.value("select 1") == "1"
    for c in late:
        assert f":{c.sock.getsockname()[1]} login" in second.log(), "the port belongs to the other one"
    with wire.Wire(0, unix=first.unix) as c:
        c.start()
        assert c.authenticate()[-1].text == "pooler is shutting down"
    with own_console(first) as console:
        assert console.query("RESUME")[0].text == "pooler is shutting down"
        assert console.query("SHOW POOLS")[0].type == "T"
    first.kill(signal.SIGUSR2)
    first.wait_log("got SIGUSR2 while shutting down, ignoring")
    for c in of_first:
        assert first.alive()
        c.close()
    assert first.wait_exit() == 0
    assert "client connections dropped, exiting" in first.log()
    assert not first.pidfile.exists() and not os.path.exists(first.unix)
    assert second.pidfile.exists()
    for c in late:
        assert c.value("select 1") == "1"
    [c.close() for c in clients + late]


def test_port_is_not_shared_without_so_reuseport(make_pooler):
    first = make_pooler().start()
    second = make_pooler(listen_port=first.port, so_reuseport=0, unix_socket_dir="")
    second.write_ini()
    done = subprocess.run([EXE, second.ini], capture_output=True, text=True, cwd=second.dir, timeout=60)
    assert done.returncode == 1 and "cannot listen on" in second.log()
    assert not second.pidfile.exists() and first.pidfile.exists()


# ---------------------------------------------------------------------------------------------- systemd

class Manager:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        self.sock.settimeout(60)
        self.path = str(path)

    def said(self):
        return self.sock.recv(65536).decode()

    def until(self, pattern):
        while not re.match(pattern, text := self.said()):
            pass
        return text


def test_notifications(make_pooler):
    p = make_pooler(stats_period=1)
    manager = Manager(p.dir / "notify")
    p.extra_env["NOTIFY_SOCKET"] = manager.path
    p.start()
    assert manager.said() == "READY=1"
    assert "µs" in manager.until("STATUS=stats: ")
    p.kill(signal.SIGHUP)
    assert int(manager.until("RELOADING=1").partition("MONOTONIC_USEC=")[2]) > 0
    manager.until("READY=1")
    p.ini.write_text("[pgbouncer]\nnonsense = 1\n")
    p.kill(signal.SIGHUP)
    manager.until("RELOADING=1")
    manager.until("READY=1")
    p.kill(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert p.wait_exit() == 0


@pytest.mark.workers(1, 3)
def test_socket_activation(make_pooler):
    p = make_pooler(listen_addr=None, unix_socket_dir="")
    tcp = socket.create_server(("127.0.0.1", 0))
    p.port = tcp.getsockname()[1]
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(p.dir / "passed"))
    local.listen()
    p.write_ini()
    # As systemd does it: the sockets are descriptors 3 and 4 of the process that they are meant for.
    script = (f"import os; os.dup2({tcp.fileno()}, 103); os.dup2({local.fileno()}, 104); os.dup2(103, 3); "
              f"os.dup2(104, 4); os.environ.update(LISTEN_FDS='2', LISTEN_PID=str(os.getpid())); "
              f"os.execv('{EXE}', ['{EXE}', '{p.ini}'])")
    p.proc = subprocess.Popen(["/usr/bin/python3", "-c", script], pass_fds=(tcp.fileno(), local.fileno()), cwd=p.dir,
                              stdout=subprocess.DEVNULL, stderr=open(p.stderr, "a"))
    wait_until(p.ready, "up")
    assert "socket passed from service manager (fd 3)" in p.log()
    clients = [p.login() for _ in range(6)]
    for c in clients:
        assert c.value("select 1") == "1"
    with wire.Wire(0, unix=str(p.dir / "passed")).login() as c:
        assert c.value("select 2") == "2"
    [c.close() for c in clients]
    p.kill(signal.SIGTERM)
    assert p.wait_exit() == 0
    assert os.path.exists(p.dir / "passed"), "it is the service manager's"
    later = socket.create_connection(("127.0.0.1", p.port), timeout=60)  # waits for the next one
    later.close()


def test_journal(make_pooler):
    p = make_pooler()
    p.stderr.touch()
    s = p.stderr.stat()
    p.extra_env["JOURNAL_STREAM"] = f"{s.st_dev}:{s.st_ino}"
    p.start()
    p.stop(signal.SIGINT)
    lines = p.stderr.read_text().splitlines()
    assert any(line.startswith("<6>process up: ") for line in lines)
    assert re.match(r"\d{4}-\d\d-\d\d ", p.log()), "the file keeps its time stamps"


# ---------------------------------------------------------------------------------------------- the rest

@pytest.mark.workers(1, 2)
def test_idle_auto_database_is_forgotten(pooler, pg):
    p = pooler(autodb_idle_timeout=1, server_idle_timeout=1, databases={"*": f"host=127.0.0.1 port={pg.port}"})
    with p.login(database="p2") as c:
        assert c.value("select 1") == "1"
        assert "p2" in {r["name"] for r in p.show("DATABASES")}
        p.admin("DISABLE p2")
    p.wait_log("dropping database 'p2' as it does not exist anymore or inactive auto-database")
    assert "p2" not in {r["name"] for r in p.show("DATABASES")}
    with p.login(database="p2") as c:  # and DISABLE is forgotten with it
        assert c.value("select 1") == "1"
    assert p.log().count("registered new auto-database: p2") == 2


def test_user_option(make_pooler):
    p = make_pooler()
    p.write_ini()
    done = subprocess.run([EXE, "-u", "nobody-of-this-name", p.ini], capture_output=True, text=True, cwd=p.dir, timeout=60)
    assert done.returncode == 1 and "could not find user 'nobody-of-this-name' to switch to" in done.stderr
    done = subprocess.run([EXE, "-u", "root", p.ini], capture_output=True, text=True, cwd=p.dir, timeout=60)
    assert done.returncode == 1 and "could not switch to user 'root'" in done.stderr
    p.start("-u", pwd.getpwuid(os.geteuid()).pw_name)


@pytest.mark.parametrize("content", ["", "no number\n", "1\n"])
def test_foreign_pidfile_is_respected(make_pooler, content):
    """Empty, unreadable as a number, or of a process that may not be asked."""
    p = make_pooler()
    p.write_ini()
    p.pidfile.write_text(content)
    done = subprocess.run([EXE, p.ini], capture_output=True, text=True, cwd=p.dir, timeout=60)
    assert done.returncode == 1 and f"pidfile '{p.pidfile}' exists, another instance running?" in p.log()
    assert p.pidfile.read_text() == content
