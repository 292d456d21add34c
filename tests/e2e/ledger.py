"""Clients that write numbered rows and keep the book: what was acknowledged, when, and what nobody can know. For tests of
switchovers and for bench/switchover.py."""
import itertools
import threading
import time
from dataclasses import dataclass

import wire

TABLE = "create table ledger (id bigint primary key, server text default host(inet_server_addr()))"


@dataclass
class Write:
    id: int
    sent: float
    ended: float = 0.0
    error: str = ""  # none: it was acknowledged


class Ledger:
    """with Ledger(p, "app") as ledger: …   Writers that lose their connection come again."""

    def __init__(self, p, database, writers=4, pause=0.005):
        self.p, self.database, self.pause = p, database, pause
        self.writes, self.broken, self.ids, self.stop = [], [], itertools.count(), threading.Event()
        self.threads = [threading.Thread(target=self.write) for _ in range(writers)]

    def write(self):
        try:
            while not self.stop.is_set():
                with self.p.login(database=self.database) as c:
                    while not self.stop.is_set() and self.one(c):
                        time.sleep(self.pause)
        except Exception as e:  # a login that failed, say
            self.broken.append(repr(e))

    def one(self, c):
        w = Write(next(self.ids), time.monotonic())
        try:
            errors = [m.text for m in c.query(f"insert into ledger (id) values ({w.id})") if m.type == "E"]
            w.error = " ".join(errors)
        except (wire.Closed, OSError) as e:
            w.error = f"closed: {e}"
        w.ended = time.monotonic()
        self.writes.append(w)
        return not w.error.startswith("closed")

    def acknowledged(self):
        return [w for w in self.writes if not w.error]

    def refused(self):
        return [w for w in self.writes if w.error]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()

    def compare(self, server):
        """After the end, with what the server has: (lost, never asked for, where each is)."""
        where = dict(server.sql("select id, server from ledger"))
        acknowledged = {w.id for w in self.acknowledged()}
        return acknowledged - set(where), set(where) - {w.id for w in self.writes}, where
