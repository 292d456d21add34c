#!/usr/bin/env python3
"""Hours of everything at once: does anything grow, does any answer change?

    scripts/soak HOURS [--clients 10000] [--rate 1000] [--exe build/release/pgflotilla] [--null] [--csv soak.csv]

Clients (half of them through TLS) log in with SCRAM and, at --rate transactions a second in all, ask by simple and extended
protocol and by prepared statements, run transactions that are committed or rolled back, COPY in and out, fail, are cancelled,
read large answers; they stay for about --churn seconds and leave with a word or with a reset. Every --reload seconds the ini
changes and RELOAD is said, each tenth time with another certificate. Each answer is compared with what it must be; each client
counts its commits in a row of its own, so that one that is lost or done twice is seen at once and again at the end. The server
is a PostgreSQL that the script starts, or bench/null_backend (--null: no COPY, no errors, no cancels, no counts). All clients
live in this one process.

Every --sample seconds a line goes to the CSV. Exit status 1: a wrong answer, a connection that ended by itself, a pooler that
ended or is not clean in the end, or memory or descriptors that rise.
"""
import argparse
import base64
import csv
import hashlib
import heapq
import hmac
import itertools
import os
import random
import resource
import select
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("hours", type=float)
    a.add_argument("--clients", type=int, default=10_000)
    a.add_argument("--rate", type=float, default=1000, help="transactions a second, all clients together")
    a.add_argument("--churn", type=float, default=600, help="seconds that a connection lasts, on the average")
    a.add_argument("--reload", type=float, default=60)
    a.add_argument("--sample", type=float, default=10)
    a.add_argument("--warmup", type=float, default=0.2, help="part of the time that no slope is taken of")
    a.add_argument("--pool", type=int, default=20)
    a.add_argument("--exe", default=ROOT / "build/release/pgflotilla")
    a.add_argument("--engine", default="io_uring")
    a.add_argument("--workers", type=int, default=2)
    a.add_argument("--null", action="store_true", help="against bench/null_backend")
    a.add_argument("--tools", help="where null_backend lies")
    a.add_argument("--csv", default="soak.csv")
    a.add_argument("--ramp", type=float, default=250, help="first logins a second")
    a.add_argument("--login-timeout", type=int, default=60, help="client_login_timeout: more on a machine that has other work")
    a.add_argument("--seed", type=int, default=1)
    return a.parse_args()


options = arguments()
os.environ["POOLER_EXE"] = str(Path(options.exe).absolute())
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "bench")]
TABLE = open(options.csv, "w", newline="")  # before conftest turns root into somebody else
_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

import run  # noqa: E402
from conftest import PASSWORD, Pooler, Postgres, wait_until  # noqa: E402
from wire import (SSL_REQUEST, SYNC, TERMINATE, bind, cancel_packet, cstr, describe, execute, msg, parse, query,  # noqa: E402
                  startup_packet)

USERS = ("alice", "bob")
TEXTS = 50  # different prepared statements, a few thousand clients share them


class Ended(Exception):
    """The connection is gone, and not by our will."""


# --------------------------------------------------------------------------------------------------------------- the loop

class Loop:
    """Runs generators. What they yield is what they wait for: a number of seconds, or (descriptor, EPOLLIN or EPOLLOUT)."""

    def __init__(self):
        self.poll, self.timers, self.waiting, self.ticket = select.epoll(), [], {}, itertools.count()
        self.living, self.hurry = 0, False

    def start(self, task, after=0.0):
        self.living += 1
        heapq.heappush(self.timers, (time.monotonic() + after, next(self.ticket), task))

    def step(self, task):
        try:
            what = next(task)
        except StopIteration:
            self.living -= 1
            return
        if isinstance(what, tuple):
            fd, events = what
            self.waiting[fd] = task
            try:
                self.poll.modify(fd, events | select.EPOLLONESHOT)
            except FileNotFoundError:
                self.poll.register(fd, events | select.EPOLLONESHOT)
        else:
            heapq.heappush(self.timers, (time.monotonic() + what, next(self.ticket), task))

    def turn(self, until):
        now = time.monotonic()
        due = self.timers[0][0] if self.timers else until
        for fd, _ in self.poll.poll(0 if self.hurry else max(0, min(due, until) - now), 512):
            task = self.waiting.pop(fd, None)
            if task:
                self.step(task)
        now = float("inf") if self.hurry else time.monotonic()
        for _ in range(len(self.timers)):
            if not self.timers or self.timers[0][0] > now:
                break
            self.step(heapq.heappop(self.timers)[2])


# ---------------------------------------------------------------------------------------------------------------- protocol

_keys = {}  # (salt, rounds) -> the salted password: half the cost of a login is ours


class Link:
    """A connection that a generator uses: `yield from link.ask(bytes)`."""

    def __init__(self, port):
        self.port, self.sock, self.buf, self.key, self.fatal = port, None, bytearray(), None, ""

    def open(self, tls=None):
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock.connect(("127.0.0.1", self.port))
        except BlockingIOError:
            yield self.sock.fileno(), select.EPOLLOUT
        except OSError as e:
            raise Ended(f"connect: {e}") from None
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise Ended(f"connect: {os.strerror(error)}")
        if tls:
            yield from self.send(struct.pack("!II", 8, SSL_REQUEST))
            yield from self.fill()
            if self.buf != b"S":
                raise Ended(f"TLS was answered by {bytes(self.buf)}")
            self.buf.clear()
            self.sock = tls.wrap_socket(self.sock, do_handshake_on_connect=False, suppress_ragged_eofs=True)
            yield from self.retried(self.sock.do_handshake)

    def retried(self, what, *args):
        """One call, until it need not wait."""
        while True:
            try:
                return what(*args)
            except (BlockingIOError, ssl.SSLWantReadError):
                events = select.EPOLLIN if what != self.sock.send else select.EPOLLOUT
            except ssl.SSLWantWriteError:
                events = select.EPOLLOUT
            except OSError as e:
                raise Ended(self.fatal or f"{type(e).__name__}: {e}") from None
            yield self.sock.fileno(), events

    def send(self, data):
        while data:
            data = data[(yield from self.retried(self.sock.send, data)):]

    def fill(self):
        got = yield from self.retried(self.sock.recv, 65536)
        if not got:
            raise Ended(self.fatal or "closed")
        self.buf += got

    def until(self, last=b"Z"):
        """[(type, body)] up to one of these types."""
        out, buf = [], self.buf
        while True:
            at = 0
            while len(buf) - at >= 5:
                size = int.from_bytes(buf[at + 1:at + 5], "big") + 1
                if len(buf) - at < size:
                    break
                out.append((buf[at:at + 1].decode(), bytes(buf[at + 5:at + size])))
                at += size
                if out[-1][0] == "E" and b"SFATAL\0" in out[-1][1]:
                    self.fatal = out[-1][1].decode(errors="replace").replace("\0", " ")
                if out[-1][0].encode() in last:
                    del buf[:at]
                    return out
            del buf[:at]
            yield from self.fill()

    def ask(self, data, last=b"Z"):
        yield from self.send(data)
        return (yield from self.until(last))

    def login(self, user, database, password, **params):
        yield from self.send(startup_packet({"user": user, "database": database, **params}))
        nonce = base64.b64encode(random.randbytes(18)).decode()
        bare = f"n=,r={nonce}"
        while True:
            out = yield from self.until(b"RZE")
            kind, body = out[-1]
            if kind == "Z":
                return
            if kind == "E":
                raise Ended("login: " + body.decode(errors="replace").replace("\0", " "))
            how = int.from_bytes(body[:4], "big")
            if how == 10:
                first = ("n,," + bare).encode()
                yield from self.send(msg("p", cstr("SCRAM-SHA-256") + struct.pack("!I", len(first)) + first))
            elif how == 11:
                text = body[4:].decode()
                said = dict(x.split("=", 1) for x in text.split(","))
                secret = (said["s"], int(said["i"]))
                if secret not in _keys:
                    _keys[secret] = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(secret[0]), secret[1])
                client = hmac.digest(_keys[secret], b"Client Key", "sha256")
                final = f"c=biws,r={said['r']}"
                signed = hmac.digest(hashlib.sha256(client).digest(), f"{bare},{text},{final}".encode(), "sha256")
                proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signed))).decode()
                yield from self.send(msg("p", f"{final},p={proof}".encode()))
            elif how == 0:
                for kind, body in (yield from self.until(b"ZE")):
                    if kind == "K":
                        self.key = body
                    if kind == "E":
                        raise Ended("login: " + body.decode(errors="replace").replace("\0", " "))
                return

    def close(self, abruptly=False):
        if self.sock:
            if abruptly:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
            self.sock = None


def values(out):
    """The rows of an answer, as lists of text."""
    rows = []
    for kind, body in out:
        if kind == "D":
            at, row = 2, []
            for _ in range(int.from_bytes(body[:2], "big")):
                size = int.from_bytes(body[at:at + 4], "big", signed=True)
                row.append(None if size < 0 else body[at + 4:at + 4 + size].decode())
                at += 4 + max(size, 0)
            rows.append(row)
    return rows


def code(out):
    """SQLSTATE of the error in an answer."""
    for kind, body in out:
        if kind == "E":
            return next((f[1:].decode() for f in body.split(b"\0") if f[:1] == b"C"), "?")
    return None


# ----------------------------------------------------------------------------------------------------------------- clients

class Client:
    def __init__(self, soak, number):
        self.soak, self.number, self.rnd = soak, number, random.Random(options.seed * 1_000_003 + number)
        self.tls = soak.tls if number % 2 else None
        self.user = USERS[number // 2 % 2]
        self.low = self.high = 0  # commits that the server has for sure, and those that it may have
        self.link, self.asked, self.name = None, 0.0, f"soak-{number}"
        names, weights = zip(*(NULL_TASKS if options.null else TASKS).items())
        self.draw = lambda: self.rnd.choices(names, weights)[0]

    def life(self):
        soak, think = self.soak, options.clients / options.rate
        while not soak.over:
            try:
                yield from self.enter()
                stay = time.monotonic() + self.rnd.expovariate(1 / options.churn)
                while time.monotonic() < stay and not soak.over:
                    yield self.rnd.expovariate(1 / think)
                    if soak.over:
                        break
                    self.asked = time.monotonic()
                    task = self.draw()
                    yield from getattr(self, task)()
                    soak.done(task, time.monotonic() - self.asked)
                    self.asked = 0.0
                if self.rnd.random() < 0.5:
                    yield from self.link.send(TERMINATE)
                    self.link.close()
                else:
                    self.link.close(abruptly=True)
            except Ended as e:
                self.asked = 0.0
                soak.ended[str(e)[:200]] += 1
                self.link.close()
                yield 1.0
        soak.connected.discard(self.number)

    def enter(self):
        self.soak.connected.discard(self.number)
        self.link = Link(self.soak.port)
        yield from self.link.open(self.tls)
        yield from self.link.login(self.user, "soak", PASSWORD, application_name=self.name)
        self.soak.connected.add(self.number)
        self.soak.logins += 1
        self.prepared = False

    def must(self, got, wanted, what):
        if got != wanted:
            self.soak.wrong.append(f"{self.name}: {what}: {str(got)[:300]} instead of {str(wanted)[:300]}")

    def expect(self, out, wanted, what, status="I"):
        self.must((code(out), values(out), out[-1][1].decode()), (None, wanted, status), what)

    # tasks
    def simple(self):
        n = str(self.rnd.randrange(1 << 40))
        self.expect((yield from self.link.ask(query(f"select '{n}'"))), [[n]], "simple")

    def extended(self):
        n = str(self.rnd.randrange(1 << 40))
        out = yield from self.link.ask(parse("", "select $1") + bind("", "", [n]) + describe("P", "") + execute() + SYNC)
        self.expect(out, [[n]], "extended")

    def named(self):
        k = self.number % TEXTS
        text = "select $1" if options.null else f"select $1::int8 + {k}"
        n = self.rnd.randrange(1 << 40)
        out = yield from self.link.ask((b"" if self.prepared else parse("s", text)) + bind("", "s", [n]) + execute() + SYNC)
        self.prepared = True
        self.expect(out, [[str(n if options.null else n + k)]], "named")

    def whoami(self):
        out = yield from self.link.ask(query("select current_setting('application_name'), current_user"))
        self.expect(out, [[self.name, self.user]], "whoami")

    def empty_transaction(self):
        for sql, status in (("begin", "T"), ("select '7'", "T"), ("commit", "I")):
            out = yield from self.link.ask(query(sql))
            self.expect(out, [["7"]] if status == "T" and sql != "begin" else [], "empty transaction", status)

    def commit(self):
        """One more of our own: the server says how many it has."""
        yield from self.link.ask(query("begin"))
        out = yield from self.link.ask(query(f"update account set n = n + 1 where client = {self.number} returning n"))
        got = int((values(out) or [["-1"]])[0][0])
        if not self.low < got <= self.high + 1:
            self.soak.wrong.append(f"{self.name}: commits: {got}, after {self.low} to {self.high}: {out}")
        if self.rnd.random() < 0.2:
            out = yield from self.link.ask(query("rollback"))
            self.low = self.high = got - 1
        else:
            self.low, self.high = got - 1, got
            out = yield from self.link.ask(query("commit"))
            self.low = got
        self.expect(out, [], "commit")

    def copy_out(self):
        n = self.rnd.randrange(1, 200)
        out = yield from self.link.ask(query(f"copy (select i, '{self.name}' from generate_series(1, {n}) i) to stdout"))
        self.must(b"".join(b for k, b in out if k == "d"), b"".join(b"%d\t%s\n" % (i, self.name.encode())
                                                                      for i in range(1, n + 1)), "copy out")

    def copy_in(self):
        n = self.rnd.randrange(1, 50)
        yield from self.link.ask(query("begin"))
        yield from self.link.ask(query("copy copied from stdin"), b"GZ")
        out = yield from self.link.ask(msg("d", b"".join(b"%d\t%d\n" % (self.number, i) for i in range(n))) + msg("c"))
        self.expect(out, [], "copy in", "T")
        out = yield from self.link.ask(query(f"select count(*), sum(n) from copied where client = {self.number}"))
        self.expect(out, [[str(n), str(n * (n - 1) // 2)]], "copy in", "T")
        self.expect((yield from self.link.ask(query("rollback"))), [], "copy in")

    def error(self):
        out = yield from self.link.ask(query("select 1 / 0"))
        self.must((code(out), out[-1][1]), ("22012", b"I"), "error")
        yield from self.link.ask(query("begin"))
        out = yield from self.link.ask(parse("", "selec") + bind("", "") + execute() + SYNC)
        self.must((code(out), out[-1][1]), ("42601", b"E"), "error")
        out = yield from self.link.ask(query("select 1"))
        self.must((code(out), out[-1][1]), ("25P02", b"E"), "error")
        self.expect((yield from self.link.ask(query("rollback"))), [], "error")

    def large(self):
        letter, size = chr(97 + self.number % 26), self.rnd.randrange(10_000, 200_000)
        out = yield from self.link.ask(query(f"select repeat('{letter}', {size})"))
        self.must(values(out) == [[letter * size]], True, "large")

    def cancelled(self):
        yield from self.link.send(query("select pg_sleep(600)"))
        shot = {"answered": False, "over": False}
        self.soak.loop.start(self.shoot(self.link.key, shot), 0.05)
        out = yield from self.link.until()
        shot["answered"] = True
        self.must((code(out), out[-1][1]), ("57014", b"I"), "cancelled")
        while not shot["over"]:  # none is on its way when the next query starts
            yield 0.02
        self.soak.cancels += 1

    def shoot(self, key, shot):
        """Until there is an answer: a request that finds the query not begun yet is lost on it."""
        while not shot["answered"]:
            link = Link(self.soak.port)
            try:
                yield from link.open()
                yield from link.send(cancel_packet(key))
                while True:
                    yield from link.fill()
            except Ended:
                link.close()
            yield 0.1
        shot["over"] = True


TASKS = {"simple": 30, "extended": 20, "named": 20, "whoami": 5, "commit": 12, "copy_out": 3, "copy_in": 2, "error": 4, "large": 2,
         "cancelled": 2}
NULL_TASKS = {"simple": 40, "extended": 25, "named": 25, "empty_transaction": 10}


# ------------------------------------------------------------------------------------------------------------- the whole

COLUMNS = ["time", "clients", "rss_kb", "fds", "fds_beyond", "tps", "p50_ms", "p99_ms", "max_ms", "oldest_s", "cpu_s", "transactions",
           "logins", "cancels", "reloads", "ended", "wrong", "servers", "waiting"]


class Soak:
    def __init__(self, folder):
        self.folder, self.loop, self.over = folder, Loop(), False
        self.wrong, self.ended, self.tasks, self.latencies, self.connected = [], Counter(), Counter(), [], set()
        self.logins = self.cancels = self.reloads = 0
        self.samples = []

    def done(self, task, seconds):
        self.tasks[task] += 1
        self.latencies.append(seconds)

    def certificates(self):
        """Two, which take turns."""
        for n in (0, 1):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN=soak{n}", "-days", "9",
                            "-keyout", self.folder / f"{n}.key", "-out", self.folder / f"{n}.crt"], check=True, capture_output=True)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE

    def pooler(self, server):
        """server: what [databases] says of it."""
        p = Pooler(SimpleNamespace(port=0), (options.engine, options.workers), self.folder)
        p.settings |= {
            "auth_type": "scram-sha-256", "max_client_conn": options.clients + 100, "default_pool_size": options.pool,
            "max_prepared_statements": 200, "server_lifetime": 300, "log_connections": 0, "log_disconnections": 0,
            "query_wait_timeout": 300, "client_login_timeout": options.login_timeout, "listen_backlog": 4096, "client_tls_sslmode": "allow",
            "client_tls_key_file": self.folder / "0.key", "client_tls_cert_file": self.folder / "0.crt"}
        p.databases = {"soak": server}
        p.userlist = {u: PASSWORD for u in (*USERS, "admin")}
        p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
        self.p, self.port = p, p.port
        return p.start()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.p.proc.pid}/fd"))

    def lists(self, link):
        out = yield from link.ask(query("SHOW LISTS"))
        return {r[0]: int(r[1]) for r in values(out)}

    def watch(self, until):
        """Samples and RELOADs."""
        link, began, next_reload, last = Link(self.port), time.monotonic(), options.reload, self.tasks.total()
        yield from link.open()
        yield from link.login("admin", "pgbouncer", PASSWORD)
        rows = csv.writer(TABLE)
        rows.writerow(COLUMNS)
        due, before = began, began
        while not self.over:
            due += options.sample
            yield max(0.0, due - time.monotonic())
            now = time.monotonic()
            if not self.p.alive():
                self.over = True
                return
            if now - began >= next_reload:
                next_reload += options.reload
                self.reloads += 1
                n = self.reloads // 10 % 2  # each tenth time: those who began with the old one keep it in memory
                self.p.settings |= {"client_tls_key_file": self.folder / f"{n}.key", "client_tls_cert_file":
                                    self.folder / f"{n}.crt", "query_wait_timeout": 300 + self.reloads % 2}
                self.p.write_ini()
                out = yield from link.ask(query("RELOAD"))
                if out[0][0] != "C":
                    self.wrong.append(f"RELOAD: {out}")
            lists = yield from self.lists(link)
            pools = values((yield from link.ask(query("SHOW POOLS"))))
            times, self.latencies = sorted(self.latencies), []
            fds, total = self.descriptors(), self.tasks.total()
            at = lambda part: round(times[min(len(times) - 1, int(len(times) * part))] * 1000, 2) if times else ""  # noqa: E731
            known = lists["used_clients"] + lists["login_clients"] + lists["used_servers"] + lists["free_servers"]
            sample = {
                "time": round(now - began, 1), "clients": len(self.connected), "rss_kb": self.p.rss() // 1024, "fds": fds,
                "fds_beyond": fds - known, "tps": round((total - last) / (now - before), 1), "p50_ms": at(0.5), "p99_ms": at(0.99),
                "max_ms": at(1), "oldest_s": round(max((time.monotonic() - c.asked for c in self.clients if c.asked), default=0), 2),
                "cpu_s": cpu_seconds(self.p.proc.pid), "transactions": total, "logins": self.logins, "cancels": self.cancels,
                "reloads": self.reloads, "ended": self.ended.total(), "wrong": len(self.wrong),
                "servers": lists["used_servers"] + lists["free_servers"], "waiting": sum(int(r[3]) for r in pools)}
            self.samples.append(sample)
            rows.writerow([sample[c] for c in COLUMNS])
            TABLE.flush()
            last, before = total, now

    def run(self):
        """Fills self.samples; the clients' connections are closed when it returns."""
        self.clients = [Client(self, n) for n in range(options.clients)]
        ramp = options.clients / options.ramp
        for c in self.clients:
            self.loop.start(c.life(), c.rnd.uniform(0, ramp))
        end = time.monotonic() + options.hours * 3600
        self.loop.start(self.watch(end))
        said = time.monotonic()
        while time.monotonic() < end and self.p.alive() and not self.over:
            self.loop.turn(end)
            if time.monotonic() - said > 60 and self.samples:
                said = time.monotonic()
                print(" ".join(f"{k}={self.samples[-1][k]}" for k in COLUMNS), flush=True)
        self.over = self.loop.hurry = True
        limit = time.monotonic() + 120
        while self.loop.living and time.monotonic() < limit and self.p.alive():
            self.loop.turn(time.monotonic() + 0.1)
        self.stuck = self.loop.living


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


def slope(points):
    """Least squares: (per hour, its standard error). The error is of independent points, which these are not quite."""
    n = len(points)
    if n < 3:
        return 0.0, 0.0
    xs, ys = [x / 3600 for x, _ in points], [y for _, y in points]
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    sxx = sum((x - mx) ** 2 for x in xs)
    b = sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sxx
    rest = sum((y - my - b * (x - mx)) ** 2 for x, y in zip(xs, ys))
    return b, (rest / (n - 2) / sxx) ** 0.5


def report(soak, before, after, lost):
    """Prints the table; what is wrong comes back."""
    span = options.hours * 3600
    steady = [s for s in soak.samples if s["time"] > span * options.warmup]
    bad = []
    rise = {}
    for column, least, part in (("rss_kb", 2048, 0.01), ("fds_beyond", 10, 0.0)):
        b, error = slope([(s["time"], s[column]) for s in steady])
        hours = (steady[-1]["time"] - steady[0]["time"]) / 3600 if steady else 0
        level = statistics.fmean(s[column] for s in steady) if steady else 0
        if b - 3 * error > 0 and b * hours > max(least, level * part):
            bad.append(f"{column} rises by {b:.1f} an hour")
        rise[column] = (b, error)
    quarters = [[s["p99_ms"] for s in steady[i * len(steady) // 4:(i + 1) * len(steady) // 4] if s["p99_ms"] != ""] for i in range(4)]
    p99 = [statistics.median(q) if q else 0 for q in (quarters[0], quarters[3])]
    p50 = statistics.median(s["p50_ms"] for s in steady if s["p50_ms"] != "") if steady else 0
    bad += soak.wrong[:3] + [f"{n} x {e}" for e, n in soak.ended.most_common(3)] + lost[:3]
    if soak.stuck:
        bad.append(f"{soak.stuck} clients hang")
    if after["fds"] > before["fds"]:
        bad.append(f"{after['fds']} descriptors in the end, {before['fds']} before")
    for key, value in after["counters"].items():
        if value:
            bad.append(f"{key} is {value} in the end")
    mb = lambda kb: f"{kb / 1024:.1f} MB"  # noqa: E731
    total = soak.tasks.total()
    rows = [
        ("ran", f"{options.hours:g} h, {options.clients} clients, half with TLS, {'null backend' if options.null else 'PostgreSQL'}, "
                f"{options.engine}, {options.workers} workers"),
        ("transactions", f"{total} ({total / span:.0f}/s): " + ", ".join(f"{k} {v}" for k, v in soak.tasks.most_common())),
        ("logins, cancels, RELOADs", f"{soak.logins}, {soak.cancels}, {soak.reloads}"),
        ("wrong answers", str(len(soak.wrong))),
        ("connections that ended by themselves", str(soak.ended.total())),
        ("commits lost or done twice", str(len(lost)) if not options.null else "not looked at"),
        ("RSS before, steady, after the last client", f"{mb(before['rss'])}, {mb(steady[-1]['rss_kb']) if steady else '-'}, "
                                                      f"{mb(after['rss'])}"),
        ("RSS slope", f"{rise['rss_kb'][0] / 1024:+.2f} MB/h (standard error {rise['rss_kb'][1] / 1024:.2f})"),
        ("descriptors beyond clients and servers", f"{rise['fds_beyond'][0]:+.1f} an hour; {before['fds']} before, "
                                                   f"{after['fds']} after"),
        ("p50; p99 of the first and of the last quarter", f"{p50:.1f} ms; {p99[0]:.1f} ms, {p99[1]:.1f} ms"),
        ("CPU of the pooler", f"{soak.samples[-1]['cpu_s'] / span * 100:.1f} % of a core" if soak.samples else "-"),
        ("counters that are not back", ", ".join(k for k, v in after["counters"].items() if v) or "none"),
    ]
    print("\n| soak | |\n| --- | --- |")
    for name, text in rows:
        print(f"| {name} | {text} |")
    for b in bad:
        print("!!", b)
    print(f"samples: {options.csv}")
    return bad


def quiet(p):
    """Counters that have to be zero when nobody is there."""
    found = {}
    for row in p.show("POOLS"):
        if row["database"] != "pgbouncer":
            for key in ("cl_active", "cl_waiting", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active", "sv_active_cancel",
                        "sv_being_canceled", "sv_login"):
                found[f"{row['user']}.{key}"] = int(row[key])
    lists = {r["list"]: int(r["items"]) for r in p.show("LISTS")}
    return found | {"used_clients": lists["used_clients"] - 1, "login_clients": lists["login_clients"]}


def main():
    if options.clients + 500 > HARD:
        sys.exit(f"{options.clients} clients need more descriptors than {HARD}: ulimit -n")
    folder = Path(tempfile.mkdtemp(prefix="pgf-soak-", dir="/tmp"))
    soak = Soak(folder)
    soak.certificates()
    if options.null:
        tools = run.find_tools(options.tools)
        port = run.free_port()
        backend = subprocess.Popen([tools / "null_backend", "--port", str(port)], stdout=subprocess.DEVNULL)
        run.wait_for_port(port, backend, None)
        server = f"host=127.0.0.1 port={port} dbname=bench"
    else:
        backend = Postgres()
        with open(backend.data / "postgresql.conf", "a") as f:
            f.write("autovacuum = on\nautovacuum_naptime = 30\nlog_min_messages = fatal\nlog_min_error_statement = fatal\n")
        backend.start()
        with backend.connect("postgres") as c:
            for u in USERS:
                c.execute(f"create role {u} login superuser")
            c.execute("create database p0")
        backend.sql("create table account (client int primary key, n int not null) with (fillfactor = 50)")
        backend.sql("create table copied (client int, n int)")
        backend.sql(f"insert into account select i, 0 from generate_series(0, {options.clients - 1}) i")
        server = f"host=127.0.0.1 port={backend.port} dbname=p0"
    p = soak.pooler(server)
    signal.signal(signal.SIGTERM, lambda *_: setattr(soak, "over", True))
    lost, after = [], {"fds": 0, "rss": 0, "counters": {}}
    bad = []
    try:
        p.show("POOLS")
        before = {"fds": soak.descriptors(), "rss": p.rss() // 1024}
        soak.run()
        if not p.alive():
            bad.append(f"the pooler ended: {p.log_tail()}")
        else:
            for c in soak.clients:  # those that hang, too
                if c.link:
                    c.link.close()
            p.admin("RECONNECT")
            until = time.monotonic() + 60
            while any(quiet(p).values()) and time.monotonic() < until:
                time.sleep(0.5)
            while soak.descriptors() > before["fds"] and time.monotonic() < until:
                time.sleep(0.5)
            after = {"fds": soak.descriptors(), "rss": p.rss() // 1024, "counters": quiet(p)}
        if not options.null:
            has = dict(backend.sql("select client, n from account"))
            lost = [f"client {c.number}: {has[c.number]} commits, {c.low} to {c.high} expected" for c in soak.clients
                    if not c.low <= has[c.number] <= c.high]
        bad += report(soak, before, after, lost)
        if p.alive():
            p.stop()
    finally:
        if p.proc:
            p.proc.kill()
        if options.null:
            run.stop(backend)
        else:
            backend.stop()
    if bad:
        print(f"kept: {folder}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
