"""Section 6 of the reliability catalogue: prepared statements where servers are shared. More in test_prepared.py."""
import pytest

import wire
from test_reliability_3 import codes, types
from test_reliability_4 import rows
from wire import FLUSH, SYNC, bind, close, describe, execute, parse, query

BE = bind("", "s") + execute() + SYNC


@pytest.mark.workers(1, 2)
def test_r78_same_name_different_sql(pooler):
    """100 clients call their statement S_1; one server; each gets the result of its own."""
    p = pooler(default_pool_size=1)
    clients = [p.login() for _ in range(100)]
    for i, c in enumerate(clients):
        c.send(parse("S_1", f"select 'client {i}', $1") + SYNC)
        assert types(c.until()) == "1Z"
    for n in range(3):
        for i, c in enumerate(clients):
            c.send(bind("", "S_1", [f"{i}/{n}"]) + execute() + SYNC)
        for i, c in enumerate(clients):
            out = c.until()
            assert types(out) == "2DCZ" and rows(out) == [[f"client {i}", f"{i}/{n}"]]
    for c in clients:
        c.close()


def test_r79_same_sql_other_types(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for _ in range(2):
            for w, oid, value, expected in ((a, 25, "007", "text 007"), (b, 23, "007", "integer 7")):
                w.send(close("S", "s") + parse("s", "select pg_typeof($1) || ' ' || $1", [oid]) + bind("", "s", [value]) +
                       execute() + SYNC)
                out = w.until()
                assert types(out) == "312DCZ" and rows(out) == [[expected]]


def test_r79_same_sql_other_search_path_and_role(pooler, pg):
    """The text is shared on the server; PostgreSQL plans it again when the path or the role is another one."""
    pg.sql("drop schema if exists ra cascade; drop schema if exists rb cascade; create schema ra; create schema rb")
    for s in "ab":
        pg.sql(f"create table r{s}.x (v text); insert into r{s}.x values ('of {s}')")
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for w in (a, b):
            w.send(parse("s", "select v, current_user from x") + SYNC)
            w.query("select 1") if False else None
        # Both fail outside of their schemas, and work inside.
        assert [codes(w.until()) for w in (a, b)] == [["42P01"], ["42P01"]]
        for _ in range(3):
            for w, s, role in ((a, "ra", "bob"), (b, "rb", "carol")):
                w.query(f"begin; set local search_path = {s}; set local role {role}")
                w.send(close("S", "s") + parse("s", "select v, current_user from x") + BE)
                out = w.until()
                assert types(out) == "312DCZ" and rows(out) == [[f"of {s[1]}", role]]
                w.query("commit")
    pg.sql("drop schema ra cascade; drop schema rb cascade")


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("why", ["syntax", "missing"])
def test_r80_rejected_parse_is_forgotten(pooler, pg, why):
    pg.sql("drop table if exists late")
    p = pooler(default_pool_size=2)
    bad, error = ("selec 1", "42601") if why == "syntax" else ("select v from late", "42P01")
    with p.login() as a, p.login() as b:
        for _ in range(2):
            for w in (a, b):
                w.send(parse("s", bad) + SYNC)
                out = w.until()
                assert types(out) == "EZ" and codes(out) == [error]
        if why == "missing":
            pg.sql("create table late (v text); insert into late values ('here now')")
        for w in (a, b):  # on both servers
            w.query("begin")
            w.send(parse("s", bad if why == "missing" else "select 'here now'") + BE)
            out = w.until()
            assert types(out) == "12DCZ" and rows(out) == [["here now"]]
        for w in (a, b):
            w.query("commit")
    pg.sql("drop table if exists late")


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("flush", [b"", FLUSH], ids=["unsent", "flushed"])
def test_r81_parse_that_never_came_to_its_sync(pooler, flush):
    p = pooler(default_pool_size=1)
    for i in range(5):
        a = p.login()
        a.send(parse("s", f"select 'shared {i}'") + flush)
        if flush:
            assert a.recv().type == "1"
        a.drop()
        with p.login() as b:
            b.send(parse("other", f"select 'shared {i}'") + bind("", "other") + execute() + SYNC)
            out = b.until()
            assert types(out) == "12DCZ" and rows(out) == [[f"shared {i}"]]


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("end", ["sync", "flush", "error"])
def test_r82_eviction_inside_a_batch(pooler, limit, end):
    p = pooler(default_pool_size=1, max_prepared_statements=limit)
    with p.login() as c:
        for n in range(10):
            names = [f"{x}{n}" for x in "abc"]
            a, b, d = names
            batch = parse(a, f"select '{a}'") + bind("kept", a) + parse(b, f"select '{b}'") + parse(d, f"select '{d}'") + \
                execute("kept") + bind("", b) + execute()
            if end == "flush":
                c.send(batch + FLUSH)
                out = [c.recv() for _ in range(9)]
                c.send(SYNC)
                assert types(c.until()) == "Z"
            elif end == "error":
                c.send(batch + parse("", "selec") + bind("", a) + execute() + SYNC)
                out = c.until()
                assert types(out)[-2:] == "EZ" and codes(out) == ["42601"]
                out = out[:-2]
            else:
                c.send(batch + SYNC)
                out = c.until()[:-1]
            assert types(out) == "1211DC2DC" and rows(out) == [[a], [b]], out
            for x in names:
                c.send(bind("", x) + execute() + SYNC)
                out = c.until()
                assert types(out) == "2DCZ" and rows(out) == [[x]]


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL"])
@pytest.mark.parametrize("how", ["simple", "extended"])
def test_r83_forgotten_when_the_server_forgot(pooler, sql, how):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.send(parse("s", "select 'first'") + SYNC)
        assert types(a.until()) == "1Z"
        # In a transaction that has failed nothing happens; DISCARD ALL fails in any transaction.
        a.query("begin")
        a.query("select 1/0")
        a.send(query(sql) if how == "simple" else parse("", sql) + bind("", "") + execute() + SYNC)
        assert codes(a.until()) == ["25P02"]
        a.query("rollback")
        a.send(BE)
        assert rows(a.until()) == [["first"]]
        a.send(query(sql) if how == "simple" else parse("", sql) + bind("", "") + execute() + SYNC)
        assert not codes(a.until())
        a.send(parse("s", "select 'second'") + BE)
        out = a.until()
        assert types(out) == "12DCZ" and rows(out) == [["second"]]
        b.send(parse("mine", "select 'first'") + bind("", "mine") + execute() + SYNC)
        out = b.until()
        assert types(out) == "12DCZ" and rows(out) == [["first"]]


@pytest.mark.parametrize("how", ["simple", "extended"])
@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "discard all;"])
@pytest.mark.parametrize("name", ["s", "t"])
def test_r83_same_text_behind_it_in_the_same_write(pooler, sql, how, name):
    """The server still knows the text when the Parse passes, and no longer when it is bound."""
    p = pooler(default_pool_size=1)
    reset = query(sql) if how == "simple" else parse("", sql) + bind("", "") + execute() + SYNC
    with p.login() as a, p.login() as b:
        a.send(parse("s", "select 'text'") + SYNC)
        assert types(a.until()) == "1Z"
        for _ in range(2):
            a.send(reset + parse(name, "select 'text'") + bind("", name) + execute() + SYNC)
            assert not codes(a.until())
            assert rows(a.until()) == [["text"]]
        # An error in between: the Parse is skipped, and the next one is not taken for said.
        a.send(reset + parse("", "select 1/0") + bind("", "") + execute() + parse(name, "select 'text'") + SYNC)
        assert not codes(a.until()) and codes(a.until()) == ["22012"]
        for c in (a, b):
            c.send(parse(name, "select 'text'") + bind("", name) + execute() + SYNC)
            out = c.until()
            assert types(out) == "12DCZ" and rows(out) == [["text"]]


@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_r83_parse_behind_it_in_the_same_write(pooler, sql):
    """The next client that uses the same text must not meet 42P05."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.send(query(sql) + parse("s", "select 'behind'") + bind("", "s") + execute() + SYNC)
        assert not codes(a.until())
        assert rows(a.until()) == [["behind"]]
        b.send(parse("mine", "select 'behind'") + bind("", "mine") + execute() + SYNC)
        out = b.until()
        assert types(out) == "12DCZ" and rows(out) == [["behind"]], out
        a.send(BE)
        assert rows(a.until()) == [["behind"]]
