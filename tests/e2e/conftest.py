"""End-to-end fixtures: one throw-away PostgreSQL per pytest process, and a `pooler` factory.

POOLER_EXE names the executable under test; with PgBouncer there, the tests of shared behaviour run against it.
"""
import base64
import contextlib
import ctypes
import fcntl
import hashlib
import hmac
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if os.geteuid() == 0:  # PostgreSQL and the pooler refuse root
    for name in ("pgflotilla-test", "postgres", "nobody"):
        with contextlib.suppress(KeyError):
            who = pwd.getpwnam(name)
            break
    os.setgroups([])
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)
    os.environ["HOME"] = "/tmp"
    os.environ["USER"] = os.environ["LOGNAME"] = who.pw_name
for name in [n for n in os.environ if n.startswith("PG") and n != "PGBOUNCER"]:
    del os.environ[name]
os.environ.setdefault("PGCONNECT_TIMEOUT", "60")

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import asyncpg  # noqa: E402
import psycopg  # noqa: E402
import psycopg.sql  # noqa: E402
import pytest  # noqa: E402

from wire import Wire  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXE = Path(os.environ.get("POOLER_EXE") or ROOT / "build/release/pgflotilla").absolute()
OURS = EXE.name.startswith("pgflotilla")
SANITIZED = OURS and EXE.exists() and any(m in EXE.read_bytes() for m in (b"__asan_init", b"__tsan_init"))
# Generous: only a hang guard, under sanitizers everything is slow.
PATIENCE = 60


def io_uring_allowed():
    """io_uring_setup with the flags the engine needs; containers and old kernels refuse it."""
    class Params(ctypes.Structure):
        _fields_ = [("sq", ctypes.c_uint32), ("cq", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                    ("rest", ctypes.c_char * 108)]
    params = Params(flags=(1 << 12) | (1 << 13))  # SINGLE_ISSUER | DEFER_TASKRUN
    fd = ctypes.CDLL(None, use_errno=True).syscall(425, 8, ctypes.byref(params))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def engines():
    if not OURS:
        return ["pgbouncer"]
    wanted = os.environ.get("POOLER_ENGINES")
    if wanted:
        return wanted.split(",")
    return (["io_uring"] if io_uring_allowed() else []) + ["epoll"]


def pytest_configure(config):
    config.addinivalue_line("markers", "workers(*n): worker counts to run with (default 2)")
    config.addinivalue_line("markers", "one_engine: what it looks at is above the engines; run on the first one only")
    config.addinivalue_line("markers", "ours: needs a feature or a fix that only pgflotilla has")


def pytest_report_header():
    return f"pooler: {EXE}; engines: {', '.join(engines())}"


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("workers")
        counts = (mark.args if mark else (int(os.environ.get("POOLER_WORKERS", 2)),)) if OURS else (1,)
        one = metafunc.definition.get_closest_marker("one_engine")
        modes = [(e, w) for e in (engines()[:1] if one else engines()) for w in counts]
        metafunc.parametrize("mode", modes, ids=[f"{e}-{w}" for e, w in modes], indirect=True)


def pytest_collection_modifyitems(items):
    if not OURS:
        for item in items:
            if item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason="pgflotilla only"))


# ---------------------------------------------------------------------------------------------- ports, waiting

# Byte N of this file is locked by the process that has port N, as long as it lives.
_ports = os.open("/tmp/pgf-ports.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def free_port():
    """Below the ephemeral range, and nobody else's: poolers share ports (SO_REUSEPORT), so a bind alone says nothing."""
    while True:
        port = random.randrange(10000, 32000)
        with contextlib.suppress(OSError), socket.socket() as s:
            fcntl.lockf(_ports, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return port


def wait_until(check, what="condition", patience=PATIENCE):
    """Poll until check() is true; its value is returned."""
    end = time.monotonic() + patience
    while True:
        got = check()
        if got:
            return got
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.02)


def code_is(code, exact):
    """PgBouncer says 08P01 for everything of its own; pgflotilla may say PostgreSQL's exact code instead."""
    return code == "08P01" or (OURS and code == exact)


# ---------------------------------------------------------------------------------------------- PostgreSQL

def pg_bin():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else Path(shutil.which("postgres")).parent


class Postgres:
    prefix = ()  # a command that runs the rest of its line: elsewhere, say (netns.py)

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="pgf-pg-", dir="/tmp"))
        self.data = self.dir / "data"
        self.port = free_port()
        self.proc = None
        subprocess.run([pg_bin() / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8",
                        "--locale=C.UTF-8"], check=True, stdout=subprocess.DEVNULL)
        with open(self.data / "postgresql.conf", "a") as f:
            f.write(f"listen_addresses = '127.0.0.1,127.0.0.2'\nport = {self.port}\nunix_socket_directories = '{self.dir}'\n"
                    "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\nmax_connections = 300\n"
                    "shared_buffers = 64MB\nautovacuum = off\nmax_wal_size = 4GB\nlog_line_prefix = '%m [%p] %u@%d '\n"
                    "timezone = 'UTC'\nwal_level = logical\nmax_wal_senders = 40\nmax_replication_slots = 40\n")
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\n"
            "host all s_password 127.0.0.1/32 password\n"
            "host all s_md5 127.0.0.1/32 md5\n"
            "host all s_scram 127.0.0.1/32 scram-sha-256\n"
            "host all all 127.0.0.1/32 trust\n"
            "host replication all 127.0.0.1/32 trust\n")

    def start(self):
        self.proc = subprocess.Popen([*self.prefix, pg_bin() / "postgres", "-D", self.data],
                                     stdout=open(self.dir / "log", "a"), stderr=subprocess.STDOUT)
        wait_until(self.ready, "PostgreSQL accepts connections")

    def ready(self):
        assert self.proc.poll() is None, (self.dir / "log").read_text()
        try:
            self.connect("postgres").close()
            return True
        except psycopg.OperationalError:
            return False

    def stop(self, how=signal.SIGINT):
        if self.proc:
            self.proc.send_signal(how)
            self.proc.wait(PATIENCE)
            self.proc = None

    def connect(self, dbname="p0", user="postgres", **kw):
        """Straight to PostgreSQL, past the pooler."""
        return psycopg.connect(host=str(self.dir), port=self.port, dbname=dbname, user=user, autocommit=True, **kw)

    def sql(self, sql, *args, dbname="p0"):
        with self.connect(dbname) as c:
            cur = c.execute(sql, args or None)
            return cur.fetchall() if cur.description else None

    def backends(self, where="true"):
        """Pids of the client backends that are not our own direct ones (those come over the Unix socket)."""
        return [r[0] for r in self.sql("select pid from pg_stat_activity where backend_type = 'client backend' and "
                                       "client_addr is not null and " + where)]

    def log(self):
        return (self.dir / "log").read_text(errors="replace")


# Who exists on the server, and how the server asks for the password over TCP.
ROLES = {"alice": None, "bob": None, "carol": None, "admin": None, "stats": None,
         "s_password": "scram-sha-256", "s_md5": "md5", "s_scram": "scram-sha-256"}
PASSWORD = "s3cret 'ü\""


def md5_secret(user, password=PASSWORD):
    return "md5" + hashlib.md5(password.encode() + user.encode()).hexdigest()


def scram_secret(password=PASSWORD, iterations=4096, salt=b"0123456789abcdef"):
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    b64 = lambda raw: base64.b64encode(raw).decode()  # noqa: E731
    return f"SCRAM-SHA-256${iterations}:{b64(salt)}${b64(stored)}:{b64(server)}"


@pytest.fixture(scope="session")
def pg():
    server = Postgres()
    try:
        server.start()
        with server.connect("postgres") as c:
            for role, how in ROLES.items():
                c.execute(f"create role {role} login superuser")
                if how:
                    c.execute(f"set password_encryption = '{how}'")
                    c.execute(psycopg.sql.SQL("alter role {} password {}").format(
                        psycopg.sql.Identifier(role), psycopg.sql.Literal(PASSWORD)))
            for db in ("p0", "p1", "p2"):
                c.execute(f"create database {db}")
        server.sql("create table t (id serial primary key, v text)")
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.dir, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- the pooler

class Pooler:
    """One running pooler. The ini is self.settings and friends; write_ini() again and reload to change it."""

    def __init__(self, pg, mode, directory):
        self.pg = pg
        self.engine, self.workers = mode
        self.dir = directory
        self.port = free_port()
        self.ini = directory / "pooler.ini"
        self.logfile = directory / "pooler.log"
        self.pidfile = directory / "pooler.pid"
        self.stderr = directory / "stderr"
        self.proc = None
        self.expect_exit = 0
        self.settings = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": directory,
            "logfile": self.logfile, "pidfile": self.pidfile, "auth_type": "trust",
            "auth_file": directory / "users.txt", "admin_users": "admin", "stats_users": "stats",
            "pool_mode": "transaction", "max_client_conn": 1000, "server_login_retry": 1,
        }
        if OURS:
            self.settings |= {"workers": self.workers, "io_engine": self.engine}
            if os.environ.get("POOLER_PLACEMENT"):  # shuffle: every test with clients that change their workers
                self.settings["placement"] = os.environ["POOLER_PLACEMENT"]
        server = f"host=127.0.0.1 port={pg.port}"
        self.databases = {"p0": f"{server} dbname=p0", "p1": f"{server} dbname=p1"}
        self.users = {}
        self.peers = {}
        self.exe = EXE
        self.host = "127.0.0.1"
        self.extra_env = {}
        self.prefix = ()  # as for Postgres
        self.userlist = {role: (PASSWORD if how else "") for role, how in ROLES.items()}

    @property
    def server(self):
        return f"host=127.0.0.1 port={self.pg.port}"

    def write_ini(self):
        users = "".join('"%s" "%s"\n' % (u.replace('"', '""'), p.replace('"', '""')) for u, p in self.userlist.items())
        (self.dir / "users.txt").write_text(users)
        section = lambda d: "".join(f"{k} = {v}\n" for k, v in d.items() if v is not None)  # noqa: E731
        self.ini.write_text(f"[databases]\n{section(self.databases)}\n[users]\n{section(self.users)}\n[peers]\n{section(self.peers)}\n"
                            f"[pgbouncer]\n{section(self.settings)}")

    def spawn(self, *flags):
        env = dict(os.environ)
        suffix = "halt_on_error=1:exitcode=66"
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:" + suffix)
        env.setdefault("TSAN_OPTIONS", suffix)
        env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:" + suffix)
        env |= self.extra_env
        self.proc = subprocess.Popen([*self.prefix, self.exe, *flags, self.ini], stdout=subprocess.DEVNULL,
                                     stderr=open(self.stderr, "a"), cwd=self.dir, env=env)
        return self

    def start(self, *flags):
        self.write_ini()
        self.spawn(*flags)
        wait_until(self.ready, "the pooler accepts connections")
        return self

    def ready(self):
        """The pidfile is written once the listeners exist. No probing connection: it would count as a client."""
        assert self.proc.poll() is None, f"exited with {self.proc.returncode} at start\n{self.log_tail()}"
        return self.pidfile.exists() and self.pidfile.read_text() == f"{self.proc.pid}\n"

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def kill(self, sig):
        self.proc.send_signal(sig)

    def wait_exit(self):
        return self.proc.wait(PATIENCE)

    def stop(self, sig=signal.SIGQUIT):
        """Stop it and assert a clean end: status 0, nothing from a sanitizer."""
        if self.proc is None:
            return
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        try:
            status = self.proc.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError(f"did not stop on {sig!r}\n{self.log_tail()}") from None
        self.proc = None
        self.assert_clean()
        assert status == self.expect_exit, f"exit status {status}\n{self.log_tail()}"

    def assert_clean(self):
        text = self.stderr.read_text(errors="replace")
        for mark in ("AddressSanitizer", "ThreadSanitizer", "LeakSanitizer", "runtime error:", "Assertion"):
            assert mark not in text, text[-8000:]

    def log(self):
        return self.logfile.read_text(errors="replace") if self.logfile.exists() else ""

    def log_tail(self, size=4000):
        err = self.stderr.read_text(errors="replace") if self.stderr.exists() else ""
        return f"--- stderr\n{err[-size:]}\n--- log\n{self.log()[-size:]}"

    def wait_log(self, text):
        wait_until(lambda: text in self.log(), f"{text!r} in the log")

    # clients
    def connect(self, dbname="p0", user="alice", password=None, autocommit=True, **kw):
        kw.setdefault("prepare_threshold", None)
        kw.setdefault("client_encoding", "UTF8")
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=dbname, user=user, password=password,
                               autocommit=autocommit, sslmode="disable", **kw)

    async def asyncpg(self, dbname="p0", user="alice", **kw):
        kw.setdefault("statement_cache_size", 0)
        return await asyncpg.connect(host="127.0.0.1", port=self.port, database=dbname, user=user,
                                     timeout=PATIENCE, **kw)

    def wire(self, **kw):
        return Wire(self.port, **{"host": self.host, **kw})

    def login(self, user="alice", database="p0", password="", **params):
        return self.wire().login(user, database, password, **params)

    @property
    def unix(self):
        return str(self.dir / f".s.PGSQL.{self.port}")

    def env(self):
        return {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "alice", "PGDATABASE": "p0",
                "PGSSLMODE": "disable"}

    def run(self, *argv, check=True, **kw):
        done = subprocess.run([str(a) for a in argv], env=self.env() | kw.pop("extra_env", {}), text=True,
                              capture_output=True, timeout=PATIENCE, **kw)
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def psql(self, sql, **kw):
        return self.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, **kw)

    # console
    def console(self, user="admin"):
        return self.wire().login(user, "pgbouncer")

    def show(self, what, user="admin"):
        """Rows of SHOW as dicts."""
        with self.console(user) as c:
            out = c.query(f"SHOW {what}")
        errors = [m.fields for m in out if m.type == "E"]
        assert not errors, errors
        names = [n for n, _ in next(m for m in out if m.type == "T").columns]
        return [dict(zip(names, m.row)) for m in out if m.type == "D"]

    def admin(self, command):
        """Run a console command; its tag, or the ErrorResponse raised as an assertion."""
        with self.console() as c:
            out = c.query(command)
        errors = [m.fields for m in out if m.type == "E"]
        assert not errors, errors
        return next(m.tag for m in out if m.type == "C")

    def pool(self, database="p0", user="alice"):
        for row in self.show("POOLS"):
            if (row["database"], row["user"]) == (database, user):
                return {k: int(v) if v and v.isdigit() else v for k, v in row.items()}
        return None

    def rss(self):
        """Resident bytes; 0 in a sanitizer build, where memory says nothing."""
        if SANITIZED:
            return 0
        for line in Path(f"/proc/{self.proc.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


@pytest.fixture
def mode(request):
    return request.param


@pytest.fixture
def make_pooler(pg, mode):
    """Factory of poolers that are not started yet."""
    made = []

    def make(databases=None, users=None, userlist=None, **settings):
        directory = Path(tempfile.mkdtemp(prefix="pgf-", dir="/tmp"))
        p = Pooler(pg, mode, directory)
        p.settings |= settings
        p.databases |= databases or {}
        p.users |= users or {}
        p.userlist |= userlist or {}
        made.append(p)
        return p

    yield make
    try:
        for p in made:
            print(f"{p.ini}:\n{p.ini.read_text() if p.ini.exists() else ''}\n{p.log_tail()}")
        for p in made:
            p.stop()
    finally:
        for p in made:
            if p.proc and p.proc.poll() is None:
                p.proc.kill()
                p.proc.wait()
            shutil.rmtree(p.dir, ignore_errors=True)
        # A backend in a long query does not notice that its pooler is gone.
        wait_until(lambda: not pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where client_addr is not "
                                      "null and backend_type = 'client backend'"), "no backends are left")


@pytest.fixture
def pooler(make_pooler):
    """pooler(key=value, ..., databases={}, users={}, userlist={}) -> a running Pooler."""
    return lambda *flags, **kw: make_pooler(**kw).start(*flags)
