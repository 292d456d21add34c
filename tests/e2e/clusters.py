"""Several PostgreSQL servers at once: independent ones, or a primary with streaming replicas. All listen on one port, each
on an address of its own, so that a name may stand for some of them."""
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from conftest import ROLES, Postgres, free_port, pg_bin, wait_until

DATABASE = "p0"


class Cluster(Postgres):
    def __init__(self, address, port, data=None, prefix=()):  # data: a stopped server's, to be copied
        self.prefix = prefix
        self.dir = Path(tempfile.mkdtemp(prefix="pgf-pg-", dir="/tmp"))
        self.data = self.dir / "data"
        self.address, self.port, self.proc = address, port, None
        if data:
            shutil.copytree(data, self.data)
        else:
            subprocess.run([pg_bin() / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8",
                            "--locale=C.UTF-8"], check=True, stdout=subprocess.DEVNULL)
        self.configure()

    def configure(self):
        with open(self.data / "postgresql.conf", "a") as f:
            f.write(f"listen_addresses = '{self.address}'\nport = {self.port}\nunix_socket_directories = '{self.dir}'\n"
                    "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\nmax_connections = 200\n"
                    "shared_buffers = 16MB\nautovacuum = off\nlog_line_prefix = '%m [%p] %u@%d '\ntimezone = 'UTC'\n"
                    "wal_level = replica\nmax_wal_senders = 10\nhot_standby = on\n")
        (self.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.0/8 trust\nhost all all ::/0 trust\n"
                                               "local replication all trust\nhost replication all 127.0.0.0/8 trust\n")

    def replica(self, address):
        """A new server that follows this one."""
        other = Cluster.__new__(Cluster)
        other.prefix = self.prefix
        other.dir = Path(tempfile.mkdtemp(prefix="pgf-pg-", dir="/tmp"))
        other.data = other.dir / "data"
        other.address, other.port, other.proc = address, self.port, None
        subprocess.run([pg_bin() / "pg_basebackup", "-h", self.dir, "-p", str(self.port), "-U", "postgres", "-D",
                        other.data, "-R", "-c", "fast", "-X", "stream"], check=True)
        other.configure()
        return other

    def promote(self):
        self.sql("select pg_promote(true, 60)", dbname="postgres")

    def follow(self, primary):
        """Stopped: comes back as a standby of `primary`."""
        (self.data / "standby.signal").touch()
        with open(self.data / "postgresql.auto.conf", "a") as f:
            f.write(f"primary_conninfo = 'host={primary.dir} port={primary.port} user=postgres'\n"
                    "recovery_target_timeline = 'latest'\n")

    def remove(self):
        if self.proc:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.dir, ignore_errors=True)

    def history(self):
        """How many rows clients have written since the last call."""
        return self.sql("with gone as (delete from history returning 1) select count(*) from gone")[0][0]


def first_cluster(address, prefix=()):
    c = Cluster(address, free_port(), prefix=prefix)
    c.start()
    with c.connect("postgres") as sql:
        for role in ROLES:
            sql.execute(f"create role {role} login superuser")
        sql.execute(f"create database {DATABASE}")
    c.sql("create table history (at timestamptz default now())")
    return c


@contextlib.contextmanager
def independent(addresses, prefix=()):
    servers = []
    try:
        servers.append(first_cluster(addresses[0], prefix))
        servers[0].stop()
        servers += [Cluster(a, servers[0].port, servers[0].data, prefix) for a in addresses[1:]]
        for c in servers:
            c.start()
        yield servers
    finally:
        for c in servers:
            c.remove()


@contextlib.contextmanager
def replicated(addresses):
    servers = []
    try:
        servers.append(first_cluster(addresses[0]))
        for a in addresses[1:]:
            servers.append(servers[0].replica(a))
            servers[-1].start()
        yield servers
    finally:
        for c in servers:
            c.remove()


class Silent:
    """Accepts (the kernel does) and says nothing."""

    def __init__(self, address="127.0.0.1"):
        self.sock = socket.create_server((address, 0), backlog=500)
        self.port = self.sock.getsockname()[1]

    def close(self):
        self.sock.close()


class BlackHole:
    """Answers no SYN: the queue of its socket is full. As from a host whose packets are dropped."""

    def __init__(self, address="127.0.0.1", port=0):
        self.sock = socket.socket()
        self.sock.bind((address, port))
        self.sock.listen(0)
        self.port = self.sock.getsockname()[1]
        self.fill = []
        for _ in range(8):
            s = socket.socket()
            s.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                s.connect((address, self.port))
            self.fill.append(s)
        probe = socket.socket()
        probe.settimeout(0.3)
        try:
            probe.connect((address, self.port))
            raise AssertionError("the queue is not full")
        except TimeoutError:
            pass
        finally:
            probe.close()

    def close(self):
        for s in self.fill:
            s.close()
        self.sock.close()


def caught_up(primary, *replicas):
    lsn = primary.sql("select pg_current_wal_lsn()::text")[0][0]
    for r in replicas:
        wait_until(lambda: r.sql(f"select pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn")[0][0], "the replica is up to date")
