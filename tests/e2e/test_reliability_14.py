"""Section 14 of the reliability catalogue: thread-per-core hazards. 160 (clients that change hands), 162 and 163 under
moves are in test_moves.py."""
import random
import signal
import threading
import time

import pytest

import wire
from conftest import PATIENCE, wait_until
from test_moves import in_threads
from test_pool import pid_of
from wire import query

pytestmark = pytest.mark.ours


@pytest.mark.workers(16)
@pytest.mark.parametrize("policy", ["adaptive", "kernel"])
def test_r159_no_server_is_stranded(pooler, pg, policy):
    """16 workers, five servers, 50 clients: an idle server serves whoever asks, on whatever worker, and no more than five
    are ever opened."""
    p = pooler(default_pool_size=5, placement=policy, query_wait_timeout=20)
    clients = [p.login() for _ in range(50)]
    for _ in range(3):
        for c in random.sample(clients, len(clients)):
            assert pid_of(c)
    assert len(pg.backends("usename = 'alice'")) <= 5
    # Five of them hold all servers; each that lets go serves one who waits, wherever that one is.
    random.shuffle(clients)
    holders, waiters = clients[:5], clients[5:]
    for c in holders:
        c.query("begin")
    for c in waiters:
        c.send(query("select 'served'"))
    wait_until(lambda: p.pool()["cl_waiting"] == 45, "the others wait")
    assert len(pg.backends("usename = 'alice'")) == 5
    holders[0].query("commit")
    for c in waiters:
        assert c.until("Z")[1].row == ["served"]
    for c in clients:
        c.close()


@pytest.mark.workers(4)
@pytest.mark.parametrize("event", ["cancel", "client dies", "lifetime", "reload", "reconnect"])
def test_r160_servers_change_hands_while(pooler, pg, event):
    """One server, lent to and fro between four workers all the time."""
    p = pooler(default_pool_size=1, **({"server_lifetime": 1} if event == "lifetime" else {}))
    stop = threading.Event()

    def disturb():
        n = 0
        while not stop.is_set():
            n += 1
            if event == "cancel":
                with p.login() as c:
                    c.send(query("select pg_sleep(0.01), 'cancelled'"))
                    wire.cancel(c.address, c.key)
                    out = c.until("Z")
                    assert out[-2].type == "C" or out[-2].code == "57014"
            elif event == "client dies":
                c = p.login()
                c.send(query("select pg_sleep(0.01)"))
                c.drop()
            elif event == "reload":
                p.settings["query_wait_timeout"] = 60 + n
                p.write_ini()
                p.admin("RELOAD")
            elif event == "reconnect":
                p.admin("RECONNECT")
            time.sleep(0.02)
    disturber = threading.Thread(target=disturb, daemon=True)

    def work(n):
        with p.login() as c:
            for i in range(150):
                assert c.value(f"select {n * 1000 + i}") == str(n * 1000 + i)
    disturber.start()
    try:
        in_threads(work, 12)
    finally:
        stop.set()
        disturber.join(PATIENCE)
    assert sum(int(w["servers_moved_in"]) for w in p.show("WORKERS")) > 0
    pool = wait_until(lambda: (x := p.pool())["sv_active"] == 0 and x, "free")
    assert (pool["cl_waiting"], pool["sv_being_canceled"]) == (0, 0)


@pytest.mark.workers(4)
def test_r162_two_commands_at_once(pooler):
    """Commands of several consoles at the same time, under traffic: each is answered, and none lasts."""
    p = pooler(default_pool_size=4)
    stop = threading.Event()

    def work(n):
        if n < 4:
            with p.login() as c:
                while not stop.is_set():
                    assert c.value("select 1") == "1"
            return
        with p.console() as c:
            for i in range(30):
                for command in ("RECONNECT p0", "SHOW POOLS", "WAIT_CLOSE p0", "RELOAD", "SHOW CLIENTS"):
                    out = c.query(command)
                    assert out[-1].type == "Z" and not any(m.type == "E" for m in out), (command, out)
        if n == 4:
            stop.set()
    in_threads(work, 7)
    with p.login() as c:
        assert c.value("select 1") == "1"


@pytest.mark.workers(4, 16)
def test_r163_orderly_end_with_full_queues(pooler, pg):
    """Queues on every worker, one client that never commits: SIGINT refuses who waits and ends with the holder."""
    p = pooler(default_pool_size=1)
    clients = [p.login() for _ in range(32)]
    holder = clients[0]
    holder.query("begin")
    for c in clients[1:]:
        c.send(query("select 1"))
    wait_until(lambda: p.pool()["cl_waiting"] == 31, "the others wait")
    p.kill(signal.SIGINT)
    for c in clients[1:]:
        assert c.fatal().text == "server shutting down"
    assert holder.value("select 7") == "7"
    holder.query("commit")
    assert p.wait_exit() == 0
    p.proc = None
    p.assert_clean()
    wait_until(lambda: not pg.backends("usename = 'alice'"), "no backend is left")
