#!/usr/bin/env python3
"""What an idle client costs through TLS, beside what it costs in the clear.

    bench/idle_tls.py --against pgbouncer=/path/to/pgbouncer --pgflotilla build/release/pgflotilla --clients 2000

Each pooler is started afresh for each of the two. The first 100 clients are not counted (code, tables and first pages
are no client's), then the given number logs in and each asks one question; RSS and PSS are read when all are idle.
"""
import argparse
import contextlib
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

import run

FIRST = 100


def client(port, context):
    """Logged in, one question asked; the socket stays open."""
    s = socket.create_connection(("127.0.0.1", port))
    if context:
        s.sendall(struct.pack("!II", 8, 80877103))
        assert s.recv(1) == b"S"
        s = context.wrap_socket(s)
    body = struct.pack("!I", 0x30000) + b"user\0bench\0database\0bench\0\0"
    s.sendall(struct.pack("!I", len(body) + 4) + body)
    until_ready(s)
    question = b"select 1\0"
    s.sendall(b"Q" + struct.pack("!I", len(question) + 4) + question)
    until_ready(s)
    return s


def until_ready(s):
    got = b""
    while not got.endswith(b"Z\0\0\0\5I"):
        more = s.recv(65536)
        assert more and b"SFATAL" not in more, got + more
        got += more


def memory(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(("Rss", "Pss:"))}


def measure(pooler, tls, args, tools, backend, cpus, scratch):
    folder = Path(tempfile.mkdtemp(dir=scratch))
    extra = pooler.extra | ({"client_tls_sslmode": "require", "client_tls_key_file": scratch / "key",
                             "client_tls_cert_file": scratch / "crt"} if tls else {})
    process, port = run.Pooler(pooler.name, pooler.exe, extra).start(folder, backend, cpus, args.user, 20, "trust")
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if tls != "any":
            context.minimum_version = context.maximum_version = tls
    try:
        with contextlib.ExitStack() as open_:
            for _ in range(FIRST):
                open_.enter_context(client(port, context))
            time.sleep(args.settle)
            before = memory(process.pid)
            for _ in range(args.clients):
                open_.enter_context(client(port, context))
            time.sleep(args.settle)
            after = memory(process.pid)
        return (after["Rss:"] - before["Rss:"]) / args.clients
    finally:
        run.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def main(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--against", action="append", default=[], metavar="NAME=EXE")
    p.add_argument("--pgflotilla", metavar="EXE", required=True)
    p.add_argument("--engines", type=run.words, default=["io_uring", "epoll"])
    p.add_argument("--clients", type=int, default=2000)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--settle", type=float, default=1.5, help="seconds that all are idle before memory is read")
    p.add_argument("--user", default="postgres")
    p.add_argument("--tools", help="where null_backend lies")
    args = p.parse_args(argv)
    args.backend_unix, args.backend_threads, args.tool_engine, args.delay_us = False, 1, "epoll", 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poolers = [run.Pooler(*given.split("=", 1)) for given in args.against]
    poolers += [run.Pooler(engine, args.pgflotilla, {"workers": 1, "io_engine": engine}) for engine in args.engines]
    tools, cpus = run.find_tools(args.tools), [0]
    scratch = Path(tempfile.mkdtemp(prefix="bench-tls-", dir="/tmp"))
    scratch.chmod(0o755)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout",
                    scratch / "key", "-out", scratch / "crt"], check=True, capture_output=True)
    (scratch / "key").chmod(0o644)
    backend = run.Backend(tools, cpus, args, str(scratch))
    kinds = {"plain": None, "TLS 1.3": ssl.TLSVersion.TLSv1_3, "TLS 1.2": ssl.TLSVersion.TLSv1_2}
    samples = {(pooler.name, kind): [] for pooler in poolers for kind in kinds}
    try:
        for _ in range(args.repeat):
            for kind, tls in kinds.items():
                for pooler in poolers:
                    samples[pooler.name, kind].append(measure(pooler, tls, args, tools, backend, cpus, scratch))
    finally:
        run.stop(backend.process)
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"RSS per idle client, bytes, {args.clients} clients, min / median / max of {args.repeat}")
    for pooler in poolers:
        plain = statistics.median(samples[pooler.name, "plain"])
        for kind in kinds:
            values = samples[pooler.name, kind]
            middle = statistics.median(values)
            more = "" if kind == "plain" else f"   {middle - plain:+.0f} beyond plain"
            print(f"{pooler.name:12} {kind:8} {min(values):8.0f} / {middle:.0f} / {max(values):.0f}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
