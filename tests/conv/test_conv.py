"""Each conversation of the .conv files, directly with PostgreSQL and through us. README.md says what is compared.

CONV_ALL=1 plays every variation on every engine and mode; by default each variation is played on the modes where it
can tell most, so that all of it takes a minute and a half.
"""
import os
import threading
from pathlib import Path

import pytest

import differences
from conftest import MODE, e2e
from play import Client, Hang, Play, Unexpected, cut_at, cut_every, show, whole
from script import Message, Values, encode, read_file

HERE = Path(__file__).parent
ALL = bool(os.environ.get("CONV_ALL"))
FILES = sorted(HERE.glob("*.conv"))
CONVERSATIONS = [c for f in FILES for c in read_file(f)]
ENGINES = e2e.engines()


def each(conversations):
    return pytest.mark.parametrize("conversation", conversations, ids=[f"{c.file[:-5]}-{c.line}" for c in conversations])


def each_engine(which=ENGINES):
    return pytest.mark.parametrize("engine", which)


# ------------------------------------------------------------------------------------------------ one run

class Run:
    """Plays a conversation where it is told to, with a table and values of its own."""

    def __init__(self, field, conversation):
        self.field, self.conversation = field, conversation
        self.known = {}  # PostgreSQL's own answers, by variation

    def play(self, path, database, admin=None, timeout=None, **how):
        __tracebackhide__ = True
        number = next(self.field.numbers)
        values = Values(number)
        admin = admin or self.field.admin
        c = self.conversation
        table = c.mentions("{t}")
        if table:
            admin.ask(values.fill("create table {t} (id int, v text)"))
        for sql in c.setup:
            admin.ask(values.fill(sql))
        play = Play(c, path, database, number, timeout=timeout, **how)
        try:
            return play.run()
        except (Hang, Unexpected, AssertionError) as e:
            if isinstance(e, Hang):  # a backend that waits for a lock does not notice that its client is gone
                admin.ask(f"select pg_terminate_backend(pid) from pg_stat_activity where query like '%{values.n}%' and "
                          "pid <> pg_backend_pid()")
            heard = "\n".join(f"  {who} heard\n{show(x.heard)}" for who, x in play.clients.items())
            raise type(e)(f"{where(c)} on {database}: {type(e).__name__} {e}\n{heard}") from None
        finally:
            if table:
                admin.ask(values.fill("drop table if exists {t} cascade"))  # waits for whoever still has a lock on it

    def direct(self, label="", **how):
        __tracebackhide__ = True
        if label not in self.known:
            self.known[label] = self.play(self.field.direct, "p0", **how)
        return self.known[label]

    def through(self, engine, mode, **how):
        __tracebackhide__ = True
        pooler = self.field.pooler(engine, mode.pooler)
        try:
            return self.play(pooler.unix, mode.name, **how)
        finally:
            assert pooler.alive(), pooler.log_tail()

    def compare(self, mode, direct, ours, what):
        """All differences are known ones; their names."""
        __tracebackhide__ = True
        used = set()
        for who in direct:
            names, at = differences.compare(mode, direct[who], ours.get(who, []))
            used |= names
            if at is not None:
                pytest.fail(f"{where(self.conversation)}, {what}: client {who} hears something else from answer "
                            f"{at + 1} on\n  PostgreSQL\n{show(direct[who])}\n  {mode.name}\n{show(ours[who])}", False)
        return used


def where(c):
    return f"{c.file}:{c.line} {c.name!r}"


def expected(c, mode):
    return {name for name, modes in c.differs if modes is None or mode.name in modes}


def legal(c, mode, direct):
    """Statement mode takes any conversation of one client; one that has transactions is sent away (a difference)."""
    if c.session and mode.pool_mode != "session":
        return False
    if mode.name == "untracked" and c.two and any(m.verb == "Parse" and m.args[0] for s in c.steps for m in s.send or []):
        return False  # without max_prepared_statements names belong to servers, not to clients
    return mode.pool_mode != "statement" or not c.two


def same_as_direct(run, engine, mode, what, pieces=whole, **how):
    """Plays it through us and compares; differences have to be those that the script declares, no more, no fewer."""
    __tracebackhide__ = True
    direct = run.direct()
    c = run.conversation
    sent_away = mode.pool_mode == "statement" and any(m[0] == "Z" and m[1] != "I" for x in direct.values() for m in x)
    relaxed = sent_away or bool(expected(c, mode))
    ours = run.through(engine, mode, strict=not relaxed, pieces=pieces, **how)
    used = run.compare(mode, direct, ours, what)
    if sent_away:
        assert used and used <= {"statement-mode"} | expected(c, MODE["transaction"]), (where(c), mode.name, used)
    else:
        wanted = expected(c, mode)
        if pieces is not whole:  # whether the next message comes before the error that is under way is a matter of luck
            used, wanted = used - {"judged-early", "unnamed-text"}, wanted - {"judged-early", "unnamed-text"}
        assert used == wanted, f"{where(c)} in {mode.name}, {what}: differs in {used or 'nothing'}"


# ------------------------------------------------------------------------------------------------ the variations

@each(CONVERSATIONS)
@each_engine()
def test_whole(field, conversation, engine):
    """Every mode; each line of the script in one write, and neighbouring lines joined in one."""
    run = Run(field, conversation)
    for name in ("session", "transaction", "statement", "untracked"):
        mode = MODE[name]
        if legal(conversation, mode, run.direct()):
            same_as_direct(run, engine, mode, "whole")
    if legal(conversation, MODE["transaction"], None):
        same_as_direct(run, engine, MODE["transaction"], "lines joined", merge=True)
    else:
        same_as_direct(run, engine, MODE["session"], "lines joined", merge=True)


@each(CONVERSATIONS)
@each_engine()
def test_cut(field, conversation, engine):
    """Every position of every write is a cut once; then one byte at a time, with the server's answers in bytes too."""
    run = Run(field, conversation)
    home = MODE["session" if conversation.session else "transaction"]
    places = [home] + ([MODE["session"], MODE["untracked"]] if ALL and not conversation.session else [])
    for mode in places:
        if ALL:
            longest = max((len(data(s)) for s in conversation.steps if s.send), default=0)
            cuts = [(f"cut at {i}", cut_at([i])) for i in range(1, longest) if i < 600 or i > longest - 60]
        else:
            cuts = [(f"cut at {i}, {i + 12}, ...", cut_every(12, i)) for i in range(1, 13)]
        for what, pieces in cuts:
            same_as_direct(run, engine, mode, what, pieces=pieces)
    same_as_direct(run, engine, home, "byte by byte", pieces=cut_every(1, 1))
    if not conversation.session:
        same_as_direct(run, engine, MODE["dribble"], "byte by byte in both directions", pieces=cut_every(1, 1))


def data(step):
    return b"".join(encode(m, Values(0)) for m in step.send)


def broken(m):
    """What a message may be replaced by so that it fails."""
    a = m.args
    if m.verb == "Query":
        return [[Message("Query", ["select 1/0"])], [Message("Query", [a[0] + "; select 1/0"])]]
    if m.verb == "Parse":
        return [[Message("Parse", [a[0], "select oops", *a[2:]])]]
    if m.verb == "Bind":
        args = (a + ["", "", []])[:2] + [(a[2] if len(a) > 2 else []) + ["1"]]
        return [[Message("Bind", args, m.options)]]
    if m.verb == "Describe":
        return [[Message("Describe", [a[0], "oops"])]]
    if m.verb == "Execute":
        return [[Message("Execute", ["oops"], m.options)]]
    if m.verb in ("CopyData", "CopyDone"):
        return [[Message("CopyFail", ["oops"])]]
    if m.verb == "FunctionCall":
        return [[Message("FunctionCall", ["999999", *a[1:]])]]
    return []


@each([c for c in CONVERSATIONS if not c.whole])
@each_engine()
def test_each_step_fails(field, conversation, engine):
    """Each message in turn is replaced by one that fails; the rest of the conversation goes on as if nothing had been."""
    run = Run(field, conversation)
    modes = [MODE["session"]] if conversation.session else \
        [MODE["transaction"]] + ([MODE["session"], MODE["untracked"]] if ALL or engine == ENGINES[-1] else [])
    for i, step in enumerate(conversation.steps):
        for j, message in enumerate(step.send or []):
            for k, instead in enumerate(broken(message)):
                def change(at, index, m, i=i, j=j, instead=instead):
                    return instead if (at, index) == (i, j) else [m]
                what = f"line {step.line}, message {j + 1} is now {instead[0].verb} {instead[0].args}"
                try:
                    direct = run.direct(what, change=change, strict=False, timeout=1)
                except Hang:
                    continue  # the script waits for what can no longer come
                for mode in (m for m in modes if legal(conversation, m, direct)):
                    run.compare(mode, direct, run.through(engine, mode, change=change, strict=False), what)


STATE = ("select '{n}', now() = statement_timestamp(), (select count(*) from pg_prepared_statements where name !~ "
         "'^PGBOUNCER_'), (select count(*) from pg_cursors where name <> ''), (select count(*) from "
         "pg_listening_channels()), (select count(*) from pg_locks where pid = pg_backend_pid() and locktype in "
         "('relation', 'advisory', 'transactionid', 'tuple') and mode <> 'AccessShareLock'), current_user = session_user, "
         "current_setting('search_path'), current_setting('DateStyle'), current_setting('application_name')")


@each(CONVERSATIONS)
@each_engine()
def test_dropped_at_each_step(field, conversation, engine):
    """The client vanishes in the middle of each write, and right behind it; whoever gets its server finds it clean."""
    run = Run(field, conversation)
    if conversation.two:
        modes = [MODE["session" if conversation.session else "pair"]]
    elif conversation.session:
        modes = [MODE["narrow-session"]]
    else:
        modes = [MODE["narrow"]] + ([MODE["narrow-session"]] if ALL or engine == ENGINES[-1] else [])
    for mode in modes:
        for i, step in enumerate(conversation.steps):
            for part in (0.5, 1) if step.send else ():
                run.through(engine, mode, stop_at=(i, part), strict=False)
                values = Values(next(field.numbers))
                second = Client(field.pooler(engine, mode.pooler).unix, mode.name)
                try:
                    rows, status = second.ask(values.fill(STATE))
                finally:
                    second.close()
                what = f"{where(conversation)}, {mode.name}, client gone at line {step.line} ({part})"
                assert status == "I", what
                assert rows == [[values.n, "t", "0", "0", "0", "0", "t", '"$user", public', "ISO, MDY", ""]], (what, rows)


@pytest.mark.parametrize("file", [f.name for f in FILES])
@each_engine()
def test_crowd(field, file, engine):
    """All conversations of a file at once, eight clients on three servers: nobody hears anything of somebody else."""
    mode = MODE["crowd"]
    runs = [Run(field, c) for c in CONVERSATIONS if c.file == file and not (c.session or c.two or c.alone)]
    for run in runs:
        run.direct()
    work = [r for r in runs for _ in range(2)]
    wrong = []

    def crowd():
        admin = Client(field.direct, "p0", user="postgres", timeout=120)
        try:
            while work and not wrong:
                run = work.pop()
                relaxed = bool(expected(run.conversation, mode))
                ours = run.through(engine, mode, admin=admin, strict=not relaxed)
                run.compare(mode, run.direct(), ours, "in a crowd")
        except BaseException as e:  # pytest's Failed too
            wrong.append(e)
        finally:
            admin.close()

    field.pooler(engine, mode.pooler)
    threads = [threading.Thread(target=crowd) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        raise wrong[0]


# ------------------------------------------------------------------------------------------------ the collection itself

def test_there_are_enough():
    assert len(CONVERSATIONS) >= 150
    assert len({(c.file, c.name) for c in CONVERSATIONS}) == len(CONVERSATIONS)


def test_every_difference_is_shown_by_a_conversation():
    shown = {name for c in CONVERSATIONS for name, _ in c.differs}
    assert shown | {"statement-mode"} == set(differences.BY_NAME)


def test_sections_4_to_7_are_covered():
    """Those scenarios of reliability.md that a conversation can show; the others need load, time or a sick server."""
    elsewhere = {58, 60, 62, 66, 70, 71, 73, 74, 75, 90, 96, 97, 98}
    covered = {s for c in CONVERSATIONS for s in c.scenarios}
    missing = set(range(51, 99)) - elsewhere - covered
    assert not missing, f"no conversation for {sorted(missing)}"



