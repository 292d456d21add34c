"""Who waits for whom, and the budgets that all workers share: 131, 132 and 136 of the reliability catalogue. The rest of
section 11: test_reliability_11.py."""
import contextlib
import threading
import time

import pytest

import wire
from conftest import OURS, PATIENCE, wait_until
from test_pool import LIMITS, Sampler, pid_of
from wire import query


def idle_again(p, *users):
    for user in users or ("alice",):
        pool = wait_until(lambda: (x := p.pool(user=user)) and not x["cl_waiting"] and not x["sv_active"] and x,
                          "nobody waits, nothing runs")
        assert pool["maxwait"] == 0


# ---------------------------------------------------------------------------------------------- waiting

@pytest.mark.workers(1, 4)
def test_r131_query_wait_timeout_of_users_and_databases(pooler):
    """The narrowest limit counts for each; the queue has forgotten them; the server's holder notices nothing."""
    p = pooler(default_pool_size=1, query_wait_timeout=60, users={"bob": "query_wait_timeout=1"})
    with p.login("bob") as a, p.login("bob") as b, p.login() as c, p.login() as d:
        a.query("begin")
        c.query("begin")
        b.send(query("select 1"))
        d.send(query("select 2"))
        assert b.fatal().text == "query_wait_timeout"
        assert p.pool(user="bob")["cl_waiting"] == 0 and p.pool()["cl_waiting"] == 1
        c.query("commit")
        assert d.until("Z")[1].row == ["2"]
        assert a.query("commit")[-1].body == b"I"


@pytest.mark.ours
@pytest.mark.workers(1, 4)
def test_r132_first_come_first_served(pooler, pg):
    """One server, a queue built one by one over all workers: served in that order. Each has waited for longer than the
    bound (3 ms) when the next one comes, so there is no tie."""
    p = pooler(default_pool_size=1)
    pg.sql("drop table if exists arrivals; create table arrivals (n serial, who int)")
    clients = [p.login() for _ in range(24)]
    with p.login() as holder:
        holder.query("begin")
        holder.value("select 1")
        for i, c in enumerate(clients):
            c.send(query(f"insert into arrivals (who) select {i} from pg_sleep(0.005)"))
            wait_until(lambda: p.pool()["cl_waiting"] == i + 1, "it waits")
            time.sleep(0.02)
        holder.query("commit")
        for c in clients:
            assert c.until("Z")[-1].body == b"I"
    assert [r[0] for r in pg.sql("select who from arrivals order by n")] == list(range(24))
    for c in clients:
        c.close()
    pg.sql("drop table arrivals")


@pytest.mark.ours
@pytest.mark.workers(4)
def test_r132_nobody_waits_while_a_server_idles(pooler):
    """Clients of all workers, short and long queries, fewer servers than clients. Whenever everything stands still with
    somebody in the queue, all servers are at work."""
    p = pooler(default_pool_size=5)
    stop = threading.Event()
    failed = []

    def work(n):
        try:
            with p.login() as c:
                i = 0
                while not stop.is_set():
                    i += 1
                    c.value(f"select pg_sleep({0.05 if (n + i) % 7 == 0 else 0.001})")
        except Exception as e:  # noqa: BLE001
            failed.append(e)
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(24)]
    [t.start() for t in threads]
    try:
        wait_until(lambda: p.pool()["sv_active"] == 5, "all servers are open")
        # A SHOW is a snapshot of every worker at its own moment: what counts is that waiting beside idling never lasts.
        for _ in range(100):
            def served():
                x = p.pool()
                return x["cl_waiting"] == 0 or x["sv_idle"] == 0
            wait_until(served, "no server idles while somebody waits", patience=2)
    finally:
        stop.set()
        [t.join(PATIENCE) for t in threads]
    assert not failed, failed[:3]
    idle_again(p)


def busy(p, user, database, n, stop, failed):
    def work():
        try:
            with p.login(user, database) as c:
                while not stop.is_set():
                    c.value("select pg_sleep(0.002)")
        except Exception as e:  # noqa: BLE001
            failed.append(e)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(n)]
    [t.start() for t in threads]
    return threads


@pytest.mark.ours
@pytest.mark.workers(1, 4)
@pytest.mark.parametrize("limit", ["max_db_connections", "max_user_connections"])
def test_r136_no_pool_starves_another(pooler, pg, limit):
    """Two pools under one limit, one of them with more clients than places, always: the other one gets its turn, while
    the first goes on. (On PgBouncer it waits until the first has an idle server, which is never.)"""
    p = pooler(default_pool_size=3, **{limit: 2})
    other = ("bob", "p0") if limit == "max_db_connections" else ("alice", "p1")
    stop, failed = threading.Event(), []
    threads = busy(p, "alice", "p0", 12, stop, failed)
    group = "datname" if limit == "max_db_connections" else "usename"
    wait_until(lambda: p.pool()["sv_active"] == 2, "the first pool has all places")
    sampler = Sampler(pg, group, 2)
    sampler.start()
    try:
        def served(n):
            with p.login(*other) as c:
                return c.value(f"select {n}") == str(n)
        for n in range(3):
            assert served(n)
        assert not failed
    finally:
        stop.set()
        [t.join(PATIENCE) for t in threads]
        sampler.over.set()
        sampler.join()
    assert not failed, failed[:3]
    assert not sampler.bad, sampler.bad[:3]
    idle_again(p)


# ---------------------------------------------------------------------------------------------- arithmetic

@pytest.mark.workers(1, 4)
@pytest.mark.parametrize("limit", ["max_db_connections", "max_user_connections"])
def test_r136_idle_servers_of_others_make_room(pooler, pg, limit):
    """Five pools share three places, one after the other: the longest idle server goes, nobody waits for a timeout."""
    p = pooler(databases={f"d{n}": f"host=127.0.0.1 port={pg.port} dbname=p0" for n in range(5)},
               **{limit: 3, "query_wait_timeout": 20})
    users = ("alice", "bob", "carol", "admin", "stats")
    who = [(u, "p0") for u in users] if limit == "max_db_connections" else [("alice", f"d{n}") for n in range(5)]
    clients = [p.wire().start(u, d) for u, d in who]
    for c in clients:
        assert c.authenticate()[-1].type == "Z"
    pids = []
    for _ in range(3):
        for c in clients:
            pids.append(pid_of(c))
            assert len(pg.backends("usename in ('alice', 'bob', 'carol', 'admin', 'stats')")) <= 3
    p.wait_log("closing because: evicted")
    assert len(set(pids[:5])) == 5
    for c in clients:
        c.close()


@pytest.mark.workers(4)
@pytest.mark.parametrize("crash", ["backend killed", "client dropped", "reload", "reconnect", "lifetime"])
def test_r136_limits_hold_through_churn(pooler, pg, crash):
    """Budgets while servers die, are replaced and are lent: never one too many, and in the end every place is there."""
    settings, who, group, limit = LIMITS["max_db_connections"]
    wait_until(lambda: not pg.backends(), "no backends left from before")
    p = pooler(**settings, **({"server_lifetime": 1} if crash == "lifetime" else {}))
    stop = threading.Event()
    sampler = Sampler(pg, group, limit)

    def work(i):
        user, database = who[i % len(who)]
        while not stop.is_set():
            with contextlib.suppress(wire.Closed, AssertionError, OSError), p.login(user, database) as c:
                for n in range(10):
                    out = c.query(f"select {n} from pg_sleep(0.003)")
                    if crash == "client dropped" and n == 5:
                        c.send(query("select pg_sleep(0.01)"))
                        c.drop()
                        break
                    assert out[-1].type == "Z"
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(20)]
    sampler.start()
    [t.start() for t in threads]
    try:
        for n in range(10):
            time.sleep(0.2)
            if crash == "backend killed":
                pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where client_addr is not null and "
                       "backend_type = 'client backend' limit 2")
            elif crash == "reload":
                p.settings["query_wait_timeout"] = 50 + n
                p.write_ini()
                p.admin("RELOAD")
            elif crash == "reconnect":
                p.admin("RECONNECT")
    finally:
        stop.set()
        [t.join(PATIENCE) for t in threads]
        sampler.over.set()
        sampler.join()
    assert sampler.samples > 10
    if crash not in ("backend killed", "client dropped"):  # there a backend outlives its connection for a moment
        assert not sampler.bad, (sampler.most, sampler.bad[:3])
    idle_again(p, "alice", "bob", "carol")
    # All five places can be had at once again.
    holders = [p.login(*who[n % 3]) for n in range(5)]
    for c in holders:
        c.query("begin")
    for c in holders:
        c.close()
    assert OURS or True


@pytest.mark.workers(4)
def test_r136_zero_is_no_limit(pooler, pg):
    p = pooler(default_pool_size=0, max_db_connections=0, max_user_connections=0)
    clients = [p.login() for _ in range(40)]
    for c in clients:
        c.query("begin")
    assert len(pg.backends("usename = 'alice'")) == 40
    for c in clients:
        c.close()


