"""pgflotilla top: pictures of a running pooler, printed once, and in a terminal with keys."""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios

import pytest

import wire
from conftest import EXE, PASSWORD, free_port, scram_secret, wait_until
from test_tls import certs, tls_pooler  # noqa: F401

pytestmark = [pytest.mark.ours, pytest.mark.one_engine]
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(**more):
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"TERM": "xterm"} | more


def once(*arguments, check=True, **env):
    done = subprocess.run([EXE, "top", "--once", "-d", "0.2", *map(str, arguments)], text=True, capture_output=True,
                          timeout=60, env=environment(**env))
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def tcp(p, user="stats", **more):
    return " ".join(f"{k}={v}" for k, v in {"host": "127.0.0.1", "port": p.port, "user": user, **more}.items())


def table(text):
    """The rows below the line of headings, as dicts. Columns are two blanks apart, headings one mark longer than named."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if re.match(r" *(DATABASE|ID|WORKER)[v^ ]", line))
    names = [re.sub(r"[v^]$", "", n) for n in re.split(r" {2,}", lines[at].strip())]
    return [dict(zip(names, re.split(r" {2,}", line.strip()))) for line in lines[at + 1:] if line.strip()]


def test_once(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as holder, p.login() as waiter, p.login(user="bob", database="p1") as other:
        other.value("select 1")
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        text = once(tcp(p)).stdout
        assert "\x1b" not in text and "\r" not in text
        assert f"127.0.0.1:{p.port}   " in text and "PgBouncer 1." in text
        rows = table(text)
        assert (rows[0]["DATABASE"], rows[0]["USER"], rows[0]["WAIT"]) == ("p0", "alice", "1")  # who waits is first
        assert rows[0]["CLIENTS"] == "2" and rows[0]["ACTIVE"] == "1" and rows[0]["MODE"] == "transaction"
        assert {r["DATABASE"] for r in rows} >= {"p0", "p1"}
        assert "4 clients, 1 wait, longest " in text  # the console that asks is one of them
        assert re.search(r"\d+ transactions/s, \d+ queries/s", text)

        clients = {(r["DATABASE"], r["USER"], r["STATE"]) for r in table(once("-v", "clients", tcp(p)).stdout)}
        assert clients >= {("p0", "alice", "waiting"), ("p0", "alice", "active"), ("p1", "bob", "idle")} or \
            clients >= {("p0", "alice", "waiting"), ("p0", "alice", "active"), ("p1", "bob", "active")}, clients
        workers = table(once("--view=workers", tcp(p)).stdout)
        assert [r["WORKER"] for r in workers] == ["0", "1"] and sum(int(r["WAIT"]) for r in workers) == 1
        hosts = table(once("--view=hosts", tcp(p)).stdout)
        assert {(r["DATABASE"], r["HOST"], r["PORT"]) for r in hosts} == \
            {("p0", "127.0.0.1", str(p.pg.port)), ("p1", "127.0.0.1", str(p.pg.port))}
        holder.query("commit")
        waiter.until()


def test_ways_to_get_there(make_pooler):
    p = make_pooler(auth_type="scram-sha-256", stats_users="s_scram, nobody", unix_socket_mode="0777")
    p.userlist["s_scram"] = scram_secret()
    p.start()
    secret = {"PGPASSWORD": PASSWORD}
    assert "transactions/s" in once(p.ini).stdout  # the ini's socket is our own user's: no password
    assert "transactions/s" in once(f"host={p.dir} port={p.port} user=pgbouncer").stdout
    assert "transactions/s" in once(f"postgresql://s_scram@127.0.0.1:{p.port}/pgbouncer", **secret).stdout
    assert "transactions/s" in once(PGHOST="127.0.0.1", PGPORT=str(p.port), PGUSER="s_scram", **secret).stdout
    assert "transactions/s" in once(p.ini, PGUSER="s_scram", **secret).stdout
    bad = once(tcp(p, user="s_scram", password="wrong"), check=False)
    assert bad.returncode == 1 and "SASL authentication failed" in bad.stderr and bad.stdout == ""
    p.settings |= {"auth_type": "md5"}
    p.userlist["s_md5"] = "pw"
    p.settings["stats_users"] = "s_md5"
    p.write_ini()
    p.kill(signal.SIGHUP)
    wait_until(lambda: once(tcp(p, user="s_md5", password="pw"), check=False).returncode == 0, "md5")
    p.settings["auth_type"] = "plain"
    p.write_ini()
    p.kill(signal.SIGHUP)
    wait_until(lambda: "plain" in [r["value"] for r in unix_config(p) if r["key"] == "auth_type"])
    assert "transactions/s" in once(tcp(p, user="s_md5", password="pw")).stdout


def unix_config(p):
    with wire.Wire(0, unix=p.unix) as c:
        c.login("pgbouncer", "pgbouncer")
        out = c.query("SHOW CONFIG")
    names = [n for n, _ in next(m for m in out if m.type == "T").columns]
    return [dict(zip(names, m.row)) for m in out if m.type == "D"]


def test_tls(tls_pooler, certs):  # noqa: F811
    p = tls_pooler("require", auth_type="scram-sha-256", userlist={"stats": "pw"})
    for more in ({}, {"sslmode": "require"}, {"sslmode": "verify-full", "sslrootcert": certs[0].crt("ca")}):
        assert "transactions/s" in once(tcp(p, password="pw", **more)).stdout  # with channel binding
    for more, says in (({"sslmode": "disable"}, "SSL required"),
                       ({"sslmode": "verify-ca", "sslrootcert": certs[1].crt("ca")}, "TLS: ")):
        done = once(tcp(p, password="pw", **more), check=False)
        assert done.returncode == 1 and says in done.stderr, done


def test_what_is_wrong_is_said(pooler):
    p = pooler()
    for arguments, says in ((["host=127.0.0.1 port=1"], "cannot connect to 127.0.0.1:1: Connection refused"),
                            ([f"host={p.dir} port=1"], "No such file or directory"),
                            (["no.ini"], "no.ini is no connection string and no ini that could be read"),
                            (["dbname=p0"], "the console's name is pgbouncer"),
                            ([tcp(p, user="alice")], "not allowed"),
                            ([tcp(p, sslmode="require")], "does not offer TLS"),
                            (["-v", "pool", tcp(p)], "there is no view pool"),
                            (["-d", "x", tcp(p)], "delay: 0.1 to 3600 seconds"),
                            (["a=b", "c=d"], "one connection string or ini is enough")):
        done = once(*arguments, check=False)
        assert done.returncode == 1 and says in done.stderr and done.stderr.startswith("pgflotilla top: "), done
    done = subprocess.run([EXE, "top", tcp(p)], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 1 and "this is no terminal" in done.stderr
    help_ = subprocess.run([EXE, "top", "--help"], text=True, capture_output=True, timeout=60)
    assert help_.returncode == 0 and help_.stdout.startswith("Usage: pgflotilla top ")
    assert "pgflotilla top" in subprocess.run([EXE, "--help"], text=True, capture_output=True, timeout=60).stdout


class Terminal:
    """`pgflotilla top` in a pseudo-terminal."""

    def __init__(self, *arguments, rows=24, columns=120):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(EXE, [str(EXE), "top", "-d", "0.1", *map(str, arguments)], environment())
        self.everything = ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def read(self):
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self.everything += data.decode(errors="surrogateescape")

    def picture(self):
        """The last whole one, without styles."""
        self.read()
        whole = self.everything[:self.everything.rfind("\x1b[J") + 1]
        return STYLE.sub("", whole[whole.rfind("\x1b[H"):]).replace("\r", "").rstrip("\x1b")

    def wait(self, check, what):
        return wait_until(lambda: check(self.picture()), what)

    def status(self):
        def ended():
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return pid and (os.waitstatus_to_exitcode(status),)
        (code,) = wait_until(ended, "top has ended")
        self.pid = None
        return code

    def close(self):
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal():
    made = []

    def make(*arguments, **kw):
        made.append(Terminal(*arguments, **kw))
        return made[-1]
    yield make
    for t in made:
        t.close()


def test_keys(pooler, terminal):
    p = pooler()
    with p.login() as a, p.login(user="bob", database="p1") as b:
        a.value("select 1")
        b.value("select 1")
        t = terminal(tcp(p))
        t.wait(lambda s: "DATABASE" in s and "p0" in s, "the pools")
        assert "\x1b[?1049h" in t.everything and "\x1b[?25l" in t.everything
        assert t.picture().count("\n") < 24
        t.press("c")
        t.wait(lambda s: "APPLICATION" in s and "alice" in s and "bob" in s, "the clients")
        t.press("w")
        t.wait(lambda s: "LAST MOVE" in s, "the workers")
        t.press("h")
        t.wait(lambda s: "FAILURES" in s and str(p.pg.port) in s, "the hosts")
        t.press("\t")
        t.wait(lambda s: "WAIT p99" in s, "the pools again")

        def order(s):
            return [r["DATABASE"] for r in table(s) if r["DATABASE"] in ("p0", "p1")]
        t.press("<<<")
        t.wait(lambda s: "DATABASEv" in s and order(s) == ["p1", "p0"], "sorted by the database, downwards")
        t.press("r")
        t.wait(lambda s: "DATABASE^" in s and order(s) == ["p0", "p1"], "upwards")
        t.press("\x1b[C")
        t.wait(lambda s: "USER^" in s, "by the user")
        t.press("\x1b[B")
        t.wait(lambda s: len(table(s)) < len(p.show("POOLS")), "scrolled by one")
        t.resize(5, 30)
        t.wait(lambda s: len(s.splitlines()) == 5 and all(len(line) <= 30 for line in s.splitlines()), "a small terminal")
        t.press("q")
        assert t.status() == 0
        assert t.everything.endswith("\x1b[?25h\x1b[?1049l")


def test_it_shows_what_happens(pooler, terminal):
    p = pooler(default_pool_size=1)
    t = terminal(tcp(p))
    with p.login() as holder, p.login() as waiter:
        t.wait(lambda s: "3 clients, 0 wait" in s, "they are there")
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        t.wait(lambda s: "3 clients, 1 wait" in s, "one waits")
        assert "\x1b[33m" in t.everything  # in yellow
        holder.query("commit")
        waiter.until()
        t.wait(lambda s: "3 clients, 0 wait" in s, "and has been served")
    p.admin("PAUSE")
    t.wait(lambda s: "  paused" in s, "it is paused")
    p.admin("RESUME")


def test_the_pooler_goes_and_comes_back(pooler, terminal):
    p = pooler()
    t = terminal(tcp(p))
    t.wait(lambda s: "q quit" in s, "it runs")
    p.stop()
    t.wait(lambda s: "cannot connect to" in s, "it says so")
    p.start()
    t.wait(lambda s: "q quit" in s, "it goes on")
    os.kill(t.pid, signal.SIGTERM)
    assert t.status() == 0 and t.everything.endswith("\x1b[?25h\x1b[?1049l")


def test_a_pooler_that_says_nothing_does_not_hold_the_keyboard(terminal):
    with socket.create_server(("127.0.0.1", free_port())) as s:
        t = terminal("host=127.0.0.1 port=%d sslmode=disable" % s.getsockname()[1])
        s.accept()
        t.press("q")
        assert t.status() == 0


def test_names_do_not_move_the_cursor(pooler, terminal):
    """Whoever connects may choose the application's name."""
    p = pooler()
    with p.login(application_name="evil\x1b[2J\x1b]0;owned\x07"):  # no query: PostgreSQL would clean it
        t = terminal("-v", "clients", tcp(p), columns=200)
        t.wait(lambda s: "evil?[2J?]0;owned?" in s, "it is shown as text")
        assert "\x1b[2J" not in t.everything and "\x07" not in t.everything
        assert "evil?[2J" in once("-v", "clients", tcp(p)).stdout
