"""A load that knows every answer and keeps the book of every commit, and what to look at when it is over: for tests that break
things meanwhile (test_chaos_*.py). CHAOS_SCALE=100 makes them that much longer."""
import contextlib
import os
import random
import time

import wire
from conftest import wait_until
from ledger import Ledger, Write
from wire import SYNC, bind, execute, parse, query

SCALE = float(os.environ.get("CHAOS_SCALE", 1))
# What a client may be told when a server, or the way to it, breaks down under its query.
SERVER_DIED = ("57P01", "57P02", "08006", "08P01")


def times(n):
    """n, in the scale that was asked for."""
    return max(1, round(n * SCALE))


class Wrong(Exception):
    """An answer that is none to what was asked."""


class Load(Ledger):
    """Clients that log in, ask, write and roll back, and come again if they are thrown out. Whatever is acknowledged must be
    there in the end, once; an answer that is not the client's own is an error at once. refused(): what came instead of an answer.

    patient: a login that fails is tried again, too. Else it is a failure."""

    def __init__(self, p, database, writers=6, pause=0.002, patient=False, login=None, user="alice"):
        super().__init__(p, database, writers, pause)
        self.patient, self.user = patient, user
        self.enter = login or (lambda: p.login(self.user, database))
        self.undone, self.done, self.turned_away = set(), 0, []
        self.rnd = random.Random()

    def write(self):
        try:
            while not self.stop.is_set():
                try:
                    c = self.enter()
                except (AssertionError, OSError) as e:
                    if not self.patient:
                        raise
                    self.turned_away.append((time.monotonic(), repr(e)))
                    time.sleep(0.02)
                    continue
                with c:
                    while not self.stop.is_set() and self.one(c):
                        self.done += 1
                        time.sleep(self.pause)
        except Exception as e:  # noqa: BLE001
            self.broken.append(repr(e))

    def one(self, c):
        w = Write(next(self.ids), time.monotonic())
        sort = self.rnd.choice(["insert", "insert", "prepared insert", "rolled back", "simple", "extended", "error", "copy"])
        committed = False
        try:
            if sort in ("insert", "prepared insert"):
                sql = f"insert into ledger (id) values ({w.id}) returning id"
                if sort == "insert":
                    c.send(query("begin"), query(sql), query("commit"))
                    rows = self.rows([*c.until(), *c.until(), *c.until()])
                else:
                    c.send(parse("", "insert into ledger (id) values ($1) returning id"), bind("", "", [w.id]), execute(), SYNC)
                    rows = self.rows(c.until())
                self.same(rows, [[str(w.id)]])
                committed = True
            elif sort == "rolled back":
                self.undone.add(w.id)
                c.send(query("begin"), query(f"insert into ledger (id) values ({w.id})"), query("rollback"))
                for _ in range(3):
                    self.same(self.rows(c.until()), [])
            elif sort == "simple":
                self.same(self.rows(c.query(f"select {w.id}, 'simple'")), [[str(w.id), "simple"]])
            elif sort == "extended":
                c.send(parse("s", "select $1::int8 + 1"), bind("", "s", [w.id]), execute(), wire.close("S", "s"), SYNC)
                self.same(self.rows(c.until()), [[str(w.id + 1)]])
            elif sort == "error":
                out = c.query(f"select {w.id} / 0")
                if [m.code for m in out if m.type == "E"] != ["22012"]:
                    self.rows(out)
                    raise Wrong(out)
            else:
                out = c.query(f"copy (select {w.id} from generate_series(1, 20)) to stdout")
                self.rows(out)
                self.same([m.body for m in out if m.type == "d"], [b"%d\n" % w.id] * 20)
        except wire.Closed as e:
            text = e.args[0].decode(errors="replace") if e.args and isinstance(e.args[0], bytes) else str(e)
            w.error = f"closed: {text}"
        except OSError as e:
            w.error = f"closed: {e!r}"
        except Told as e:
            w.error = str(e)
        w.ended = time.monotonic()
        if committed or w.error:
            self.writes.append(w)
        return not w.error

    def rows(self, out):
        """The rows; an error is not what was wanted, but told it may be."""
        for m in out:
            if m.type == "E":
                raise Told(f"{m.code} {m.text}")
        return [m.row for m in out if m.type == "D"]

    def same(self, got, wanted):
        if got != wanted:
            raise Wrong(f"{got} instead of {wanted}")

    def goes_on(self, more=20):
        """Somebody is served: from now on so many."""
        before = self.done
        wait_until(lambda: self.done > before + more or self.broken, "clients are served")
        assert not self.broken, self.broken

    def settle(self, server):
        """When all have left: nothing was lost, nothing was done twice or by nobody, and nothing that was taken back is there."""
        assert not self.broken, self.broken[:3]
        lost, strange, where = self.compare(server)
        assert not lost, ("lost", sorted(lost)[:10])
        assert not strange - self.undone, ("never asked for", sorted(strange)[:10])
        assert not self.undone & set(where), ("rolled back", sorted(self.undone & set(where))[:10])
        assert not [w for w in self.writes if "duplicate key" in w.error or w.error.startswith("23505")], "done twice"


class Told(Exception):
    """An ErrorResponse."""


def descriptors(p):
    return len(os.listdir(f"/proc/{p.proc.pid}/fd"))


@contextlib.contextmanager
def nothing_is_left(p, server=None):
    """Around a load that has ended when the block has: every counter and descriptor is back where it was."""
    p.show("POOLS")
    before = descriptors(p)
    yield
    all_quiet(p)
    p.admin("RECONNECT")
    wait_until(lambda: descriptors(p) <= before, f"no more than {before} descriptors")
    if server:
        wait_until(lambda: not server.backends(), "no backend is left")


def all_quiet(p):
    """Nobody is there: no client, no server in use, no cancel on its way, in any pool of any worker."""
    def counters():
        found = {}
        for row in p.show("POOLS"):
            if row["database"] != "pgbouncer":
                for key in ("cl_active", "cl_waiting", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active",
                            "sv_active_cancel", "sv_being_canceled", "sv_tested", "sv_login", "maxwait"):
                    found[row["database"], row["user"], key] = int(row[key])
        lists = {r["list"]: int(r["items"]) for r in p.show("LISTS")}
        found |= {"clients": lists["used_clients"] - 1, "login": lists["login_clients"]}
        left.clear()
        left.update((k, v) for k, v in found.items() if v)
        return not left
    left = {}
    try:
        wait_until(counters)
    except AssertionError:
        raise AssertionError(f"counters that are not back: {left}") from None
