"""psycopg2, see README.md. It has no prepared statements: its parameters become part of the query's text."""
import contextlib
import io
import sys

import psycopg2
from psycopg2 import errors

from steps import CONNECTIONS, ROWS, SIMPLE, big_text, cancels, copy_lines, endless, report, same, together

URL, MODE = sys.argv[1:]


@contextlib.contextmanager
def connections(count=CONNECTIONS):
    cs = []
    try:
        for _ in range(count):
            cs.append(psycopg2.connect(URL))
            cs[-1].autocommit = True
        yield cs
    finally:
        for c in cs:
            c.close()


def one(c, sql, *args):
    with c.cursor() as cur:
        cur.execute(sql, args or None)
        return cur.fetchone()


def run(c, sql, *args):
    with c.cursor() as cur:
        cur.execute(sql, args or None)


def simple():
    def work(n, c):
        for i in range(SIMPLE):
            same(one(c, "select %s, %s, %s", n, i, f"simple {n}"), (n, i, f"simple {n}"))
    with connections() as cs:
        together(work, cs)


def transaction():
    def work(n, c):
        c.autocommit = False  # the next statement brings a BEGIN along
        run(c, "insert into item values (%s, 1, 'lost')", n)
        for sql, error in (("select 1 / 0", errors.DivisionByZero), ("select 1", errors.InFailedSqlTransaction)):
            try:
                run(c, sql)
            except error:
                continue
            raise AssertionError(f"no {error.__name__}")
        c.rollback()
        same(one(c, "select count(*) from item where conn = %s", n), (0,))
        run(c, "insert into item values (%s, 2, %s)", n, f"kept {n}")
        c.commit()
        c.autocommit = True
        same(one(c, "select v from item where conn = %s", n), (f"kept {n}",))

    def refused(n, c):
        if n % 2:
            c.autocommit = False
            try:
                run(c, "select 1")
            except psycopg2.Error:
                same(bool(c.closed), True)
            else:
                raise AssertionError("BEGIN was not refused")
        else:
            for i in range(SIMPLE):
                same(one(c, "select %s, %s", n, i), (n, i))
    with connections() as cs:
        together(refused if MODE == "statement" else work, cs)


def copy():
    def work(n, c):
        lines = copy_lines(n)
        with c.cursor() as cur:
            cur.copy_expert("copy bulk from stdin", io.StringIO(lines))
            out = io.StringIO()
            cur.copy_expert(f"copy (select * from bulk where conn = {n} order by i) to stdout", out)
            same(out.getvalue(), lines)
            try:
                cur.copy_expert("copy bulk from stdin", io.StringIO("no number\t1\tx\n"))
            except errors.InvalidTextRepresentation:
                pass
            else:
                raise AssertionError("22P02 did not come")
        same(one(c, "select %s", n), (n,))
    with connections() as cs:
        together(work, cs)


def cancel():
    with connections(3) as (watcher, *sleepers):
        cancels(watcher, sleepers, lambda n: run(sleepers[n], endless(n)), one, errors.QueryCanceled)


def big():
    def work(n, c):
        if n == 0:
            with c.cursor() as cur:
                cur.execute(f"select i from generate_series(1, {ROWS}) i")
                same([i for i, in cur.fetchall()] == list(range(1, ROWS + 1)), True)
        else:
            text = big_text(n)
            same(one(c, "select %s", text)[0] == text, True)
        same(one(c, "select %s", n), (n,))
    with connections(3) as cs:
        together(work, cs)


report(f"psycopg2 {psycopg2.__version__.split()[0]}, libpq {psycopg2.extensions.libpq_version()}",
       [simple, transaction, copy, cancel, big])
