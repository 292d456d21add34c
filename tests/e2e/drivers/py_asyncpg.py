"""asyncpg, see README.md. It prepares everything with a name, and speaks the protocol itself."""
import asyncio
import contextlib
import io
import sys

import asyncpg

from steps import (ACTIVE, CONNECTIONS, PREPARED, ROWS, SIMPLE, big_text, copy_lines, endless, report, same)

URL, MODE = sys.argv[1:]
SHARED = ("select $1::int + $2::int, $3::text, "
          "exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0)")


@contextlib.asynccontextmanager
async def connections(count=CONNECTIONS):
    cs = []
    try:
        for _ in range(count):
            cs.append(await asyncpg.connect(URL))
        yield cs
    finally:
        for c in cs:
            c.terminate()  # close() sends nothing more than that, and waits for pending work


async def together(work, cs):
    await asyncio.gather(*(work(n, c) for n, c in enumerate(cs)))


def step(function):
    """An async step as a plain one."""
    def run():
        asyncio.run(asyncio.wait_for(function(), 200))
    run.__name__ = function.__name__
    return run


@step
async def simple():
    async def work(n, c):
        for i in range(SIMPLE):  # without arguments execute() is a simple query, but has no rows
            same(await c.execute(f"select {n} from generate_series(1, {n * 100 + i})"), f"SELECT {n * 100 + i}")
    async with connections() as cs:
        await together(work, cs)


@step
async def prepared():
    async def work(n, c):
        own = await c.prepare(f"select {n}, $1::int, $2::text")
        for i in range(PREPARED):
            got = await c.fetchrow(SHARED, n, i, f"text {n}")
            same(tuple(got), (n + i, f"text {n}", True))
            same(tuple(await own.fetchrow(i, f"own {n}")), (n, i, f"own {n}"))
        many = await c.fetch("select $1::int + i from generate_series(1, 100) i", n)
        same([v for v, in many], [n + i for i in range(1, 101)])
        await c.executemany("insert into item values ($1, $2, $3)", [(n, i, f"many {n}") for i in range(100, 120)])
        same(await c.fetchval("select count(*) from item where conn = $1 and i >= 100 and v = $2", n, f"many {n}"), 20)
        await c.reset() if MODE == "session" else None
    async with connections() as cs:
        await together(work, cs)


@step
async def transaction():
    async def work(n, c):
        try:
            async with c.transaction():
                await c.execute("insert into item values ($1, 1, 'lost')", n)
                try:
                    await c.fetchval("select 1 / $1::int", 0)
                except asyncpg.DivisionByZeroError:
                    await c.fetchval("select $1::int", n)
        except asyncpg.InFailedSQLTransactionError:
            pass
        else:
            raise AssertionError("25P02 did not come")
        same(await c.fetchval("select count(*) from item where conn = $1 and i < 100", n), 0)
        async with c.transaction():
            await c.execute("insert into item values ($1, 2, $2)", n, f"kept {n}")
            rows = [v async for v, in c.cursor("select i from generate_series(1, 500) i", prefetch=100)]
            same(rows, list(range(1, 501)))
        same(await c.fetchval("select v from item where conn = $1 and i < 100", n), f"kept {n}")

    async def refused(n, c):
        if n % 2:
            try:
                await c.execute("begin")
                await c.execute("select 1")
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                same(c.is_closed(), True)
            else:
                raise AssertionError("BEGIN was not refused")
        else:
            for i in range(SIMPLE):
                same(tuple(await c.fetchrow("select $1::int, $2::int", n, i)), (n, i))
    async with connections() as cs:
        await together(refused if MODE == "statement" else work, cs)


@step
async def copy():
    async def work(n, c):
        lines = copy_lines(n).encode()
        await c.copy_to_table("bulk", source=io.BytesIO(lines))
        out = io.BytesIO()
        await c.copy_from_query("select * from bulk where conn = $1 order by i", n, output=out)
        same(out.getvalue(), lines)
        try:
            await c.copy_to_table("bulk", source=io.BytesIO(b"no number\t1\tx\n"))
        except asyncpg.InvalidTextRepresentationError:
            pass
        else:
            raise AssertionError("22P02 did not come")
        await c.copy_records_to_table("bulk", records=[(-n, i, "binary") for i in range(100)])
        same(await c.fetchval("select count(*) from bulk where conn = $1 and v = 'binary'", -n), 100)
    async with connections() as cs:
        await together(work, cs)


@step
async def cancel():
    async with connections(3) as (watcher, *sleepers):
        async def active(n):
            return await watcher.fetchval(ACTIVE + "$1", endless(n)) == 1
        tasks = [asyncio.create_task(c.fetch(endless(n))) for n, c in enumerate(sleepers)]
        while not (await active(0) and await active(1)):
            await asyncio.sleep(0.01)
        for n in (0, 1):
            tasks[n].cancel()  # asyncpg sends the cancel request, and waits before it uses the connection again
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[n]
                raise AssertionError("was not cancelled")
            same(await sleepers[n].fetchval("select $1::text", f"alive {n}"), f"alive {n}")
            same((await active(0), await active(1)), (False, n == 0))
            same(tasks[1].done(), n == 1)


@step
async def big():
    async def work(n, c):
        if n == 0:
            got = await c.fetch("select i from generate_series(1, $1::int) i", ROWS)
            same([i for i, in got] == list(range(1, ROWS + 1)), True)
        else:
            text = big_text(n)
            same(await c.fetchval("select $1::text", text) == text, True)
        same(await c.fetchval("select $1::int", n), n)
    async with connections(3) as cs:
        await together(work, cs)


report(f"asyncpg {asyncpg.__version__}", [simple, prepared, transaction, copy, cancel, big])
