#!/usr/bin/env python3
"""What people who have not logged in cost: memory of connections that wait, CPU time of attempts.

    bench/strangers.py --pgflotilla build/release/pgflotilla --connections 2000 --attempts 1000

One worker, started afresh for each figure. Memory is the growth of RSS between the first 100 connections and all of
them; CPU time is the program's (all threads), which another process's load does not change much. The ratio is the bytes
that it sent for each byte that it was sent.
"""
import argparse
import base64
import hashlib
import hmac
import resource
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import run

FIRST = 100
SETTLE = 4  # seconds; who says nothing is accepted only when tcp_defer_accept is over
SSL_REQUEST = struct.pack("!II", 8, 80877103)


def message(kind, body):
    return kind + struct.pack("!I", len(body) + 4) + body


def startup(user="bench", padding=0):
    options = f"options\0-c a={'x' * padding}\0" if padding else ""
    body = struct.pack("!I", 0x30000) + f"user\0{user}\0database\0bench\0{options}\0".encode()
    return struct.pack("!I", len(body) + 4) + body


def counted(s, data=None, until=None):
    """Sends, reads up to `until` bytes or the end; (sent, received)."""
    if data:
        s.sendall(data)
    got = b""
    while until is None or len(got) < until:
        try:
            more = s.recv(65536)
        except ConnectionResetError:
            break
        if not more:
            break
        got += more
    return got


# ------------------------------------------------------------------------- connections that stay, and say little

def silent(port):
    return socket.create_connection(("127.0.0.1", port))


def half_startup(port):
    s = silent(port)
    s.sendall(startup(padding=9900)[:-1])
    return s


def at_password(port):
    s = silent(port)
    s.sendall(startup())
    assert s.recv(1000).startswith(b"R")
    return s


def half_password(port):
    """As much as a password message may be, but for its last byte."""
    s = at_password(port)
    s.sendall((b"p" + struct.pack("!I", 65000) + bytes(64996))[:-1])
    return s


def half_handshake(port):
    """A ClientHello, and no answer to what comes then."""
    s = silent(port)
    s.sendall(SSL_REQUEST)
    s.recv(1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tls = context.wrap_bio(incoming, outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    s.sendall(outgoing.read())
    s.recv(65536)
    return s


# ------------------------------------------------------------------------- attempts: (bytes sent, bytes received)

def nothing(port):
    silent(port).close()
    return 0, 0


def garbage(port):
    with silent(port) as s:
        return 8, len(counted(s, b"\xff\xee\xdd\xcc\xbb\xaa\x99\x88"))


def http(port):
    data = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with silent(port) as s:
        return len(data), len(counted(s, data))


def cancel(port):
    data = struct.pack("!II", 16, 80877102) + bytes(8)
    with silent(port) as s:
        return len(data), len(counted(s, data))


def scram(port, user="bench"):
    with silent(port) as s:
        first = b"n=,r=fyko+d2lbbFgONRv9qkxdawL"
        sent = startup(user)
        got = counted(s, sent, 20)
        body = b"SCRAM-SHA-256\0" + struct.pack("!I", len(first) + 3) + b"n,," + first
        sent += message(b"p", body)
        s.sendall(message(b"p", body))
        answer = s.recv(1000)
        assert answer.startswith(b"R"), answer
        got += answer
        parts = dict(p.split("=", 1) for p in answer[9:].decode().split(","))
        without = f"c=biws,r={parts['r']}"
        # A wrong password: no need to work for its proof.
        proof = base64.b64encode(hmac.digest(b"wrong", without.encode(), hashlib.sha256)).decode()
        last = message(b"p", f"{without},p={proof}".encode())
        got += counted(s, last)
        return len(sent + last), len(got)


def unknown_user(port):
    return scram(port, "nobody")


def handshake(port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with silent(port) as s:
        sent, received = 8, 1
        counted(s, SSL_REQUEST, 1)
        while True:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            data = outgoing.read()
            s.sendall(data)
            sent += len(data)
            if done:
                return sent, received
            more = s.recv(65536)
            received += len(more)
            incoming.write(more)


def hello_only(port):
    """The dearest that a stranger can ask for with one packet: our signature."""
    s = half_handshake(port)
    s.close()
    return 8 + 517, 0


def cpu_us(pid):
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def rss(pid):
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024


def main(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pgflotilla", metavar="EXE", required=True)
    p.add_argument("--engines", type=run.words, default=["io_uring", "epoll"])
    p.add_argument("--connections", type=int, default=2000)
    p.add_argument("--attempts", type=int, default=1000)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--user", default="postgres")
    args = p.parse_args(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    scratch = Path(tempfile.mkdtemp(prefix="bench-strangers-", dir="/tmp"))
    scratch.chmod(0o755)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout",
                    scratch / "key", "-out", scratch / "crt"], check=True, capture_output=True)
    (scratch / "key").chmod(0o644)
    backend = SimpleNamespace(host="127.0.0.1", port=1)  # nobody gets that far
    extra = {"workers": 1, "client_tls_sslmode": "allow", "client_tls_key_file": scratch / "key",
             "client_tls_cert_file": scratch / "crt"}

    def with_pooler(engine, measure, logging=0):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        logs = dict.fromkeys(("log_connections", "log_disconnections", "log_pooler_errors"), logging)
        process, port = run.Pooler(engine, args.pgflotilla, extra | logs | {"io_engine": engine}).start(
            folder, backend, [0], args.user, 20, "scram")
        try:
            return measure(folder / "log" if logging else process.pid, port)
        finally:
            run.stop(process)
            shutil.rmtree(folder, ignore_errors=True)

    def memory(what):
        def measure(pid, port):
            held = [what(port) for _ in range(FIRST)]
            time.sleep(SETTLE)
            before = rss(pid)
            held += [what(port) for _ in range(args.connections)]
            time.sleep(SETTLE)
            after = rss(pid)
            for s in held:
                s.close()
            return (after - before) / args.connections
        return measure

    ratio = {}

    def attempts(what):
        def measure(pid, port):
            for _ in range(50):
                what(port)
            time.sleep(0.3)
            before, sent, received = cpu_us(pid), 0, 0
            for _ in range(args.attempts):
                s, r = what(port)
                sent, received = sent + s, received + r
            time.sleep(0.3)
            ratio[what] = received / sent if sent else 0
            return (cpu_us(pid) - before) / args.attempts
        return measure

    def lines(what, n=20):
        def measure(log, port):
            before = len(log.read_bytes().splitlines())
            for _ in range(n):
                what(port)
            time.sleep(0.5)
            return (len(log.read_bytes().splitlines()) - before) / n
        return measure

    rows = [(what, memory(what), "RSS bytes") for what in (silent, half_startup, at_password, half_password, half_handshake)]
    rows += [(what, attempts(what), "CPU us") for what in (nothing, garbage, http, cancel, scram, unknown_user, hello_only, handshake)]
    try:
        for what, measure, unit in rows:
            for engine in args.engines:
                values = [with_pooler(engine, measure) for _ in range(args.repeat)]
                more = f"   {ratio[what]:.2f} bytes sent per byte received" if what in ratio and ratio[what] else ""
                print(f"{what.__name__:15} {engine:9} {unit:10} {min(values):8.0f} / {statistics.median(values):.0f} / "
                      f"{max(values):.0f}{more}", flush=True)
            if what in ratio:
                print(f"{what.__name__:15} log lines  {with_pooler(args.engines[0], lines(what), logging=1):8.1f}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
