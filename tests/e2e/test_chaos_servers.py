"""Chaos on real parts, 165 of the reliability catalogue: servers die, restart and stand still under a load that checks each
answer and keeps a ledger (chaos.py). One of each here; CHAOS_SCALE=70 makes a thousand killed backends of it."""
import contextlib
import os
import random
import resource
import signal
import time

import pytest

from chaos import SERVER_DIED, Load, nothing_is_left, times
from clusters import independent
from conftest import SANITIZED, wait_until
from ledger import TABLE
from test_reliability_9 import own_processes

pytestmark = pytest.mark.ours


@pytest.fixture(scope="module")
def own():
    with independent(["127.0.0.72"]) as (server,):
        # What was acknowledged has to survive a crash of PostgreSQL, if not of the machine.
        server.sql("alter system set synchronous_commit = on")
        server.sql("select pg_reload_conf()")
        server.sql(TABLE)
        yield server


@pytest.fixture
def single(pooler, own):
    def start(**settings):
        own.sql("truncate ledger")
        return pooler(**{"query_wait_timeout": 100, "default_pool_size": 4, "server_login_retry": "0.1", **settings},
                      databases={"db": f"host={own.address} port={own.port} dbname=p0"})
    return start


def only_the_death_of_servers(load):
    """Each who was told anything was told that."""
    for w in load.refused():
        assert w.error.startswith("closed") or w.error[:5] in SERVER_DIED, w


def backends(own):
    """Of the pooler; none while PostgreSQL is not there."""
    with contextlib.suppress(Exception):
        return own.backends()
    return []


def test_r165_killed_backends(single, own):
    """Told to go, and each fifteenth by SIGKILL, with which all of PostgreSQL's are gone. A kill costs no more than what was
    under way then."""
    p = single()
    rnd = random.Random(165)
    may_fail = 0
    with nothing_is_left(p, own):
        with Load(p, "db") as load:
            load.goes_on()
            for n in range(times(15)):
                hard = n % 15 == 14
                victim = rnd.choice(wait_until(lambda: backends(own), "there are servers"))
                with contextlib.suppress(ProcessLookupError):  # its lifetime was over
                    os.kill(victim, signal.SIGKILL if hard else signal.SIGTERM)
                may_fail += 4 if hard else 1
                if hard:
                    wait_until(lambda: victim not in backends(own) and own.ready(), "PostgreSQL is back")
                load.goes_on(10)
    load.settle(own)
    only_the_death_of_servers(load)
    assert len(load.refused()) <= may_fail
    print(f"{times(15)} backends killed, {len(load.refused())} requests failed of {load.done}, {len(load.acknowledged())} commits")


@pytest.mark.one_engine
def test_r165_restarted_server(single, own):
    """fast, immediate, and SIGKILL to the postmaster."""
    p = single()
    with nothing_is_left(p, own):
        with Load(p, "db") as load:
            load.goes_on()
            for n in range(times(3)):
                before, said = len(load.refused()), len(p.log())
                own.stop([signal.SIGINT, signal.SIGQUIT, signal.SIGKILL][n % 3])
                wait_until(lambda: not own_processes(own), "all of it has ended")
                own.start()
                load.goes_on()
                # But if a login met the end of its server, new clients are told what that one was told, each of them once.
                turned_away = p.log()[said:].count("pooler error: server login has been failing, cached error: terminating")
                assert len(load.refused()) - before <= 4 + turned_away, load.refused()[before:]
    load.settle(own)
    only_the_death_of_servers(load)


@pytest.mark.one_engine
def test_r165_stopped_processes(single, own):
    """SIGSTOP for a while: to a backend, to all of PostgreSQL, to the pooler. Nobody is told anything, nothing is lost."""
    p = single(server_connect_timeout=60)
    rnd = random.Random(165)
    with nothing_is_left(p, own):
        with Load(p, "db") as load:
            load.goes_on()
            for n in range(times(6)):
                if n % 3 == 0:
                    pids = [rnd.choice(wait_until(lambda: backends(own), "there are servers"))]
                elif n % 3 == 1:
                    pids = [int(i) for i in own_processes(own)]
                else:
                    pids = [p.proc.pid]
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                load.goes_on()
    load.settle(own)
    assert not load.refused()


@pytest.mark.skipif(SANITIZED, reason="a sanitizer opens files of its own")
def test_r165_descriptors_run_out_under_load(single, own):
    """The limit comes down to what is open. Who is in goes on; a server that dies meanwhile cannot be replaced, and is when
    there is room again."""
    p = single()
    with nothing_is_left(p, own):
        with Load(p, "db") as load:
            load.goes_on()
            for _ in range(times(1)):
                limit = resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE, (1, limit[1]))
                load.goes_on(50)
                assert not load.refused()
                for pid in backends(own):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                p.wait_log("cannot make a socket: Too many open files")
                resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE, limit)
                load.goes_on()
    load.settle(own)
    only_the_death_of_servers(load)
    assert "server login has been failing" not in p.log()


def faults(p, own, load, rnd):
    """What may happen. Each comes back when it is over."""
    def one():
        return rnd.choice(wait_until(lambda: backends(own), "there are servers"))

    def send(pid, sig):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)

    def terminate():
        send(one(), signal.SIGTERM)

    def kill():
        victim = one()
        send(victim, signal.SIGKILL)
        wait_until(lambda: victim not in backends(own) and own.ready(), "PostgreSQL is back")

    def stand_still():
        pid = one()
        send(pid, signal.SIGSTOP)
        time.sleep(rnd.random() * 0.3)
        send(pid, signal.SIGCONT)

    def restart():
        own.stop(rnd.choice([signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]))
        wait_until(lambda: not own_processes(own), "all of it has ended")
        time.sleep(rnd.random() * 0.2)
        own.start()

    def reload():
        p.settings |= {"default_pool_size": rnd.randrange(1, 8), "server_lifetime": rnd.choice([0, 1, 3600])}
        p.databases["db"] = p.databases["db"].split(" application_name")[0] + rnd.choice(["", f" application_name=x{rnd.random()}"])
        p.write_ini()
        for _ in range(5):
            p.admin("RELOAD")

    def pause():
        with p.console() as c:
            c.send(b"Q\0\0\0\x0dPAUSE db\0")
            time.sleep(rnd.random() * 0.1)
            with p.console() as other:  # before the answer or behind it
                other.query("RESUME db")
            c.until("Z")
        with p.console() as c:
            c.query("RESUME db")

    def throw_out():
        clients = [r["id"] for r in p.show("CLIENTS") if r["database"] == "db"]
        if clients:
            with p.console() as c:
                c.query(f"KILL_CLIENT {rnd.choice(clients)}")

    def squeeze():
        limit = resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE, (1, limit[1]))
        time.sleep(rnd.random() * 0.2)
        resource.prlimit(p.proc.pid, resource.RLIMIT_NOFILE, limit)

    return [terminate, terminate, kill, stand_still, restart, reload, reload, pause, throw_out, lambda: p.admin("RECONNECT db"),
            *([] if SANITIZED else [squeeze])]


@pytest.mark.workers(3)
@pytest.mark.parametrize("seed", [int(s) for s in os.environ.get("CHAOS_SEEDS", "1,2").split(",")])
def test_r165_everything_at_once(single, own, seed):
    """Ten faults in a row, as the seed will have it, while clients work."""
    p = single()
    rnd = random.Random(seed)
    happened = []
    with nothing_is_left(p, own):
        with Load(p, "db", patient=True) as load:
            load.goes_on()
            for _ in range(times(10)):
                fault = rnd.choice(faults(p, own, load, rnd))
                happened.append(fault.__name__)
                fault()
                load.goes_on(rnd.choice([1, 30]))
    print(happened)
    load.settle(own)
    for w in load.refused():
        assert w.error.startswith("closed") or w.error[:5] in SERVER_DIED, w
