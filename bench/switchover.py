#!/usr/bin/env python3
"""How long writers stand still when a replica takes over, and whether anything is lost.

    bench/switchover.py [--exe build/release/pgflotilla] [--rounds 10] [--clients 8] [--engine io_uring]

Two PostgreSQL servers with streaming replication, a pool with target_session_attrs=read-write, clients that write all the
time. Each round stops the primary (fast), promotes the replica, and brings the old primary back as its standby. Times are from the moment that the new primary takes writes, asked directly every
2 ms, to the first acknowledged write through the pooler; and of the whole standstill, which contains PostgreSQL's own time
to stop and to be promoted. Servers and fixtures are those of tests/e2e. The exit status is 1 if a write was lost, was
taken by the wrong server, or failed although it was not under way when the primary went down.
"""
import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--exe", default=ROOT / "build/release/pgflotilla")
    a.add_argument("--rounds", type=int, default=10)
    a.add_argument("--clients", type=int, default=8)
    a.add_argument("--workers", type=int, default=2)
    a.add_argument("--engine", default="io_uring")
    return a.parse_args()


options = arguments()
os.environ["POOLER_EXE"] = str(Path(options.exe).absolute())
sys.path.insert(0, str(ROOT / "tests/e2e"))

from clusters import replicated  # noqa: E402
from conftest import Pooler, wait_until  # noqa: E402
from ledger import TABLE, Ledger  # noqa: E402


def when_it_takes_writes(server, result):
    """Asks until it does; a thread of its own."""
    with server.connect("postgres") as c:
        while c.execute("select pg_is_in_recovery()").fetchone()[0]:
            time.sleep(0.002)
    result.append(time.monotonic())


def main():
    folder = Path(tempfile.mkdtemp(prefix="pgf-bench-", dir="/tmp"))
    standstills, delays, in_flight, wrong = [], [], 0, []
    with replicated(["127.0.0.61", "127.0.0.62"]) as (primary, replica):
        for server in (primary, replica):
            server.sql("select 1")
        primary.sql(TABLE)
        p = Pooler(primary, (options.engine, options.workers), folder)
        p.settings |= {"log_connections": 0, "log_disconnections": 0, "query_wait_timeout": 60, "default_pool_size": 4}
        p.databases = {"app": f"host={primary.address},{replica.address} port={primary.port} dbname=p0 "
                              "target_session_attrs=read-write"}
        p.start()
        with Ledger(p, "app", options.clients, pause=0.001) as ledger:
            def written(since=0.0):
                return [w.ended for w in ledger.acknowledged() if w.sent and w.ended >= since]

            wait_until(lambda: len(written()) > 100, "writes go on")
            for i in range(options.rounds):
                time.sleep(1)
                ready = []
                asker = threading.Thread(target=when_it_takes_writes, args=(replica, ready))
                asker.start()
                began = time.monotonic()
                primary.stop()
                down = time.monotonic()
                replica.promote()
                asker.join()
                wait_until(lambda: written(ready[0]), "writes go on at the new primary")
                first = min(written(ready[0]))
                last = max(t for t in written() if t < ready[0])
                delays.append(first - ready[0])
                standstills.append(first - last)
                refused = [w for w in ledger.refused() if w.ended >= began]
                in_flight += len(refused)
                wrong += [w for w in refused if w.sent > down]
                print(f"round {i + 1}: writes flow {delays[-1] * 1000:.0f} ms after the new primary takes them; standstill "
                      f"{standstills[-1] * 1000:.0f} ms, of which {(ready[0] - began) * 1000:.0f} are PostgreSQL's; "
                      f"{len(refused)} under way failed", flush=True)
                primary.follow(replica)
                primary.start()
                primary, replica = replica, primary
            time.sleep(1)
        lost, strange, where = ledger.compare(primary)
        p.stop()
    shutil.rmtree(folder)
    print(f"\n{len(ledger.acknowledged())} writes acknowledged, {len(lost)} of them lost, {len(strange)} that nobody sent; "
          f"{in_flight} failed because they were under way, {len(wrong)} although they were not; broken: {ledger.broken or 'nothing'}")
    for name, values in (("until writes flow again", delays), ("standstill", standstills)):
        print(f"{name}: median {statistics.median(values) * 1000:.0f} ms, worst {max(values) * 1000:.0f} ms")
    return 1 if lost or strange or wrong or ledger.broken else 0


if __name__ == "__main__":
    sys.exit(main())
