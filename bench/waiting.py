#!/usr/bin/env python3
"""How evenly clients are spread over workers, and how long the unluckiest one waits for a server.

    bench/waiting.py [--exe build/release/pgflotilla] [--workers 1,16] [--clients 256] [--pool-size 20] [--seconds 10]

Skew: 8, 32, 64, 256 clients log in and stay; the fullest worker against the mean, for each placement.
Waiting: a closed loop of clients, each query takes 1 ms or (one in ten) 200 ms on a server that only sleeps; the longest
wait for a server against that of one ideal queue, which is simulated with the same clients and the same service times.
Server and clients are this process, so it knows at every moment who has asked and which server works: `idle while
waiting` is the share of the servers' time that passed idle while somebody waited. The way of each query through the
kernel, the pooler and this process is in it, so compare with one worker; `as SHOW POOLS has it` is in how many looks of the
console there were a client that waits and an idle server. Wants a quiet machine and a core of its own.
"""
import argparse
import asyncio
import heapq
import os
import pwd
import random
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT, LONG, ONE_IN = 0.001, 0.2, 10


def message(kind, body=b""):
    return kind + struct.pack("!I", len(body) + 4) + body


READY = message(b"Z", b"I")
LOGIN = (message(b"R", struct.pack("!I", 0)) + b"".join(message(b"S", k + b"\0" + v + b"\0") for k, v in (
    (b"server_version", b"15.0"), (b"client_encoding", b"UTF8"), (b"DateStyle", b"ISO, MDY"),
    (b"TimeZone", b"UTC"), (b"standard_conforming_strings", b"on"), (b"application_name", b"")))
         + message(b"K", bytes(8)) + READY)


class Meter:
    """Integrates over time: which share of the servers' time was idle while as many clients waited?"""

    def __init__(self, servers):
        self.servers, self.asked, self.working, self.idle_while_waiting = servers, 0, 0, 0.0
        self.since = self.start = time.monotonic()

    def change(self, asked=0, working=0):
        now = time.monotonic()
        useful = min(self.asked - self.working, self.servers - self.working)
        self.idle_while_waiting += (now - self.since) * max(0, useful) / self.servers
        self.since = now
        self.asked += asked
        self.working += working

    def share(self):
        return self.idle_while_waiting / (self.since - self.start)


async def read_message(reader):
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def backend(reader, writer, meter):
    try:
        while True:
            size, code = struct.unpack("!II", await reader.readexactly(8))
            await reader.readexactly(size - 8)
            if code != 80877103:  # SSLRequest
                break
            writer.write(b"N")
        writer.write(LOGIN)
        while True:
            kind, body = await read_message(reader)
            if kind != b"Q":
                return
            text = body[:-1].decode()
            if text.startswith("sleep"):
                m = meter[0]
                m.change(working=1)
                await asyncio.sleep(float(text.split()[1]))
                m.change(working=-1)
            writer.write(message(b"C", b"SELECT 0\0") + READY)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class Client:
    @classmethod
    async def login(cls, port, database="bench", user="bench"):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        body = struct.pack("!I", 0x30000) + b"".join(
            k.encode() + b"\0" + v.encode() + b"\0" for k, v in (("user", user), ("database", database))) + b"\0"
        self.writer.write(struct.pack("!I", len(body) + 4) + body)
        await self.ready()
        return self

    async def ready(self):
        rows = []
        while True:
            kind, body = await read_message(self.reader)
            if kind == b"E":
                raise RuntimeError(body)
            if kind in b"TD":
                rows.append(body)
            if kind == b"Z":
                return rows

    async def query(self, sql):
        self.writer.write(message(b"Q", sql.encode() + b"\0"))
        return await self.ready()

    async def show(self, what):
        """Rows as dicts."""
        description, *rows = await self.query(f"SHOW {what}")
        names, at = [], 2
        for _ in range(struct.unpack_from("!H", description)[0]):
            end = description.index(b"\0", at)
            names.append(description[at:end].decode())
            at = end + 19
        out = []
        for row in rows:
            values, at = [], 2
            for _ in names:
                size = struct.unpack_from("!i", row, at)[0]
                values.append(row[at + 4:at + 4 + max(size, 0)].decode())
                at += 4 + max(size, 0)
            out.append(dict(zip(names, values)))
        return out


def services(client):
    rng = random.Random(client)
    while True:
        yield LONG if rng.randrange(ONE_IN) == 0 else SHORT


def ideal(clients, servers, seconds, overhead):
    """One queue, the same closed loop: every wait, in seconds."""
    sources = [services(c) for c in range(clients)]
    queue, free, done, waits = [(0.0, c) for c in range(clients)], [0.0] * servers, [], []
    heapq.heapify(free)
    while queue or done:
        if not queue or (done and done[0][0] <= queue[0][0]):
            queue.append(heapq.heappop(done))
            queue.sort()
            continue
        asked, client = queue.pop(0)
        start = max(asked, heapq.heappop(free))
        if start > seconds:
            break
        waits.append(start - asked)
        end = start + next(sources[client]) + overhead
        heapq.heappush(free, end)
        heapq.heappush(done, (end, client))
    return waits


class Pooler:
    def __init__(self, exe, backend_port, **settings):
        self.dir = Path(tempfile.mkdtemp(prefix="pgf-waiting-"))
        self.port = random.randrange(20000, 30000)
        defaults = dict(listen_addr="127.0.0.1", listen_port=self.port, unix_socket_dir="", auth_type="any",
                        admin_users="bench", pool_mode="transaction", max_client_conn=2000, query_wait_timeout=0,
                        logfile=self.dir / "log", auth_file=self.dir / "users", server_tls_sslmode="disable")
        (self.dir / "users").write_text('"bench" ""\n')
        (self.dir / "ini").write_text(
            f"[databases]\nbench = host=127.0.0.1 port={backend_port} user=bench\n[pgbouncer]\n"
            + "".join(f"{k} = {v}\n" for k, v in (defaults | settings).items()))
        prefix = []
        if os.geteuid() == 0:
            who = pwd.getpwnam("postgres")
            for path in (self.dir, *self.dir.iterdir()):
                os.chown(path, who.pw_uid, who.pw_gid)
            prefix = ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
        self.process = subprocess.Popen([*prefix, exe, self.dir / "ini"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    async def client(self, database="bench"):
        for _ in range(200):
            try:
                return await Client.login(self.port, database)
            except ConnectionError:
                await asyncio.sleep(0.05)
        raise RuntimeError((self.dir / "log").read_text()[-2000:])

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir)


async def skew(args, port):
    print("| placement | clients | fullest | mean | 1.25 x mean + 1 |\n|---|---:|---:|---:|---:|")
    for placement in ("kernel", "spread", "adaptive"):
        for n in (8, 32, 64, 256):
            p = Pooler(args.exe, port, workers=args.workers[-1], placement=placement, default_pool_size=20)
            try:
                clients = [await p.client() for _ in range(n)]
                console = await p.client("pgbouncer")
                counts = [int(w["clients"]) for w in await console.show("WORKERS")]
                mean = n / len(counts)
                print(f"| {placement} | {n} | {max(counts)} (the console included) | {mean:.1f} | {1.25 * mean + 1:.1f} |",
                      flush=True)
                assert len(clients) == n
            finally:
                p.stop()


async def waiting(args, port, meter):
    print("\n| workers | queries | mean service + overhead | longest wait | ideal queue | ratio | p99 wait | ideal p99 | "
          "idle while waiting | as SHOW POOLS has it |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for workers in args.workers:
        p = Pooler(args.exe, port, workers=workers, placement=args.placement, default_pool_size=args.pool_size)
        try:
            clients = [await p.client() for _ in range(args.clients)]
            await asyncio.gather(*[c.query("sleep 0.05") for c in clients[:args.pool_size * 2]])  # all servers are open
            meter[0] = m = Meter(args.pool_size)
            end = time.monotonic() + args.seconds
            waits, spent = [], []

            async def loop(n):
                source = services(n)
                while time.monotonic() < end:
                    service = next(source)
                    start = time.monotonic()
                    m.change(asked=1)
                    await clients[n].query(f"sleep {service}")
                    m.change(asked=-1)
                    waits.append(time.monotonic() - start - service)
                    spent.append(service)

            async def sample():
                while time.monotonic() < end:
                    pool = next(r for r in await console.show("POOLS") if r["database"] == "bench")
                    looks[pool["cl_waiting"] != "0" and int(pool["sv_idle"]) + int(pool["sv_used"]) > 0] += 1
                    await asyncio.sleep(0.02)
            looks, console = [0, 0], await p.client("pgbouncer")
            await asyncio.gather(sample(), *[loop(n) for n in range(args.clients)])
            # What a query costs besides its sleep, so that the ideal queue turns over as fast as ours did.
            mean = args.seconds * args.pool_size / len(spent)
            overhead = max(0.0, mean - sum(spent) / len(spent))
            best = ideal(args.clients, args.pool_size, args.seconds, overhead)
            p99 = [sorted(w)[int(len(w) * 0.99)] for w in (waits, best)]
            print(f"| {workers} | {len(waits)} | {mean * 1000:.1f} ms | {max(waits) * 1000:.0f} ms | {max(best) * 1000:.0f} ms"
                  f" | {max(waits) / max(best):.2f} | {p99[0] * 1000:.0f} ms | {p99[1] * 1000:.0f} ms | {m.share():.1%} | {looks[1]} of {sum(looks)} looks |", flush=True)
        finally:
            p.stop()


async def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--exe", type=lambda s: Path(s).resolve(), default=ROOT / "build/release/pgflotilla")
    ap.add_argument("--workers", type=lambda s: [int(n) for n in s.split(",")], default=[1, 16])
    ap.add_argument("--clients", type=int, default=256)
    ap.add_argument("--pool-size", type=int, default=20)
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--placement", default="adaptive")
    ap.add_argument("--only", choices=["skew", "waiting"])
    args = ap.parse_args()
    meter = [Meter(args.pool_size)]
    server = await asyncio.start_server(lambda r, w: backend(r, w, meter), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if args.only != "waiting":
        await skew(args, port)
    if args.only != "skew":
        await waiting(args, port, meter)


asyncio.run(main())
