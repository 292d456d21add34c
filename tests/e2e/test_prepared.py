"""Prepared statements where servers are shared: what goes beyond PgBouncer, and what its users met in production."""
import time

import pytest
from fakes import READY, Scripted, with_fake
from wire import FLUSH, SYNC, Wire, bind, close, describe, execute, msg, parse, query

BES = bind("", "") + execute() + SYNC
types = lambda out: "".join(m.type for m in out)  # noqa: E731


def rows(out):
    errors = [m.fields for m in out if m.type == "E"]
    assert not errors, errors
    return [m.row for m in out if m.type == "D"]


def code(out):
    return [m.code for m in out if m.type == "E"]


# --------------------------------------------------------------------------------------------- the unnamed statement

def test_r86_unnamed_parse_is_used_in_a_later_round_trip(pooler):
    """lib/pq's way: Parse and Describe, then Bind and Execute. Another client takes the server in between."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login(user="alice") as b:
        a.send(parse("", "select 'of a ' || $1"), describe("S", ""), SYNC)
        assert types(a.until()) == "1tTZ"
        b.send(parse("", "select 'of b ' || $1"), describe("S", ""), SYNC)
        b.until()
        a.send(bind("", "", ["x"]) + execute() + SYNC)
        out = a.until()
        assert types(out) == "2DCZ"
        assert rows(out) == [["of a x"]]
        b.send(describe("S", "") + bind("", "", ["y"]) + execute() + SYNC)
        out = b.until()
        assert types(out) == "tT2DCZ"
        assert rows(out) == [["of b y"]]


def test_r86_unnamed_of_a_neighbour_is_never_met(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.send(parse("", "select 'a secret'") + SYNC)
        a.until()
        b.send(BES)
        assert code(b.until()) == ["26000"]
        b.send(describe("S", "") + SYNC)
        assert code(b.until()) == ["26000"]
        assert b.value("select 1") == "1"
        a.send(BES)
        assert rows(a.until()) == [["a secret"]]


@pytest.mark.parametrize("kill", [query("select 1"), close("S", "") + SYNC, parse("", "select from nowhere") + SYNC],
                         ids=["query", "close", "failed-parse"])
def test_unnamed_goes_when_postgresql_drops_it(pooler, pg, kill):
    """The same answers as PostgreSQL's own: a simple query, Close and a Parse that fails drop the unnamed statement."""
    p = pooler(default_pool_size=1)
    answers = []
    for port in (pg.port, p.port):
        w = Wire(port).login()
        w.send(parse("", "select 'kept'") + SYNC)
        w.until()
        w.send(BES)
        assert rows(w.until()) == [["kept"]]
        w.send(kill)
        w.until()
        w.send(BES)
        answers.append(code(w.until()))
        w.close()
    assert answers == [["26000"], ["26000"]]


def test_unnamed_too_big_to_keep_fails_cleanly(pooler):
    p = pooler(default_pool_size=1)
    big = "select '" + "x" * 100_000 + "'"
    with p.login() as a, p.login() as b:
        a.send(parse("", big) + BES)  # in one go: nothing to remember
        assert len(rows(a.until())[0][0]) == 100_000
        a.send(parse("", big) + SYNC)
        a.until()
        b.send(parse("", "select 'b'") + SYNC)
        b.until()
        a.send(BES)
        assert code(a.until()) == ["26000"]


@pytest.mark.parametrize("limit", [0, 100])
def test_unnamed_with_named_statements_off_too(pooler, limit):
    p = pooler(default_pool_size=1, max_prepared_statements=limit)
    with p.login() as a, p.login() as b:
        for w, text in ((a, "a"), (b, "b")):
            w.send(parse("", f"select '{text}'") + SYNC)
            w.until()
        for w, text in ((a, "a"), (b, "b"), (a, "a")):
            w.send(BES)
            assert rows(w.until()) == [[text]]


# ------------------------------------------------------------------------------------------------------ plans go stale

@pytest.fixture
def shape(pg):
    """A table whose columns change under prepared statements."""
    pg.sql("drop table if exists shape")
    pg.sql("create table shape (a int)")
    pg.sql("insert into shape values (7)")
    yield "select * from shape"
    pg.sql("drop table shape")


BDES = bind("", "s") + describe("P", "") + execute() + SYNC


def test_r87_stale_plan_is_prepared_again_and_the_batch_retried(pooler, pg, shape):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", shape) + SYNC)
        a.until()
        a.send(BDES)
        assert rows(a.until()) == [["7"]]
        pg.sql("alter table shape add column b text default 'new'")
        a.send(BDES)
        out = a.until()
        assert types(out) == "2TDCZ"
        assert rows(out) == [["7", "new"]]
        assert a.value("select 1") == "1"


def test_r87_without_describe_the_client_is_told_once_then_all_is_well(pooler, pg, shape):
    """Rows of a new shape must not reach a client that did not ask for it; no other client or server has to fail."""
    p = pooler(default_pool_size=2)
    bes = bind("", "s") + execute() + SYNC
    with p.login() as a, p.login() as b:
        for w in (a, b):  # both servers get it
            w.send(query("begin"), parse("s", shape) + bes)
            w.until(), w.until()
        for w in (a, b):
            w.query("commit")
        pg.sql("alter table shape add column b text default 'new'")
        a.send(bes)
        out = a.until()
        assert code(out) == ["0A000"], out
        for _ in range(4):
            for w in (a, b):
                w.send(bes)
                assert rows(w.until()) == [["7", "new"]]
        # The client's own remedy, a new Parse of the same text, meets no stale plan either.
        a.send(close("S", "s") + parse("s", shape) + bes)
        assert rows(a.until()) == [["7", "new"]]


def test_r87_in_a_transaction_nothing_is_said_twice(pooler, pg, shape):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", shape) + BDES)
        a.until()
        pg.sql("alter table shape add column b text default 'new'")
        a.query("begin")
        a.send(BDES)
        out = a.until()
        assert code(out) == ["0A000"] and out[-1].body == b"E"
        a.query("rollback")
        a.send(BDES)
        assert rows(a.until()) == [["7", "new"]]


def test_r87_not_when_something_was_answered_or_follows(pooler, pg, shape):
    """A batch whose first half was answered, or with another behind it, gets PostgreSQL's error in its place."""
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("one", "select 1") + parse("s", shape) + SYNC)
        a.until()
        a.send(BDES)
        a.until()
        pg.sql("alter table shape add column b text default 'new'")
        a.send(bind("", "one") + execute() + BDES)
        out = a.until()
        assert types(out) == "2DCEZ" and code(out) == ["0A000"]
        pg.sql("alter table shape add column c text default 'newer'")
        a.send(BDES + query("select 'behind'"))
        out = a.until()
        assert (types(out), code(out)) in (("EZ", ["0A000"]), ("2TDCZ", []))
        assert rows(a.until()) == [["behind"]]


def test_r87_cut_anywhere(pooler, pg, shape):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", shape) + SYNC)
        a.until()
        for i in range(1, len(BDES)):
            pg.sql(f"alter table shape add column c{i} int default {i}")
            a.send(BDES[:i])
            time.sleep(0.01)  # PostgreSQL may find the error before it has seen the rest
            a.send(BDES[i:])
            out = a.until()
            assert types(out) == "2TDCZ"
            assert rows(out)[0][-1] == str(i)


def test_r87_flush_gets_its_error_before_sync(pooler, pg, shape):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", shape) + SYNC)
        a.until()
        a.send(BDES)
        a.until()
        pg.sql("alter table shape add column b int")
        a.send(bind("", "s") + describe("P", "") + execute() + FLUSH)
        assert a.recv().code == "0A000"
        a.send(SYNC)
        assert types(a.until()) == "Z"


def test_psycopg_does_not_notice_a_changed_table(pooler, pg, shape):
    p = pooler()
    with p.connect() as c:
        for _ in range(3):
            assert c.execute(shape, prepare=True).fetchall() == [(7,)]
        pg.sql("alter table shape alter column a type text")
        assert c.execute(shape, prepare=True).fetchall() == [("7",)]


# ----------------------------------------------------------------------------------------------- PREPARE and DEALLOCATE

@pytest.mark.parametrize("sql", ['DEALLOCATE s', 'deallocate prepare "s";', '  DEALLOCATE\n S ;'])
def test_deallocate_by_sql_of_a_statement_prepared_by_the_protocol(pooler, sql):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for w in (a, b):
            w.send(parse("s", "select 'mine'") + SYNC)
            w.until()
        out = a.query(sql)
        assert [m.tag for m in out if m.type == "C"] == ["DEALLOCATE"]
        b.send(bind("", "s") + execute() + SYNC)  # the neighbour's statement of that name and text lives on
        assert rows(b.until()) == [["mine"]]
        a.send(parse("s", "select 'another'") + bind("", "s") + execute() + SYNC)  # the name is free again
        assert rows(a.until()) == [["another"]]


def test_deallocate_that_fails_changes_nothing(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", "select 'mine'") + SYNC)
        a.until()
        a.query("begin")
        a.query("select 1/0")
        assert code(a.query("DEALLOCATE s")) == ["25P02"]
        a.query("rollback")
        a.send(bind("", "s") + execute() + SYNC)
        assert rows(a.until()) == [["mine"]]
        assert code(a.query("DEALLOCATE unknown")) == ["26000"]


def test_deallocate_of_a_name_the_server_has_not(pooler):
    """Prepared on a server that is gone: still answered as PostgreSQL would have."""
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", "select 'mine'") + SYNC)
        a.until()
        p.admin("RECONNECT")
        out = a.query("deallocate s")
        assert [m.tag for m in out if m.type == "C"] == ["DEALLOCATE"]


def test_prepare_by_sql_is_passed_through(pooler):
    """As in PgBouncer: it belongs to the server connection, so it is good for one transaction (docs/compat.md)."""
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.query("begin")
        assert [m.tag for m in a.query("prepare s as select 5") if m.type == "C"] == ["PREPARE"]
        assert rows(a.query("execute s")) == [["5"]]
        assert [m.tag for m in a.query("deallocate s") if m.type == "C"] == ["DEALLOCATE"]
        a.query("commit")
        assert code(a.query("execute s")) == ["26000"]


# ------------------------------------------------------------------------------------------------------------- bounds

def test_r89_names_of_a_client_are_bounded(pooler):
    p = pooler(max_client_prepared_statements=10)
    with p.login() as a:
        for i in range(30):
            a.send(parse(f"s{i}", f"select {i}") + SYNC)
            a.until()
            a.send(bind("", "s0") + execute() + SYNC)  # always used, never the oldest
            assert rows(a.until()) == [["0"]]
        mine = next(r for r in p.show("CLIENTS") if r["user"] == "alice")
        assert int(mine["prepared_statements"]) == 10
        a.send(bind("", "s29") + execute() + SYNC)
        assert rows(a.until()) == [["29"]]
        a.send(bind("", "s1") + execute() + SYNC)
        assert a.fatal().text == "prepared statement did not exist"


def test_r89_texts_are_bounded_in_bytes(pooler):
    p = pooler(max_prepared_statement_memory=1_000_000)
    text = lambda i: f"select {i} /* {'x' * 100_000} */"  # noqa: E731
    with p.login() as a:
        for i in range(50):
            a.send(parse(f"s{i}", text(i)) + bind("", f"s{i}") + execute() + SYNC)
            assert rows(a.until()) == [[str(i)]]
        mine = next(r for r in p.show("CLIENTS") if r["user"] == "alice")
        assert 1 <= int(mine["prepared_statements"]) <= 10
    with p.login() as a:
        a.send(parse("small", "select 'fits'") + bind("", "small") + execute() + SYNC)
        assert rows(a.until()) == [["fits"]]
        a.send(parse("big", f"select 1 /* {'x' * 1_100_000} */") + SYNC)
        error = a.fatal()
        assert error.code == "53200" and "max_prepared_statement_memory" in error.text
    with p.login() as a:
        assert a.value("select 1") == "1"


def test_r90_the_limit_changes_at_run_time(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a:
        a.send(parse("s", "select 'mine'") + SYNC)
        a.until()
        for limit in (0, 200):
            p.admin(f"SET max_prepared_statements = {limit}")
            a.send(bind("", "s") + execute() + SYNC)
            out = a.until()
            assert code(out) == ["26000"] if limit == 0 else rows(out) == [["mine"]], out


def test_a_name_is_said_again_between_its_error_and_its_ready(make_pooler):
    """PostgreSQL flushes an error before its ReadyForQuery: who reads fast says the Parse again in between."""
    failed = msg("E", b"SERROR\0VERROR\0C42601\0Msyntax error\0\0")
    said = []

    def talk(link):
        said.extend(link.recv() for _ in "PS")
        link.send(failed)
        said.extend(link.recv() for _ in "PS")  # only then is the server ready for it
        link.send(READY, msg("1"), READY)
        said.append(link.recv())
    fake = Scripted(talk)
    p = with_fake(make_pooler(default_pool_size=1), fake)
    with p.login(database="fake") as a:
        a.send(parse("name", "selec") + SYNC)
        a.until("E")
        a.send(parse("name", "select 2") + SYNC)
        assert types(a.until("Z")) == "Z"
        assert types(a.until("Z")) == "1Z"
    assert [kind for kind, _ in said[:4]] == list("PSPS")
    fake.close()
