"""Section 4 of the reliability catalogue: pipelining, and getting back in step after errors."""
import random
import select
import threading

import pytest

import wire
from conftest import wait_until
from test_reliability_3 import codes, types
from wire import FLUSH, SYNC, Wire, bind, close, describe, execute, parse, query


def rows(out):
    return [m.row for m in out if m.type == "D"]


def pbes(sql, args=()):
    return parse("", sql) + bind("", "", args) + execute() + SYNC


# ---------------------------------------------------------------------------------------------------- 51: many Syncs

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("bad", [0, 7, 14])
def test_r51_many_syncs_in_one_write(pooler, bad):
    """15 batches in one write, one of them fails in its middle: 15 ends, all on one server, and nobody gets in between.
    The neighbour asks at the same time and has to wait for the last of them."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        pid = b.value("select pg_backend_pid()")
        a.query("drop sequence if exists turns; create sequence turns")
        batches = []
        for i in range(15):
            if i == bad:
                batches.append(parse("", f"select {i}") + bind("", "") + execute() + parse("", "select 1 / $1::int") +
                               bind("", "", [0]) + execute() + parse("", "select 'skipped'") + bind("", "") + execute() + SYNC)
            else:
                batches.append(pbes(f"select {i}, pg_backend_pid(), nextval('turns'), $1 from pg_sleep(0.01)", [f"a{i}"]))
        a.send(*batches)
        for i in range(15):
            out = a.until()
            if i == 0:  # a has the server, and 14 batches to go
                b.send(query("select nextval('turns'), pg_backend_pid()"))
            if i == bad:
                assert types(out) in ("12DC1EZ", "12DC12EZ") and rows(out) == [[str(i)]] and codes(out) == ["22012"]
            else:
                assert types(out) == "12DCZ"
                assert rows(out) == [[str(i), pid, str(i + 1 - (i > bad)), f"a{i}"]]
        assert rows(b.until()) == [["15", pid]]
        assert a.value("select 'in step'") == "in step"


# ------------------------------------------------------------------------ 52: the next batch while an error is under way

@pytest.mark.workers(1, 2)
def test_r52_next_batch_with_a_neighbour_in_wait(pooler):
    """As in test_basic, and somebody is waiting: the second batch never lands on a server that was given away."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        for i in range(30):
            a.send(parse("", "select 1/0"), bind("", ""), execute(), SYNC)
            b.send(query(f"select 'b{i}'"))
            a.send(parse("", f"select 'a{i}'"), describe("S", ""), FLUSH)
            assert types(a.until()) in ("12EZ", "1EZ", "EZ")
            assert [a.recv().type for _ in range(3)] == ["1", "t", "T"]
            if i % 2:
                a.send(bind("", ""), execute(), SYNC)
                out = a.until()
                assert types(out) == "2DCZ" and rows(out) == [[f"a{i}"]]
            else:  # fails again, with the next one behind it
                a.send(bind("", "", ["one too many"]), execute(), SYNC, query(f"select 'again{i}'"))
                assert types(a.until()) == "EZ"
                assert rows(a.until()) == [[f"again{i}"]]
            assert rows(b.until()) == [[f"b{i}"]]


# -------------------------------------------------------------------------------------------- 53: driven by Flush

@pytest.mark.workers(1, 2)
def test_r53_flush_driven_batch_keeps_its_server(pooler, pg):
    """P D H, wait, B E H, wait, S: one server, one transaction; the neighbour waits and sees nothing before the end."""
    p = pooler(default_pool_size=1)
    pg.sql("truncate t")
    with p.login() as a, p.login() as b:
        a.send(parse("", "insert into t (v) values ($1) returning txid_current(), pg_backend_pid()"), describe("S", ""), FLUSH)
        assert [a.recv().type for _ in range(3)] == ["1", "t", "T"]
        b.send(query("select count(*) from t"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "b waits")
        seen = []
        for i in range(3):
            a.send(bind("", "", [f"row {i}"]), execute(), FLUSH)
            out = [a.recv() for _ in range(3)]
            assert types(out) == "2DC"
            seen.append(out[1].row)
            assert pg.sql("select count(*) from t") == [(0,)]
            assert p.pool()["cl_waiting"] == 1
        assert len({tuple(s) for s in seen}) == 1, "one transaction, one server"
        a.send(SYNC)
        assert a.recv() == wire.Msg("Z", b"I")
        assert rows(b.until()) == [["3"]]


# ----------------------------------------------------------------------------- 54: made-up completions, where they belong

class Model:
    """Random batches over a few names and texts, said to PostgreSQL and to the pooler: the same answers in the same order.
    Who skips what is PostgreSQL's business; the batch's names are chosen so that neither has to refuse one."""

    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.names = {}

    def batch(self):
        rnd, out, failed = self.rnd, [], False
        names = dict(self.names)
        touched = set()  # by messages that are skipped: the pooler judges names when it reads them (docs/compat.md)
        for _ in range(rnd.randint(1, 9)):
            kind = rnd.choice("PPPBBBCDHEQ" if not failed else "PBCDH")
            name = rnd.choice("abcdef")
            if name in touched:
                continue
            if failed and kind in "PC":
                touched.add(name)
            if kind == "P" and name not in names:
                text = rnd.choice(["select 'one', $1", "select 'two', $1", f"select 'own{rnd.random()}', $1",
                                   "select repeat('x', 40000), $1", "select 'three', $1 from generate_series(1, 50)"])
                out.append(parse(name, text))
                if not failed:
                    names[name] = text
            elif kind in "BE" and name in names:
                value = str(rnd.random())
                out.append(bind("", name, [value]) + (describe("P", "") if rnd.random() < 0.3 else b"") + execute())
            elif kind == "D" and name in names:
                out.append(describe("S", name))
            elif kind == "C":
                out.append(close("S", name))
                if not failed:
                    names.pop(name, None)
            elif kind == "H":
                out.append(FLUSH)
            elif kind == "Q" and not failed and rnd.random() < 0.4:
                out.append(parse("", "select 1 / $1::int") + bind("", "", [0]) + execute())
                failed = True
        self.names = names
        return b"".join(out) + SYNC


@pytest.mark.workers(1)
@pytest.mark.parametrize("limit", [1, 2, 3, 200])
def test_r54_completions_stand_where_postgresql_puts_them(pooler, pg, limit):
    p = pooler(default_pool_size=1, max_prepared_statements=limit)
    for seed in range(12):
        model = Model(seed * 1000 + limit)
        with Wire(pg.port).login() as direct, p.login() as c, p.login() as other:
            for n in range(25):
                data = model.batch()
                direct.send(data)
                expected = direct.until()
                cut = model.rnd.randrange(len(data)) if n % 3 else 0
                c.send(data[:cut])
                c.send(data[cut:])
                got = c.until()
                assert types(got) == types(expected), (seed, n, data)
                assert rows(got) == rows(expected) and codes(got) == codes(expected), (seed, n, data)
                if n % 4 == 0:  # a neighbour that evicts and shares
                    other.send(parse("a", "select 'one', $1") + bind("", "a", [str(n)]) + execute() + close("S", "a") + SYNC)
                    out = other.until()
                    assert types(out) == "12DC3Z" and rows(out) == [["one", str(n)]]


@pytest.mark.workers(1)
@pytest.mark.parametrize("limit", [1, 2, 200])
def test_r54_what_was_skipped_is_undone_backwards(pooler, limit):
    """Behind an error: a statement is evicted and prepared again, a name closed and given to another text. Nothing of it
    happened, for PostgreSQL; so nothing of it happened."""
    p = pooler(default_pool_size=1, max_prepared_statements=limit)
    with p.login() as a, p.login() as b:
        a.send(parse("one", "select 'one'") + SYNC)
        assert types(a.until()) == "1Z"
        a.send(parse("", "selec") + parse("two", "select 'two'") + bind("", "one") + execute() + parse("three", "select 'three'") +
               bind("", "two") + execute() + close("S", "one") + parse("one", "select 'another'") + SYNC)
        assert types(a.until()) == "EZ"
        b.send(parse("mine", "select 'one'") + parse("other", "select 'two'") + bind("", "mine") + execute() + SYNC)
        out = b.until()
        assert types(out) == "112DCZ" and rows(out) == [["one"]]
        a.send(bind("", "one") + execute() + SYNC)
        out = a.until()
        assert types(out) == "2DCZ" and rows(out) == [["one"]]


# --------------------------------------------------------------------- 55: an error of the pooler's own messages

@pytest.fixture
def moving(pg):
    """A table that comes and goes under prepared statements."""
    pg.sql("drop table if exists moving; create table moving (v text); insert into moving values ('there')")
    yield
    pg.sql("drop table if exists moving")


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("use", ["bind", "describe", "pipeline"])
def test_r55_hidden_parse_fails(pooler, pg, moving, use):
    """The server is another one, and the statement cannot be prepared any more: one error, for what the client said."""
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.send(parse("s", "select v from moving") + bind("", "s") + execute() + SYNC)
        assert rows(a.until()) == [["there"]]
        pg.sql("drop table moving")
        p.admin("RECONNECT")
        for _ in range(2):
            if use == "describe":
                a.send(describe("S", "s") + SYNC)
                out = a.until()
            elif use == "bind":
                a.send(bind("", "s") + execute() + SYNC)
                out = a.until()
            else:
                a.send(bind("", "s") + execute() + SYNC + query("select 'behind'"))
                out = a.until()
                behind = a.until()
                assert types(behind) == "TDCZ" and rows(behind) == [["behind"]]
            assert types(out) == "EZ" and codes(out) == ["42P01"] and out[-1].body == b"I", out
            assert b.value("select 'neighbour'") == "neighbour"
        pg.sql("create table moving (v text); insert into moving values ('again')")
        a.send(bind("", "s") + execute() + SYNC)
        out = a.until()
        assert types(out) == "2DCZ" and rows(out) == [["again"]]


def test_r55_hidden_messages_in_a_failed_transaction(pooler):
    """The hidden Parse fails with 25P02 like the client's own message; hidden Closes of an eviction never ran."""
    p = pooler(default_pool_size=1, max_prepared_statements=2)
    with p.login() as a:
        for n in range(6):
            a.send(parse(f"s{n}", f"select 'value {n}'") + SYNC)
            assert types(a.until()) == "1Z"
        a.query("begin")
        assert codes(a.query("select 1/0")) == ["22012"]
        for n in range(6):
            a.send(bind("", f"s{n}") + execute() + SYNC)
            out = a.until()
            assert types(out) == "EZ" and codes(out) == ["25P02"] and out[-1].body == b"E", (n, out)
        assert a.query("rollback")[-1].body == b"I"
        for n in (5, 0, 4, 1, 3, 2):
            a.send(bind("", f"s{n}") + execute() + SYNC)
            out = a.until()
            assert types(out) == "2DCZ" and rows(out) == [[f"value {n}"]]
        assert a.value("select count(*) from pg_prepared_statements") in ("1", "2", "3")


def test_r55_hidden_set_fails(pooler):
    """The pooler's SET for this client fails: one FATAL for it; the query never ran; the next client has a clean server."""
    p = pooler(default_pool_size=1)
    with p.login() as b:
        with p.login(TimeZone="Mars/Olympus") as a:
            a.send(query("drop table if exists never; create table never ()"))
            assert a.fatal().text == "invalid server parameter"
        assert b.value("select to_regclass('never')") is None
        assert b.value("show timezone") == "UTC"


# -------------------------------------------------------------------------------------------- 58: full duplex

@pytest.mark.workers(1, 2)
def test_r58_writes_while_it_reads_late(pooler, pg):
    """5,000 queries (the catalogue's 100,000, scaled) with answers of 1 kB: the client writes whenever it can, and reads
    only when it cannot. No deadlock, every answer in its place, memory bounded; a neighbour is served meanwhile."""
    # Over Unix sockets: here it is about the pooler's buffers, not about the kernel's windows.
    p = pooler(default_pool_size=2, databases={"p0": f"host={pg.dir} port={pg.port} dbname=p0"})
    total = 5_000
    with p.login("bob") as bob, p.wire(unix=p.unix).login() as c:
        assert bob.value("select 1") == "1"
        before = p.rss()
        out = b"".join(query(f"select {i}, repeat('x', 1000)") for i in range(total))
        done, got = threading.Event(), []

        def neighbour():
            while not done.is_set():
                got.append(bob.value("select 'served'"))
        t = threading.Thread(target=neighbour, daemon=True)
        t.start()
        c.sock.setblocking(False)
        sent, seen, most = 0, 0, 0
        while seen < total:
            want = [c.sock] if sent < len(out) else []
            readable, writable, _ = select.select([] if want else [c.sock], want, [], 0.2)
            if writable:
                sent += c.sock.send(out[sent:sent + 1_000_000])
                continue
            if not readable:  # cannot write any more: read a little
                most = max(most, p.rss() - before)
                readable, _, _ = select.select([c.sock], [], [], 30)
                assert readable, f"a deadlock: {sent} of {len(out)} bytes sent, {seen} answers"
            c.buf += c.sock.recv(1_000_000)
            at = 0
            while len(c.buf) - at >= 5:
                size = 1 + int.from_bytes(c.buf[at + 1:at + 5], "big")
                if len(c.buf) - at < size:
                    break
                if c.buf[at] == ord("D"):
                    assert wire.Msg("D", bytes(c.buf[at + 5:at + size])).row == [str(seen), "x" * 1000]
                elif c.buf[at] == ord("Z"):
                    seen += 1
                at += size
            del c.buf[:at]
        done.set()
        t.join(30)
        assert most < 16_000_000 and got and set(got) == {"served"}
        c.sock.settimeout(30)
        assert c.value("select 'in step'") == "in step"


@pytest.mark.parametrize("how", ["batches", "queries"])
def test_r58_prepared_statements_are_held_back_too(pooler, pg, how):
    """A client that has prepared statements writes and reads nothing. As soon as the server stands still, the pooler
    takes no more than a buffer of it, wherever the pieces that it reads end; then all of it is answered."""
    p = pooler(databases={"p0": f"host={pg.dir} port={pg.port} dbname=p0"})
    total = 20_000
    with p.wire(unix=p.unix).login() as c:
        c.send(parse("s", "select length($1), repeat('x', 200)"), SYNC)
        c.until()
        # Sizes for which no piece of 4 kB or 32 kB ends where a message does.
        one = bind("", "s", ["x" * 967]) + execute() + SYNC
        if how == "queries":
            one = query("select repeat('x', 200)".ljust(994))
        assert len(one) == 1000
        out = query("select 1234") + one * (total - 1)
        c.sock.setblocking(False)
        sent = 0
        while sent < len(out) and select.select([], [c.sock], [], 2)[1]:
            sent += c.sock.send(out[sent:sent + 100_000])
        assert sent < 4_000_000, "it is held back"
        seen = 0
        while seen < total:
            readable, writable, _ = select.select([c.sock], [c.sock] if sent < len(out) else [], [], 30)
            assert readable or writable, f"a deadlock: {sent} of {len(out)} bytes sent, {seen} answers"
            if writable:
                sent += c.sock.send(out[sent:sent + 100_000])
            if readable:
                c.buf += c.sock.recv(1_000_000)
                at = 0
                while len(c.buf) - at >= 5:
                    size = 1 + int.from_bytes(c.buf[at + 1:at + 5], "big")
                    if len(c.buf) - at < size:
                        break
                    seen += c.buf[at] == ord("Z")
                    at += size
                del c.buf[:at]
        c.sock.settimeout(30)
        assert c.value("select 'in step'") == "in step"


# ------------------------------------------------------------------------------------------- 59: the server says goodbye

@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("how", ["queries", "batches"])
def test_r59_one_error_when_the_server_says_goodbye(pooler, how):
    """In the middle of a pipeline: the answers before it, the server's own FATAL once, the end. The next one is served."""
    p = pooler(default_pool_size=1)
    for _ in range(3):
        with p.login() as c:
            sql = ["select 1", "select 2", "select pg_terminate_backend(pg_backend_pid())", *["select 3"] * 20]
            c.send(b"".join(query(s) if how == "queries" else pbes(s) for s in sql))
            out = c.until_closed()
            assert rows(out)[:2] == [["1"], ["2"]] and "3" not in str(rows(out)[2:])
            (error,) = [m for m in out if m.type == "E"]
            assert (error.code, error.fields["S"]) == ("57P01", "FATAL") and out[-1] == error
        with p.login() as c:
            assert c.value("select 'next'") == "next"


# ---------------------------------------------------------------------------------------- 62: no server for the batch

@pytest.mark.workers(1, 2)
def test_r62_no_server_within_the_time_for_a_batch(pooler):
    """One FATAL for all of it, no ReadyForQuery in the middle; the holder of the server notices nothing."""
    p = pooler(default_pool_size=1)
    with p.login() as holder, p.login() as b, p.login() as d:
        p.admin("SET query_wait_timeout = 1")
        holder.query("begin")
        b.send(parse("s", "select 1") + bind("", "s") + describe("P", "") + execute() + SYNC, pbes("select 2"), query("select 3"))
        d.send(parse("", "select 4") + bind("", "") + FLUSH)
        for c in (b, d):
            out = c.until_closed()
            assert types(out).lstrip("N") == "E" and out[-1].text == "query_wait_timeout" and out[-1].fields["S"] == "FATAL"
        assert holder.value("select 5") == "5" and holder.query("commit")[-1].body == b"I"
    with p.login() as c:
        assert c.value("select 6") == "6"
