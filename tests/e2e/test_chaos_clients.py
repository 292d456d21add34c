"""Chaos by clients: ends at any point (63 to 66), with one server that must never be left in a state that the next one feels.

    ENDS=1000000 pytest tests/e2e/test_chaos_clients.py -s -k "ends and io_uring"     one million of them
"""
import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter

import pytest

import wire
from chaos import nothing_is_left
from wire import FLUSH, SYNC, bind, execute, msg, parse, query, startup_packet

pytestmark = pytest.mark.ours
ENDS = int(os.environ.get("ENDS", 3000))

LOGIN = startup_packet({"user": "alice", "database": "p0"})
RESET = struct.pack("ii", 1, 0)
INSERT = "insert into ends values (1)"
# What a client has said when it goes; cut anywhere. Nothing of it is ever committed.
CONVERSATIONS = {
    "query": query("select repeat('x', 100)"),
    "queries": query("select 1") * 20,
    "large answer": query("select repeat('x', 1000) from generate_series(1, 300)"),
    "error": query("select 1 / 0"),
    "transaction": query("begin") + query(INSERT) + query("select 1"),
    "failed transaction": query("begin") + query(INSERT) + query("selec"),
    "savepoint": query("begin") + query("savepoint s") + query(INSERT),
    "extended": parse("", "select $1::text") + bind("", "", ["x" * 50]) + execute() + SYNC,
    "named": parse("s", "select $1::text") + bind("", "s", ["x" * 50]) + execute() + SYNC + bind("", "s", ["y"]) + execute() + SYNC,
    "without Sync": parse("", INSERT) + bind("", "") + execute() + FLUSH,
    "portal": query("begin") + parse("", "select generate_series(1, 100)") + bind("", "") + execute("", 1) + FLUSH,
    "copy in": query("begin") + query("copy ends from stdin") + msg("d", b"1\n" * 3) * 3,
    "copy out": query("copy (select generate_series(1, 2000)) to stdout"),
    "goodbye": query("select 1") + wire.TERMINATE,
    "nonsense": query("select 1") + b"\xff\0\0\0\x05x",
    "TLS": struct.pack("!II", 8, wire.SSL_REQUEST) + b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(60),
    "cancel": wire.cancel_packet(b"12345678"),
    "no login": b"",
}


def end(port, rnd, kind):
    """One client, from its connect() to its end."""
    said = (b"" if kind in ("TLS", "cancel") else LOGIN) + CONVERSATIONS[kind]
    with socket.socket() as s:
        s.connect(("127.0.0.1", port))
        where = rnd.random()
        s.sendall(said if where < 0.4 else said[:rnd.randrange(len(said) + 1)])
        if where < 0.6:  # and hears something of the answer
            s.settimeout(0.02)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                for _ in range(rnd.randrange(3)):
                    s.recv(rnd.choice([1, 300, 65536]))
        if rnd.random() < 0.7:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@pytest.mark.workers(1, 2)
def test_r64_abrupt_ends_anywhere(pooler, pg):
    """With a pool of one. Now and then a client comes who behaves, and finds the server clean and nothing of the others."""
    pg.sql("drop table if exists ends; create table ends (i int)")
    p = pooler(default_pool_size=1, max_prepared_statements=20, log_connections=0, log_disconnections=0, query_wait_timeout=100,
               server_login_retry="0.05", verbose=0)
    kinds, done, failures, lock = list(CONVERSATIONS), Counter(), [], threading.Lock()
    began = time.monotonic()

    def ends(seed):
        rnd = random.Random(seed)
        try:
            while not failures:
                with lock:
                    if done.total() >= ENDS:
                        return
                    kind = rnd.choice(kinds)
                    done[kind] += 1
                    n = done.total()
                try:
                    end(p.port, rnd, kind)
                except OSError as e:  # it may be told to go while it speaks
                    if e.errno not in (104, 32):
                        raise
                if n % 100 == 0:
                    with p.login() as c:
                        out = c.query(f"select {n}, count(*), current_setting('transaction_isolation') from ends")
                        assert [m.type for m in out] == ["T", "D", "C", "Z"] and out[-1].body == b"I", out
                        assert out[1].row == [str(n), "0", "read committed"], out
                if n % 20_000 == 0:
                    pg.sql("vacuum ends")
                    print(f"{n} ends, {n / (time.monotonic() - began):.0f}/s, RSS {p.rss() // 1024} kB", flush=True)
        except Exception as e:  # noqa: BLE001
            failures.append(repr(e))
    with nothing_is_left(p, pg):
        threads = [threading.Thread(target=ends, args=(i,)) for i in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failures, failures[:3]
    assert pg.sql("select count(*) from ends") == [(0,)]
    print(f"{done.total()} ends in {time.monotonic() - began:.0f} s: {dict(done)}")
