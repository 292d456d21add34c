"""Section 7 of the reliability catalogue: COPY. Replication (98) is tested elsewhere; cuts at every byte in tests/conv."""
import pytest

import wire
from conftest import wait_until
from test_reliability_3 import codes, types
from test_reliability_4 import rows
from test_reliability_5 import idle_again
from wire import SYNC, bind, execute, msg, parse, query


@pytest.fixture
def numbers(pg):
    pg.sql("drop table if exists numbers; create table numbers (v int)")
    yield
    pg.sql("set lock_timeout = '10s'; drop table numbers")


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("begun", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("end", ["c", "f"], ids=["done", "fail"])
def test_r92_late_copy_messages(pooler, numbers, begun, end):
    """The COPY has failed and its ReadyForQuery is read; the rest of the data comes after it, and is swallowed."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for i in range(5):
            if begun:
                a.query("begin")
            a.send(query("copy numbers from stdin"))
            assert types(a.until("G")) == "G"
            a.send(msg("d", b"no number\n") * 3)
            out = a.until()
            assert types(out) == "EZ" and codes(out) == ["22P02"] and out[-1].body == (b"E" if begun else b"I")
            if not begun:
                assert b.value(f"select 'b{i}'") == f"b{i}"
            a.send(msg("d", b"4711\n") * 1000, msg(end, b"enough\0" if end == "f" else b""))
            if begun:
                assert a.query("rollback")[-1].body == b"I"
            assert a.value(f"select 'a{i}'") == f"a{i}"
            assert b.value("select count(*) from numbers") == "0"
    idle_again(p)


@pytest.mark.workers(1, 2)
def test_r93_copy_without_begin(pooler, numbers):
    """Others want the server all the time: it is not given away while the rows come, and all of them land."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b, p.login() as c:
        for good in (True, False):
            a.send(query("copy numbers from stdin"))
            assert types(a.until("G")) == "G"
            for w in (b, c):
                w.send(query("select count(*) from numbers"))
            wait_until(lambda: p.pool()["cl_waiting"] == 2, "both wait")
            for i in range(20):
                a.send(msg("d", f"{i}\n".encode() * 100))
                assert p.pool()["cl_waiting"] == 2
            a.send(msg("d", b"1\n" if good else b"bad\n"), msg("c"))
            out = a.until()
            assert types(out) == ("CZ" if good else "EZ") and codes(out) == ([] if good else ["22P02"])
            for w in (b, c):
                assert rows(w.until()) == [["2001"]]
    idle_again(p)


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["simple", "extended"])
def test_r94_client_dies_in_copy_in(pooler, pg, numbers, how):
    p = pooler(default_pool_size=1)
    c = p.login()
    pid = c.value("select pg_backend_pid()")
    sql = "copy numbers from stdin"
    c.send(query(sql) if how == "simple" else parse("", sql) + bind("", "") + execute() + SYNC)
    c.until("G")
    c.send(msg("d", b"1\n" * 1000) * 10)
    wait_until(lambda: pg.sql("select wait_event from pg_stat_activity where pid = %s", int(pid)) == [("ClientRead",)], "it waits")
    c.drop()
    wait_until(lambda: not pg.backends(f"pid = {pid}"), "the server is gone")
    with p.login() as b:
        assert b.value("select count(*) from numbers") == "0"
        # CopyFail is for a client that lives: its error, and a session in step.
        b.send(query(sql), msg("d", b"1\n"), msg("f", b"changed my mind\0"))
        out = b.until()
        assert types(out) == "GEZ" and codes(out) == ["57014"]
        assert b.value("select count(*) from numbers") == "0"
    idle_again(p)
