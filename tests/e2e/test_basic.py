"""The main job: real programs and drivers, every pool mode, big messages, COPY, pipelining, errors."""
import asyncio
import hashlib
import re

import psycopg
import pytest

import wire
from conftest import OURS

MODES = ["session", "transaction", "statement"]


@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("pool_mode", MODES)
def test_psql(pooler, pool_mode):
    p = pooler(pool_mode=pool_mode)
    assert p.psql("select 6 * 7").stdout == "42\n"
    assert p.psql("select generate_series(1, 3)").stdout == "1\n2\n3\n"


def test_unix_socket(pooler):
    p = pooler()
    assert p.psql("select 1", extra_env={"PGHOST": str(p.dir)}).stdout == "1\n"
    with wire.Wire(0, unix=p.unix) as c:
        assert c.login().value("select current_user") == "alice"


@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("pool_mode", MODES)
def test_psycopg(pooler, pool_mode):
    p = pooler(pool_mode=pool_mode)
    with p.connect() as c:
        assert c.execute("select %s::int + 1", (41,)).fetchone() == (42,)
        assert c.execute("select %b::int + 1", (41,), binary=True).fetchone() == (42,)
        assert c.execute("select %s::text", ("ü\\'\"",)).fetchone() == ("ü\\'\"",)
        if pool_mode != "statement":
            with c.transaction():
                pid = c.execute("select pg_backend_pid()").fetchone()
                c.execute("create temp table x (a int) on commit drop")
                c.execute("insert into x select generate_series(1, 100)")
                assert c.execute("select count(*) from x").fetchone() == (100,)
                assert c.execute("select pg_backend_pid()").fetchone() == pid


def test_psycopg_prepared_in_session_mode(pooler):
    p = pooler(pool_mode="session")
    with p.connect(prepare_threshold=0) as c:
        for i in range(20):
            assert c.execute("select %s::int * 2", (i,)).fetchone() == (i * 2,)


def test_server_cursor(pooler):
    with pooler().connect(autocommit=False) as c:
        with c.cursor(name="big") as cur:
            cur.itersize = 500
            cur.execute("select generate_series(1, 5000)")
            assert sum(r[0] for r in cur) == 5000 * 5001 // 2


@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
def test_asyncpg(pooler, pool_mode):
    p = pooler(pool_mode=pool_mode)

    async def one(i):
        c = await p.asyncpg(server_settings={"application_name": f"async{i}"})
        try:
            for n in range(5):
                async with c.transaction():
                    assert await c.fetchval("select $1::int + $2::int", i, n) == i + n
                    assert await c.fetchval("select current_setting('application_name')") == f"async{i}"
            assert await c.execute("select 1") == "SELECT 1"
        finally:
            await c.close()

    async def main():
        await asyncio.gather(*(one(i) for i in range(10)))
    asyncio.run(main())


@pytest.fixture
def bench(pg):
    """pgbench tables in p1, once."""
    if not pg.sql("select to_regclass('pgbench_accounts')", dbname="p1")[0][0]:
        import subprocess
        subprocess.run(["pgbench", "-i", "-q", "-s", "2", "-h", pg.dir, "-p", str(pg.port), "-U", "postgres", "p1"],
                       check=True, capture_output=True)


def pgbench(p, *args, clients=8, count=50):
    done = p.run("pgbench", "-n", "-c", clients, "-j", 2, "-t", count, *args, "p1")
    m = re.search(r"processed: (\d+)/(\d+)", done.stdout)
    assert m and m.group(1) == m.group(2) == str(clients * count), done.stdout + done.stderr
    failed = re.search(r"failed transactions: (\d+)", done.stdout)
    assert not failed or failed.group(1) == "0", done.stdout


@pytest.mark.workers(1, 3)
@pytest.mark.parametrize("protocol", ["simple", "extended"])
@pytest.mark.parametrize("script", [["-S"], []], ids=["select", "tpcb"])
def test_pgbench(pooler, bench, protocol, script):
    p = pooler(default_pool_size=4)
    pgbench(p, "-M", protocol, *script)


@pytest.mark.parametrize("script", [["-S"], []], ids=["select", "tpcb"])
def test_pgbench_prepared_session(pooler, bench, script):
    pgbench(pooler(pool_mode="session"), "-M", "prepared", *script)


@pytest.mark.parametrize("script", [["-S"], []], ids=["select", "tpcb"])
def test_pgbench_prepared_transaction(pooler, bench, script):
    """Protocol-level prepared statements over shared servers (max_prepared_statements)."""
    # As many servers as clients: pgbench waits for its Parse while another client of its thread has a transaction open.
    pgbench(pooler(default_pool_size=8), "-M", "prepared", *script)


@pytest.mark.parametrize("pool_mode", MODES)
def test_pgbench_reconnecting(pooler, bench, pool_mode):
    pgbench(pooler(pool_mode=pool_mode), "-S", "-C", count=15)


@pytest.mark.workers(1, 2)
def test_tpcb_adds_up(pooler, bench, pg):
    p = pooler(default_pool_size=3)
    pg.sql("truncate pgbench_history", dbname="p1")
    before = pg.sql("select sum(abalance) from pgbench_accounts", dbname="p1")[0][0]
    pgbench(p, clients=12, count=30)
    assert pg.sql("select count(*) from pgbench_history", dbname="p1") == [(360,)]
    delta = pg.sql("select sum(delta) from pgbench_history", dbname="p1")[0][0]
    assert pg.sql("select sum(abalance) from pgbench_accounts", dbname="p1")[0][0] - before == delta


def test_answers_are_not_crossed(pooler):
    """Many clients over few servers, each checks that the answer is the one to its own question."""
    p = pooler(default_pool_size=3)

    async def one(i):
        c = await p.asyncpg()
        try:
            for n in range(40):
                async with c.transaction():
                    assert await c.fetchval("select $1::text", f"{i}/{n}") == f"{i}/{n}"
        finally:
            await c.close()

    async def main():
        await asyncio.gather(*(one(i) for i in range(40)))
    asyncio.run(main())


# ---------------------------------------------------------------------------------------------- sizes

@pytest.mark.workers(1, 2)
def test_big_results(pooler):
    with pooler().connect() as c:
        n, total = 0, 0
        for (v,) in c.execute("select repeat(chr(97 + g % 26), 10000) from generate_series(1, 5000) g"):
            assert len(v) == 10000
            n, total = n + 1, total + len(v)
        assert (n, total) == (5000, 50_000_000)
        value = c.execute("select repeat('0123456789', 5000000)").fetchone()[0]
        assert len(value) == 50_000_000 and value[-10:] == "0123456789"
        assert c.execute("select 1").fetchone() == (1,)


def test_big_query(pooler):
    body = "".join(chr(97 + i % 26) for i in range(1000)) * 20_000
    with pooler().connect() as c:
        assert c.execute(f"select length('{body}'), md5('{body}')").fetchone() == \
            (20_000_000, hashlib.md5(body.encode()).hexdigest())
        assert c.execute("select length(%s::text), md5(%s::text)", (body, body)).fetchone() == \
            (20_000_000, hashlib.md5(body.encode()).hexdigest())
        assert c.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("size", [4085, 4086, 4087, 4090, 4091, 4092, 4096, 8192, 16379, 16384, 65531, 65536])
def test_sizes_around_buffers(pooler, size):
    with pooler().login() as c:
        for s in (size - 1, size, size + 1):
            text = "x" * (s - len("select length('')"))
            assert c.value(f"select length('{text}')") == str(len(text))
            assert c.value(f"select repeat('y', {s})") == "y" * s


@pytest.mark.workers(1, 2)
def test_copy(pooler, pg):
    line = b"0123456789" * 10 + b"\n"
    pg.sql("drop table if exists copied; create table copied (v text)")
    with pooler().connect() as c:
        with c.cursor().copy("copy copied from stdin") as copy:
            for _ in range(200):
                copy.write(line * 1000)
        assert c.execute("select count(*), sum(length(v)) from copied").fetchone() == (200_000, 20_000_000)
        total = 0
        with c.cursor().copy("copy copied to stdout") as copy:
            for data in copy:
                total += len(data)
        assert total == 200_000 * 101
        assert c.execute("select 1").fetchone() == (1,)


def test_copy_errors(pooler, pg):
    pg.sql("drop table if exists numbers; create table numbers (v int)")
    p = pooler(default_pool_size=1)
    with p.connect() as c:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            with c.cursor().copy("copy numbers from stdin") as copy:
                for _ in range(2000):
                    copy.write(b"not a number\n" * 100)
        assert c.execute("select count(*) from numbers").fetchone() == (0,)
        with pytest.raises(psycopg.errors.QueryCanceled):
            with c.cursor().copy("copy numbers from stdin") as copy:
                copy.write(b"1\n")
                1 / 0
        assert c.execute("select count(*) from numbers").fetchone() == (0,)
    with p.connect() as c:
        assert c.execute("select 1").fetchone() == (1,)


def test_copy_fail_and_stray_copy_messages(pooler, pg):
    pg.sql("drop table if exists numbers; create table numbers (v int)")
    with pooler(default_pool_size=1).login() as c:
        c.send(wire.query("copy numbers from stdin"))
        assert c.until("GE")[-1].type == "G"
        c.send(wire.msg("d", b"1\n"), wire.msg("f", wire.cstr("changed my mind")))
        out = c.until("Z")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "57014"
        assert c.value("select count(*) from numbers") == "0"


# ---------------------------------------------------------------------------------------------- pipelining

@pytest.mark.workers(1, 2)
def test_many_simple_queries_in_one_write(pooler):
    with pooler(default_pool_size=2).login() as c:
        c.send(*(wire.query(f"select {i}") for i in range(2000)))
        for i in range(2000):
            out = c.until("Z")
            assert [m.type for m in out] == ["T", "D", "C", "Z"]
            assert out[1].row == [str(i)]


@pytest.mark.workers(1, 2)
def test_many_batches_in_one_write(pooler):
    """Ten Syncs in flight with an error in one of them: each batch gets its own end."""
    with pooler(default_pool_size=2).login() as c:
        batches = []
        for i in range(10):
            sql = "select $1::int" if i != 4 else "select 1 / $1::int"
            arg = i if i != 4 else 0
            batches += [wire.parse("", sql), wire.bind("", "", [arg]), wire.execute(), wire.SYNC]
        c.send(*batches)
        for i in range(10):
            out = c.until("Z")
            types = [m.type for m in out]
            if i == 4:
                assert "E" in types and out[types.index("E")].code == "22012"
            else:
                assert types == ["1", "2", "D", "C", "Z"] and out[2].row == [str(i)]
        assert c.value("select 1") == "1"


def test_batch_without_sync_keeps_the_server(pooler):
    with pooler(default_pool_size=1).login() as c:
        c.send(wire.parse("", "select pg_backend_pid()"), wire.bind("", ""), wire.execute(), wire.FLUSH)
        assert [c.recv().type for _ in range(4)] == ["1", "2", "D", "C"]
        c.send(wire.bind("", ""), wire.execute(), wire.FLUSH)
        assert [c.recv().type for _ in range(3)] == ["2", "D", "C"]
        c.send(wire.SYNC)
        assert c.recv().type == "Z"
        assert c.value("select 1") == "1"


def test_next_batch_while_error_is_under_way(pooler):
    """[pgbouncer 759] the second batch stays behind the first, whatever fails in the first."""
    p = pooler(default_pool_size=1)
    with p.login() as c:
        for _ in range(20):
            c.send(wire.parse("", "select 1/0"), wire.bind("", ""), wire.execute(), wire.SYNC)
            c.send(wire.parse("", "select 7"), wire.describe("S", ""), wire.FLUSH)
            first = c.until("Z")
            assert [m.type for m in first][-2:] == ["E", "Z"]
            assert [c.recv().type for _ in range(3)] == ["1", "t", "T"]
            c.send(wire.bind("", ""), wire.execute(), wire.SYNC)
            second = c.until("Z")
            assert [m.type for m in second] == ["2", "D", "C", "Z"] and second[1].row == ["7"]


def test_psycopg_pipeline(pooler):
    with pooler(default_pool_size=2).connect() as c:
        with c.pipeline():
            cursors = [c.execute("select %s::int", (i,)) for i in range(200)]
        assert [cur.fetchone()[0] for cur in cursors] == list(range(200))
        with pytest.raises(psycopg.errors.DivisionByZero):
            with c.pipeline() as pipe:
                c.execute("select 1")
                c.execute("select 1/0")
                c.execute("select 2")
                pipe.sync()
        assert c.execute("select 1").fetchone() == (1,)


def test_multi_statement_query(pooler):
    with pooler().login() as c:
        out = c.query("select 1; select 2; select 3")
        assert [m.row for m in out if m.type == "D"] == [["1"], ["2"], ["3"]]
        assert [m.type for m in c.query("")] == ["I", "Z"]


# ---------------------------------------------------------------------------------------------- errors, transactions

@pytest.mark.parametrize("pool_mode", MODES)
def test_errors_leave_the_session_alive(pooler, pool_mode):
    with pooler(pool_mode=pool_mode, default_pool_size=1).login() as c:
        out = c.query("select * from no_such_table")
        assert [m.type for m in out] == ["E", "Z"] and out[0].code == "42P01"
        assert out[-1].body == b"I"
        assert c.query("selec 1")[0].code == "42601"
        assert c.value("select 1") == "1"


def test_aborted_transaction(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as c, p.login() as other:
        assert c.query("begin")[-1].body == b"T"
        assert c.query("select 1/0")[-1].body == b"E"
        assert c.query("select 1")[0].code == "25P02"
        other.send(wire.query("select 5"))
        assert c.query("rollback")[-1].body == b"I"
        assert other.until("Z")[1].row == ["5"]
        assert c.value("select 1") == "1"


@pytest.mark.parametrize("how", ["simple", "extended"])
def test_statement_mode_refuses_transactions(pooler, pg, how):
    p = pooler(pool_mode="statement", default_pool_size=1)
    with p.login() as c:
        if how == "simple":
            c.send(wire.query("begin"))
        else:
            c.send(wire.parse("", "begin"), wire.bind("", ""), wire.execute(), wire.SYNC)
        error = c.fatal()
        assert error.text == "transaction blocks not allowed in statement pooling mode"
        assert error.code == "08P01" or OURS
    with p.login() as c:
        assert c.value("select 1") == "1"


def test_notice_and_listen_in_session_mode(pooler):
    p = pooler(pool_mode="session")
    with p.connect() as c:
        seen = []
        c.add_notice_handler(lambda d: seen.append(d.message_primary))
        c.execute("do $$ begin raise notice 'hello'; end $$")
        assert seen == ["hello"]
        c.execute("listen chan")
        with p.connect() as other:
            other.execute("notify chan, 'payload'")
        note = next(c.notifies())
        assert (note.channel, note.payload) == ("chan", "payload")


def test_unnamed_statement_survives_within_transaction(pooler):
    with pooler(default_pool_size=1).login() as c:
        c.query("begin")
        c.send(wire.parse("", "select $1::int"), wire.SYNC)
        c.until("Z")
        for i in range(3):
            c.send(wire.bind("", "", [i]), wire.execute(), wire.SYNC)
            assert c.until("Z")[1].row == [str(i)]
        c.query("commit")


def test_named_statements_over_shared_servers(pooler):
    """Each client has its own name space although servers are shared."""
    p = pooler(default_pool_size=2)
    clients = [p.login() for _ in range(6)]
    for i, c in enumerate(clients):
        c.send(wire.parse("s", f"select {i} + $1::int"), wire.SYNC)
        assert [m.type for m in c.until("Z")] == ["1", "Z"]
    for n in range(10):
        for i, c in enumerate(clients):
            c.send(wire.bind("", "s", [n]), wire.execute(), wire.SYNC)
        for i, c in enumerate(clients):
            out = c.until("Z")
            assert [m.type for m in out] == ["2", "D", "C", "Z"] and out[1].row == [str(i + n)]
    c = clients[0]
    c.send(wire.close("S", "s"), wire.SYNC)
    assert [m.type for m in c.until("Z")] == ["3", "Z"]
    c.send(wire.bind("", "s", [1]), wire.execute(), wire.SYNC)
    assert c.fatal().text == "prepared statement did not exist"
    for c in clients:
        c.close()


def test_function_call(pooler):
    import struct
    with pooler().login() as c:
        oid = int(c.value("select 'int4pl(int4,int4)'::regprocedure::oid"))
        args = b"".join(struct.pack("!i", 1) + v for v in (b"2", b"3"))
        c.send(wire.msg("F", struct.pack("!IHHH", oid, 1, 0, 2) + args + struct.pack("!H", 0)))
        out = c.until("Z")
        assert [m.type for m in out] == ["V", "Z"] and out[0].body == struct.pack("!I", 1) + b"5"


@pytest.mark.parametrize("again", ["parse", "bind"])
def test_statement_skipped_after_an_error(pooler, again):
    """A Parse behind an error never ran: its name is free for another Parse, and using it prepares it after all."""
    p = pooler(default_pool_size=1)
    with p.login() as c:
        c.send(wire.parse("bad", "select * from nowhere"), wire.parse("late", "select 'late'"), wire.SYNC)
        assert [m.type for m in c.until("Z")] == ["E", "Z"]
        c.send(*([wire.parse("late", "select 'late'")] if again == "parse" else []),
               wire.bind("", "late"), wire.execute(), wire.SYNC)
        out = c.until("Z")
        assert [m.row for m in out if m.type == "D"] == [["late"]], out


@pytest.mark.ours
@pytest.mark.parametrize("linked", [False, True], ids=["idle", "linked"])
def test_named_parse_is_bounded(pooler, linked):
    """Its text has to be kept whole: what claims more than 64 MiB is refused, whether a server is held or not."""
    p = pooler(default_pool_size=1)
    with p.login() as c:
        if linked:
            c.query("begin")
        c.send(b"P" + (64 * 1024 * 1024 + 1).to_bytes(4, "big") + b"name\0select 1")
        assert c.fatal().code == "54000"
    with p.login() as c:
        assert c.value("select 1") == "1"


@pytest.mark.ours
def test_server_of_a_failed_copy_with_syncs_is_not_used_again(pooler):
    """Which of the Syncs PostgreSQL read while it was copying cannot be known: nobody else gets that connection."""
    p = pooler(default_pool_size=1)
    with p.login() as c:
        c.query("create table if not exists numbers_only (n int)")
        before = c.value("select pg_backend_pid()")
        c.send(wire.parse("", "copy numbers_only from stdin"), wire.bind("", ""), wire.execute(), wire.SYNC,
               wire.msg("d", b"not a number\n"), wire.msg("c"), wire.SYNC)
        assert "E" in [m.type for m in c.until("Z")]
    with p.login() as c:
        assert c.value("select pg_backend_pid()") != before
