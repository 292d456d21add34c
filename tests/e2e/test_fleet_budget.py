"""budget = fleet: several processes with one set of limits. PostgreSQL's own list of backends is the judge."""
import contextlib
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

import wire
from conftest import PATIENCE, wait_until
from test_pool import Sampler

pytestmark = pytest.mark.ours


@pytest.fixture
def fleet(make_pooler, pg):
    """fleet(n, settings) -> n running processes that share a fleet_file. More by fleet.more(settings)."""
    directory = Path(tempfile.mkdtemp(prefix="pgf-fleet-", dir="/tmp"))
    wait_until(lambda: not pg.backends(), "no backends left from before")

    def more(**settings):
        return make_pooler(**{"budget": "fleet", "fleet_file": directory / "fleet", "server_idle_timeout": 600} | settings)

    def start(count, **settings):
        return [more(**settings).start() for _ in range(count)]
    start.more = lambda **settings: more(**settings).start()
    start.make = more
    start.file = directory / "fleet"
    yield start
    shutil.rmtree(directory, ignore_errors=True)


def row(p, limit, database=None, user=None):
    for r in p.show("FLEET"):
        if (r["limit"], r["database"], r["user"]) == (limit, database, user):
            return {k: int(v) if v and v.isdigit() else v for k, v in r.items()}
    return None


def pool_row(p, database="p0", user="alice"):
    return row(p, "pool_size", database, user) or {"held_here": 0, "held": 0}


class Load:
    """Clients that query until they are told to stop; each counts what it has got."""

    def __init__(self, p, clients, who=(("alice", "p0"),), sql="select pg_sleep(0.002)"):
        self.p, self.sql = p, sql
        self.over = threading.Event()
        self.done, self.errors = [0] * clients, []
        self.threads = [threading.Thread(target=self.work, args=(i, *who[i % len(who)]), daemon=True)
                        for i in range(clients)]
        [t.start() for t in self.threads]

    def work(self, i, user, database):
        try:
            with self.p.login(user, database) as c:
                while not self.over.is_set():
                    out = c.query(self.sql)
                    assert out[-1].type == "Z" and not [m for m in out if m.type == "E"], out
                    self.done[i] += 1
        except Exception as e:  # noqa: BLE001
            if not self.over.is_set():
                self.errors.append(e)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.over.set()
        [t.join(PATIENCE) for t in self.threads]
        if not unused[0]:
            assert not self.errors, self.errors[:3]

    def each_does(self, more):
        before = list(self.done)
        wait_until(lambda: self.errors or all(now >= b + more for now, b in zip(self.done, before)), "everybody gets on")
        assert not self.errors, self.errors[:3]


@contextlib.contextmanager
def never_above(pg, group, limit):
    sampler = Sampler(pg, group, limit)
    sampler.start()
    try:
        yield sampler
        wait_until(lambda: sampler.samples > 5, "it has been looked at")
    finally:
        sampler.over.set()
        sampler.join()
    assert not sampler.bad, (sampler.most, sampler.bad[:3])


LIMITS = {
    "pool_size": (dict(default_pool_size=4), [("alice", "p0")], "usename || datname", 4),
    "reserve": (dict(default_pool_size=3, reserve_pool_size=2, reserve_pool_timeout=0.01), [("alice", "p0")],
                "usename || datname", 5),
    "max_db_connections": (dict(default_pool_size=4, max_db_connections=5), [("alice", "p0"), ("bob", "p0")], "datname", 5),
    "max_user_connections": (dict(default_pool_size=4, max_user_connections=5), [("alice", "p0"), ("alice", "p1")],
                             "usename", 5),
}


@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("name", LIMITS)
def test_the_sum_is_never_exceeded(fleet, pg, name):
    """Three processes that all want more than there is, and connections that come and go all the time."""
    settings, who, group, limit = LIMITS[name]
    processes = fleet(3, server_lifetime=1, server_idle_timeout=1, **settings)
    with never_above(pg, group, limit) as sampler, contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(p, 8, who)) for p in processes]
        for _ in range(3):
            for load in loads:
                load.each_does(10)
        wait_until(lambda: sampler.most >= limit, "all of it is in use")
    for p in processes:
        wait_until(lambda: all(r["held"] == r["held_here"] == "0" for r in p.show("FLEET") if r["limit"] != "max_client_conn"),
                   "nothing is held any more")
        wait_until(lambda: row(p, "max_client_conn")["held"] == 1, "the console alone is left")


def test_four_processes_on_one_port(fleet, pg):
    """The kernel deals the clients out; whoever gets none leaves its places to the others."""
    first = fleet.make(default_pool_size=5, so_reuseport=1, tcp_defer_accept=0)
    group = [first] + [fleet.make(default_pool_size=5, so_reuseport=1, tcp_defer_accept=0, listen_port=first.port)
                       for _ in range(3)]
    for p in group:
        p.port = first.port
        p.start()
    with never_above(pg, "usename", 5) as sampler, Load(first, 12) as load:
        load.each_does(20)
        wait_until(lambda: sampler.most == 5, "all of it is in use")
        load.each_does(20)


@pytest.mark.workers(1, 3)
def test_idle_places_are_for_whoever_needs_them(fleet, pg):
    """One process has used all places and does nothing now: the other one has them all, and they come back."""
    a, b = fleet(2, default_pool_size=4)
    with never_above(pg, "usename", 4):
        for p, other in ((a, b), (b, a)):
            clients = [p.login() for _ in range(4)]
            for c in clients:
                c.query("begin")
            assert pool_row(p)["held_here"] == 4
            wait_until(lambda: pool_row(other)["held_here"] == 0, "the other one has none")
            for c in clients:
                c.query("commit")
                c.close()


@pytest.mark.workers(1, 3)
def test_a_newcomer_gets_its_share_of_busy_ones(fleet, pg):
    (a,) = fleet(1, default_pool_size=4)
    with never_above(pg, "usename", 4), Load(a, 12) as busy:
        wait_until(lambda: pool_row(a)["held_here"] == 4, "one has it all")
        b = fleet.more(default_pool_size=4)
        with Load(b, 12) as young:
            wait_until(lambda: pool_row(b)["held_here"] == 2 and pool_row(a)["held_here"] == 2, "half each")
            busy.each_does(20)
            young.each_does(20)
            assert pool_row(a)["share"] == pool_row(b)["share"] == 2 and pool_row(a)["members"] == 2
            c = fleet.more(default_pool_size=4)
            with Load(c, 4) as third:
                third.each_does(20)
                assert pool_row(c)["held_here"] >= 1


def test_shares_under_a_limit_that_pools_share(fleet, pg):
    """Many pools of one process hold all of max_db_connections, and one client of another process wants in."""
    (a,) = fleet(1, default_pool_size=4, max_db_connections=4)
    users = [("alice", "p0"), ("bob", "p0"), ("carol", "p0")]
    with never_above(pg, "datname", 4), Load(a, 12, users) as busy:
        wait_until(lambda: row(a, "max_db_connections", "p0")["held_here"] == 4, "one has it all")
        b = fleet.more(default_pool_size=4, max_db_connections=4)
        with Load(b, 4, users) as young:
            young.each_does(20)
            busy.each_does(20)


def test_fewer_places_than_processes(fleet, pg):
    """Nobody can have a share: the only place goes round."""
    processes = fleet(3, default_pool_size=1)
    with never_above(pg, "usename", 1), contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(p, 3)) for p in processes]
        for _ in range(2):
            for load in loads:
                load.each_does(2)


@pytest.mark.workers(1, 2)
def test_what_a_killed_process_had_goes_to_the_others(fleet, pg):
    a, b, c = fleet(3, default_pool_size=3, max_client_conn=6)
    with never_above(pg, "usename", 3):
        held = [a.login() for _ in range(3)]
        for client in held:
            client.query("begin")
        with Load(b, 1) as one, Load(c, 1) as two:
            wait_until(lambda: pool_row(b)["members_waiting"] >= 1, "somebody waits")
            assert one.done == two.done == [0]
            a.proc.kill()
            a.proc.wait()
            a.expect_exit = -signal.SIGKILL
            one.each_does(5)
            two.each_does(5)
            wait_until(lambda: pool_row(b)["members"] == 2, "two are left")
            wait_until(lambda: row(b, "max_client_conn")["held"] <= 3, "its clients do not count")
    b.wait_log("is gone, its places are free") if "is gone" in b.log() else c.wait_log("is gone, its places are free")


def test_killed_at_any_moment(fleet, pg):
    """Processes die in the middle of whatever they do; what is left is exact in the end."""
    keep = fleet.more(default_pool_size=4, server_lifetime=1)
    with never_above(pg, "usename", 4), Load(keep, 6) as load:
        for _ in range(6):
            p = fleet.more(default_pool_size=4, server_lifetime=1)
            victims = Load(p, 6)
            wait_until(lambda: sum(victims.done) >= 20, "it has work")
            p.proc.kill()
            p.proc.wait()
            p.expect_exit = -signal.SIGKILL
            victims.over.set()
            load.each_does(5)
        wait_until(lambda: pool_row(keep)["members"] == 1, "one is left")
        wait_until(lambda: pool_row(keep)["held"] == pool_row(keep)["held_here"] == 4, "it has it all")
    keep.settings["server_idle_timeout"] = 1
    keep.write_ini()
    keep.admin("RELOAD")
    wait_until(lambda: pool_row(keep)["held"] == 0, "and gives it back")


def test_clients_are_counted_together(fleet):
    a, b = fleet(2, max_client_conn=10, max_user_client_connections=7)

    def enter(p, user):
        c = p.wire()
        c.start(user)
        return c, c.authenticate()[-1]
    inside = [enter((a, b)[i % 2], "alice") for i in range(7)]
    assert all(m.type == "Z" for _, m in inside)
    for p in (a, b):
        c, m = enter(p, "alice")
        assert m.text == "client connections exceeded (max_user_client_connections)"
        c.close()

    def full(p):
        c, m = enter(p, "bob")
        if m.type == "Z":
            inside.append((c, m))
            return False
        c.close()
        return m.text == "no more connections allowed (max_client_conn)"
    wait_until(lambda: full(a) and full(b), "the limit is reached")
    assert len(inside) == 10
    inside.pop()[0].close()
    wait_until(lambda: (e := enter(b, "bob"))[1].type == "Z" and (inside.append(e) or True), "a place is free again")
    assert full(a) and len(inside) == 10


def test_reload_changes_the_limit(fleet, pg):
    a, b = fleet(2, default_pool_size=6)
    clients = [p.login() for p in (a, b) for _ in range(3)]
    [c.query("begin") for c in clients]
    assert pool_row(a)["held"] == 6
    for p in (a, b):
        p.settings["default_pool_size"] = 2
        p.write_ini()
        p.admin("RELOAD")
        assert pool_row(p)["configured"] == 2
    [c.query("commit") for c in clients]
    wait_until(lambda: pool_row(a)["held"] <= 2, "what is too much is closed")
    with never_above(pg, "usename", 2), Load(a, 4) as one, Load(b, 4) as two:
        one.each_does(10)
        two.each_does(10)
    for p in (a, b):
        p.settings["default_pool_size"] = 5
        p.write_ini()
        p.admin("RELOAD")
    [c.close() for c in clients]
    clients = [a.login() for _ in range(5)]
    [c.query("begin") for c in clients]  # all of it, though b has nothing to say about that
    assert pool_row(b)["held"] == 5


def test_two_limits(fleet, pg):
    """Each process keeps to its own, and whose is smaller does not starve."""
    a, b = fleet.more(default_pool_size=8), fleet.more(default_pool_size=4)
    with never_above(pg, "usename", 8), Load(a, 16) as large:
        wait_until(lambda: pool_row(a)["held_here"] == 8, "one is above what the other one may have")
        with Load(b, 4) as small:
            small.each_does(20)
            large.each_does(20)
            assert pool_row(b)["held_here"] <= 4


def test_minimum_is_divided(fleet, pg):
    a, b = fleet(2, default_pool_size=6, min_pool_size=4, server_idle_timeout=1)
    clients = [p.login() for p in (a, b) for _ in range(3)]
    [c.query("begin") for c in clients]
    assert pool_row(a)["held"] == 6
    [c.query("commit") for c in clients]
    wait_until(lambda: pool_row(a)["held_here"] == pool_row(b)["held_here"] == 2, "four in all are kept")


def test_cancel_at_the_limit(fleet, pg):
    """A cancel request may open one connection more than the pool has, whichever process has the others."""
    a, b = fleet(2, default_pool_size=2)
    with a.login() as one, b.login() as two:
        one.query("begin")
        two.send(wire.query("select pg_sleep(600)"))
        wait_until(lambda: pg.backends("state = 'active' and query like 'select pg_sleep(600)%%'"), "it runs")
        wire.cancel(("127.0.0.1", b.port), two.key)
        assert [m.code for m in two.until("Z") if m.type == "E"] == ["57014"]
        wait_until(lambda: pool_row(a)["held"] == 2, "the cancel's place is free again")


def test_online_restart(fleet):
    """The connections that the new process takes over count once, from the first moment."""
    p = fleet.more(default_pool_size=2, max_client_conn=30)
    clients = [p.login() for _ in range(20)]
    clients[0].query("begin")
    old = p.proc
    p.spawn("-R")
    wait_until(p.ready, "the new process runs")
    old.wait(PATIENCE)
    assert clients[0].value("select 42") == "42"
    wait_until(lambda: pool_row(p)["held_here"] == 1, "the server is here")
    assert pool_row(p)["held"] == 1
    assert row(p, "max_client_conn")["held"] < 30, "twenty, and consoles"
    clients[0].query("commit")
    wait_until(lambda: pool_row(p)["members"] == 1, "the old one is forgotten")


def test_rolling_restart(fleet, pg):
    """While the old one drains both count."""
    (old,) = fleet(1, default_pool_size=3)
    with never_above(pg, "usename", 3), old.login() as stays:
        with Load(old, 4) as load:
            load.each_does(5)
        stays.query("begin")
        new = fleet.more(default_pool_size=3)
        old.kill(signal.SIGTERM)
        with Load(new, 6) as load:
            load.each_does(20)
            wait_until(lambda: pool_row(new)["held_here"] == 2, "all but the one that is in use")
            stays.query("commit")
            stays.close()
            old.wait_exit()
            wait_until(lambda: pool_row(new)["held_here"] == 3, "all of it")


def refused(p):
    p.write_ini()
    p.spawn()
    p.expect_exit = 1
    assert p.wait_exit() == 1
    p.proc = None
    return p.log_tail()


def test_files_that_are_none(fleet):
    path = fleet.file
    for content in (b"somebody's letter\n", b"\0" * 5_000_000, b"x"):
        path.write_bytes(content)
        path.chmod(0o600)
        assert f"fleet_file {path}: is something else than a fleet file: it is left as it is" in refused(fleet.make())
        assert path.read_bytes() == content
    path.unlink()
    path.touch(0o644)
    assert f"fleet_file {path}: is open to others (mode 0644): it must be 0600" in refused(fleet.make())
    path.unlink()
    path.mkdir()
    assert f"fleet_file {path}: cannot be opened: Is a directory" in refused(fleet.make())
    path.rmdir()
    path.symlink_to("/tmp/pgf-nowhere")
    assert f"fleet_file {path}: cannot be opened: Too many levels of symbolic links" in refused(fleet.make())
    assert not Path("/tmp/pgf-nowhere").exists()
    path.unlink()
    assert "fleet_file /proc/version: " in refused(fleet.make(fleet_file="/proc/version"))
    assert "fleet_file /nowhere/x: cannot be opened: No such file or directory" in refused(fleet.make(fleet_file="/nowhere/x"))
    assert "fleet_file /dev/null: is not a regular file" in refused(fleet.make(fleet_file="/dev/null"))


def test_a_file_in_use_that_does_not_fit(fleet):
    a = fleet.more(default_pool_size=2)
    size = fleet.file.stat().st_size
    with open(fleet.file, "r+b") as f:
        f.seek(16)
        version = f.read(4)
        f.seek(16)
        f.write(b"\xff\xff\xff\xff")
    assert "is in use by another version of pgflotilla" in refused(fleet.make())
    with open(fleet.file, "r+b") as f:
        f.seek(16)
        f.write(version)
    os.truncate(fleet.file, size + 4096)
    assert "has the wrong size, and others use it: end them all first" in refused(fleet.make())
    os.truncate(fleet.file, size)
    with a.login() as c:
        assert c.value("select 1") == "1"


def test_a_file_cut_short(fleet, pg):
    """Each goes on with its part of every limit."""
    a, b = fleet(2, default_pool_size=4)
    with Load(a, 4) as one, Load(b, 4) as two:
        one.each_does(5)
        two.each_does(5)
        os.truncate(fleet.file, 0)
        for p in (a, b):
            p.wait_log("fleet_file was cut short: this process keeps to its part of each limit")
        one.each_does(5)
        two.each_does(5)
        assert "was emptied while others use it: end them all first" in refused(fleet.make())
        # Who has more than its part closes the rest.
        wait_until(lambda: pool_row(a)["held_here"] <= 2 and pool_row(b)["held_here"] <= 2, "each has its part")
        with never_above(pg, "usename", 4) as sampler:
            one.each_does(5)
            two.each_does(5)
            wait_until(lambda: sampler.samples > 5, "it has been looked at")


def test_garbage_while_it_runs(fleet):
    """Nobody believes what is in there: everything may be refused, nothing breaks."""
    a, b = fleet(2, default_pool_size=3)
    size = fleet.file.stat().st_size
    with open(fleet.file, "r+b") as f:
        f.seek(4096)
        f.write(os.urandom(size - 4096))
    for p in (a, b):
        c = p.wire()
        c.start()
        c.close()
        assert p.show("FLEET") and p.alive()
    for p in (a, b):
        p.stop()
    with fleet.more(default_pool_size=1).login() as c:  # the first one after them begins anew
        assert c.value("select 1") == "1"


def test_a_file_left_behind(fleet):
    """By processes that were all killed, in whatever state: the first one begins anew."""
    a = fleet.more(default_pool_size=1)
    with a.login() as c:
        c.query("begin")
        a.proc.kill()
        a.proc.wait()
        a.expect_exit = -signal.SIGKILL
    os.truncate(fleet.file, 100)
    b = fleet.more(default_pool_size=1)
    with b.login() as c:
        assert c.value("select 1") == "1"
    assert pool_row(b)["held"] == 1 and pool_row(b)["members"] == 1


def test_parts_by_number(make_pooler, pg):
    """fleet_size: nothing is shared, everything is divided."""
    processes = [make_pooler(budget="fleet", fleet_size=2, peer_id=n, default_pool_size=5, max_client_conn=40) for n in (1, 2)]
    for p in processes:
        p.start()
    wait_until(lambda: not pg.backends(), "no backends left from before")
    with never_above(pg, "usename", 5), Load(processes[0], 8) as one, Load(processes[1], 8) as two:
        for _ in range(3):
            one.each_does(10)
            two.each_does(10)
        rows = [pool_row(p) for p in processes]
    assert [(r["configured"], r["share"], r["members"], r["held"]) for r in rows] == [(5, 3, 2, None), (5, 2, 2, None)]
    p = processes[0]
    p.settings["fleet_size"] = 6
    p.write_ini()
    with p.console() as c:
        assert c.query("RELOAD")[0].text.startswith("RELOAD failed")
        assert c.query("SET fleet_size = 6")[0].text == \
            "budget = fleet: default_pool_size = 5 cannot be divided among fleet_size = 6 processes"
        assert c.query("SET fleet_size = 5")[-1].type == "Z"
    assert pool_row(p)["share"] == 1


def test_without_a_fleet(pooler):
    p = pooler(default_pool_size=3)
    with p.login() as c:
        assert c.value("select 1") == "1"
        assert pool_row(p) == {"limit": "pool_size", "database": "p0", "user": "alice", "configured": 3, "share": 3,
                               "held_here": 1, "held": 1, "members": 1, "members_waiting": 0}
