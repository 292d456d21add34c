"""psycopg 3, see README.md. Its pipelines, too."""
import contextlib
import sys

import psycopg
from psycopg import errors

from steps import CONNECTIONS, PREPARED, ROWS, SIMPLE, big_text, cancels, copy_lines, endless, report, same, together

URL, MODE = sys.argv[1:]
SHARED = ("select %s::int + %s::int, %s::text, "
          "exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0)")


@contextlib.contextmanager
def connections(count=CONNECTIONS):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(psycopg.connect(URL, autocommit=True))) for _ in range(count)]


def one(c, sql, *args, **kw):
    return c.execute(sql, args or None, **kw).fetchone()


def simple():
    def work(n, c):
        for i in range(SIMPLE):
            same(one(c, f"select {n}, {i}, 'simple {n}'"), (n, i, f"simple {n}"))
    with connections() as cs:
        together(work, cs)


def prepared():
    def work(n, c):
        for i in range(PREPARED):  # prepare_threshold is 5
            got = one(c, SHARED, n, i, f"text {n}")
            same(got[:2], (n + i, f"text {n}"))
            same(one(c, f"select {n}, %s::int, %s::text", i, f"own {n}"), (n, i, f"own {n}"))
        same(got[2], True)
    with connections() as cs:
        together(work, cs)


def transaction():
    def work(n, c):
        same(one(c, "select %s::int", n, prepare=True), (n,))
        try:
            with c.transaction():
                c.execute("insert into item values (%s, 1, 'lost')", (n,))
                try:
                    c.execute("select 1 / 0")
                except errors.DivisionByZero:
                    c.execute("select 1")
        except errors.InFailedSqlTransaction:
            pass
        else:
            raise AssertionError("25P02 did not come")
        same(one(c, "select count(*) from item where conn = %s", n), (0,))
        same(one(c, "select %s::int", n, prepare=True), (n,))  # psycopg said DEALLOCATE ALL after the rollback
        with c.transaction():
            c.execute("insert into item values (%s, 2, %s)", (n, f"kept {n}"))
        same(one(c, "select v from item where conn = %s", n), (f"kept {n}",))

    def refused(n, c):
        if n % 2:
            try:
                c.execute("begin")
                c.execute("select 1")
            except psycopg.Error:
                same(c.closed, True)
            else:
                raise AssertionError("BEGIN was not refused")
        else:
            for i in range(SIMPLE):
                same(one(c, "select %s::int, %s::int", n, i), (n, i))
    with connections() as cs:
        together(refused if MODE == "statement" else work, cs)


def copy():
    def work(n, c):
        lines = copy_lines(n)
        with c.cursor() as cur:
            with cur.copy("copy bulk from stdin") as into:
                into.write(lines)
            with cur.copy(f"copy (select * from bulk where conn = {n} order by i) to stdout") as out:
                same(b"".join(bytes(piece) for piece in out).decode(), lines)
            try:
                with cur.copy("copy bulk from stdin") as into:
                    into.write("no number\t1\tx\n")
            except errors.InvalidTextRepresentation:
                pass
            else:
                raise AssertionError("22P02 did not come")
        same(one(c, "select %s::int", n), (n,))
    with connections() as cs:
        together(work, cs)


def cancel():
    with connections(3) as (watcher, *sleepers):
        cancels(watcher, sleepers, lambda n: sleepers[n].execute(endless(n)), one, errors.QueryCanceled)


def big():
    def work(n, c):
        if n == 0:
            got = c.execute(f"select i from generate_series(1, {ROWS}) i").fetchall()
            same([i for i, in got] == list(range(1, ROWS + 1)), True)
        else:
            text = big_text(n)
            same(one(c, "select %s::text", text)[0] == text, True)
        same(one(c, "select %s::int", n), (n,))
    with connections(3) as cs:
        together(work, cs)


def pipeline():
    def work(n, c):
        for i in range(5):
            try:
                with c.pipeline():
                    first = c.execute("select %s::int, %s::int", (n, i), prepare=True)
                    c.execute("select 1 / %s::int", (0,), prepare=True)
                    c.execute("insert into item values (%s, 3, 'skipped')", (n,), prepare=True)
            except errors.DivisionByZero:
                pass
            else:
                raise AssertionError("22012 did not come")
            same(first.fetchone(), (n, i))
            with c.pipeline():
                cursors = [c.execute("select %s::int, %s::int", (n, k), prepare=True) for k in range(20)]
                skipped = c.execute("select count(*) from item where conn = %s and i = 3", (n,), prepare=True)
            same([cur.fetchone() for cur in cursors], [(n, k) for k in range(20)])
            same(skipped.fetchone(), (0,))
    with connections() as cs:
        together(work, cs)


report(f"psycopg {psycopg.__version__}, libpq {psycopg.pq.version()}",
       [simple, prepared, transaction, copy, cancel, big, pipeline])
