"""One PostgreSQL and two poolers per engine and pytest process; see README.md."""
import contextlib
import importlib.util
import itertools
import os
import selectors
import shutil
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
# The harness of tests/e2e: PostgreSQL, the pooler, who may not be root.
_spec = importlib.util.spec_from_file_location("e2e_harness", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
sys.modules["e2e_harness"] = e2e
sys.path.insert(0, str(HERE.parent / "e2e"))
_spec.loader.exec_module(e2e)

import pytest  # noqa: E402

from play import Client, send_apart  # noqa: E402


@dataclass(frozen=True)
class Mode:
    name: str
    pool_mode: str
    tracking: bool  # named statements are rewritten (max_prepared_statements)
    pooler: str = "main"
    pool_size: int = 4


MODES = [
    Mode("session", "session", False),
    Mode("transaction", "transaction", True),
    Mode("statement", "statement", True),
    Mode("untracked", "transaction", False, pooler="untracked"),
    Mode("narrow", "transaction", True, pool_size=1),
    Mode("narrow-session", "session", False, pool_size=1),
    Mode("pair", "transaction", True),
    Mode("crowd", "transaction", True, pool_size=3),
    Mode("dribble", "transaction", True),
]
MODE = {m.name: m for m in MODES}


class Dribble(threading.Thread):
    """Stands between pooler and PostgreSQL and hands over the server's words one byte a time."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.dir = tempfile.mkdtemp(prefix="pgf-drib-", dir="/tmp")
        self.target = target
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{self.dir}/{Path(target).name}")
        self.listener.listen(64)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.over = False

    def run(self):
        while not self.over:
            for key, _ in self.selector.select(0.2):
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj.fileno() >= 0:
                    self.carry(key.fileobj, *key.data)

    def accept(self):
        near, _ = self.listener.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self.target)
        self.selector.register(near, selectors.EVENT_READ, (far, False))
        self.selector.register(far, selectors.EVENT_READ, (near, True))

    def carry(self, source, sink, apart):
        try:
            data = source.recv(65536)
            if data and apart:
                send_apart(sink, [*(data[i:i + 1] for i in range(min(len(data), 400))), data[400:]])
            elif data:
                with contextlib.suppress(OSError):  # the server is gone, but its last words are still to come
                    sink.sendall(data)
        except OSError:
            data = b""
        if not data:
            for s in (source, sink):
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(s)
                s.close()

    def stop(self):
        self.over = True
        self.join()
        self.listener.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Field:
    """PostgreSQL, and the poolers of each engine as they are asked for."""

    def __init__(self, pg):
        self.pg = pg
        self.direct = f"{pg.dir}/.s.PGSQL.{pg.port}"
        worker = "".join(c for c in os.environ.get("PYTEST_XDIST_WORKER", "") if c.isdigit())
        self.numbers = itertools.count(1 + int(worker or 0) * 10_000_000)
        self.poolers = {}
        self.admin = Client(self.direct, "p0", user="postgres", timeout=120)
        self.admin.ask("set lock_timeout = '20s'")
        self.dribble = None

    def pooler(self, engine, which):
        key = engine, which
        if key not in self.poolers:
            if which == "main" and not self.dribble:
                self.dribble = Dribble(self.direct)
                self.dribble.start()
            p = e2e.Pooler(self.pg, (engine, 2), Path(tempfile.mkdtemp(prefix="pgf-", dir="/tmp")))
            p.settings |= {"max_prepared_statements": 100 if which == "main" else 0, "server_lifetime": 86400}
            p.databases = {
                m.name: f"host={self.dribble.dir if m.name == 'dribble' else self.pg.dir} port={self.pg.port} dbname=p0 "
                        f"pool_mode={m.pool_mode} pool_size={m.pool_size}" for m in MODES if m.pooler == which}
            self.poolers[key] = p.start()
        return self.poolers[key]

    def stop(self):
        self.admin.close()
        try:
            for p in self.poolers.values():
                p.stop()
        finally:
            for p in self.poolers.values():
                if p.proc and p.proc.poll() is None:
                    p.proc.kill()
                    p.proc.wait()
                shutil.rmtree(p.dir, ignore_errors=True)
            if self.dribble:
                self.dribble.stop()


pg = e2e.pg


@pytest.fixture(scope="session")
def field(pg):
    f = Field(pg)
    yield f
    f.stop()


def pytest_report_header():
    return f"pooler: {e2e.EXE}; engines: {', '.join(e2e.engines())}"
