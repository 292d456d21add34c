"""log_format = json, and the lines about slow waits, logins and transactions. Nothing here asserts how long anything took."""
import json
import re
import time

import pytest

import wire
from conftest import wait_until

pytestmark = pytest.mark.ours
PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] (FATAL|ERROR|WARNING|LOG|DEBUG|NOISE) ")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")
KEYS = {"time", "level", "pid", "message"}


def objects(p, **having):
    """The lines of the log that are whole by now, as objects; those that have these values."""
    def once_each(pairs):
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)
    text = p.logfile.read_text()  # strict UTF-8
    found = [json.loads(line, object_pairs_hook=once_each) for line in text[:text.rfind("\n") + 1].splitlines()]
    return [o for o in found if all(o.get(k) == v for k, v in having.items())]


def lines(p, part):
    return [line for line in p.log().splitlines() if part in line]


def wait_for(p, n=1, **having):
    return wait_until(lambda: len(found := objects(p, **having)) >= n and found, f"{n} lines with {having}")


# ---------------------------------------------------------------------------------------------- log_format

def test_json(pooler):
    p = pooler(log_format="json", verbose=2)
    with p.login() as c:
        c.value("select 1")
    p.admin("RELOAD")
    with p.wire() as c:
        c.start("alice", "nowhere")
        c.until_closed()
    wait_until(lambda: any("no such database" in o["message"] for o in objects(p)))
    for o in objects(p):
        assert KEYS <= set(o) and TIME.fullmatch(o["time"]) and o["pid"] == p.proc.pid, o
        assert o["level"] in ("LOG", "WARNING", "ERROR", "DEBUG", "NOISE")
        assert list(o)[:4] == ["time", "level", "pid", "message"]
        assert "C-0x" not in o["message"] and "S-0x" not in o["message"]
    (login,) = [o for o in objects(p, database="p0", user="alice") if o["message"].startswith("login attempt")]
    assert isinstance(login["client"], int) and login["worker"] in (0, 1)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", login["address"])
    server = [o for o in objects(p, database="p0") if "server" in o]
    assert server and server[0]["address"] == f"127.0.0.1:{p.pg.port}" and server[0]["user"] == "alice"
    assert not [o for o in objects(p) if o.get("database") in ("", "(nodb)") or o.get("user") in ("", "(nouser)")]
    with p.login() as c:
        known = {int(r["id"]): r for r in p.show("CLIENTS")}
        c.value("select 1")
        assert {o["client"] for o in objects(p, database="p0") if "client" in o} & set(known), "SHOW CLIENTS has the number"


def test_names_from_the_network_are_escaped(pooler):
    p = pooler(log_format="json", databases={"*": "host=127.0.0.1 port=1"})
    for name in (b'a"b\\c', b"a\nLOG forged", b"\x1b[2J", b"\xff\xfe", "\u20ac\u009b".encode(), b"x" * 60 + b"\xc3"):
        with p.wire() as c:
            body = b"\0\3\0\0user\0" + name + b"\0database\0" + name + b"\0\0"
            c.send((len(body) + 4).to_bytes(4) + body)
            c.until_closed()
    got = wait_until(lambda: len(found := {o["user"] for o in objects(p) if "user" in o}) >= 6 and found)
    assert {'a"b\\c', "a\nLOG forged", "\x1b[2J", "\ufffd\ufffd", "\u20ac\u009b", "x" * 60 + "\ufffd"} <= got
    assert not any(ord(c) < 32 or 0x7f <= ord(c) < 0xa0 for c in p.logfile.read_text() if c != "\n")


@pytest.mark.one_engine
def test_the_format_changes_while_it_runs(pooler):
    p = pooler()
    assert all(PLAIN.match(line) for line in p.log().splitlines())
    p.admin("SET log_format = 'json'")
    before = len(p.log().splitlines())
    with p.login() as c:
        c.value("select 1")
    wait_until(lambda: len(p.log().splitlines()) > before)
    assert all(json.loads(line) for line in p.log().splitlines()[before + 1:])
    p.admin("SET log_format = 'pgbouncer'")
    with p.login(database="p1") as c:
        c.value("select 1")
    wait_until(lambda: PLAIN.match(p.log().splitlines()[-1]))
    assert [r["value"] for r in p.show("CONFIG") if r["key"] == "log_format"] == ["pgbouncer"]


# ---------------------------------------------------------------------------------------------- slow ones

def test_nothing_is_slow_by_default(pooler):
    p = pooler(default_pool_size=1)
    with p.login() as a, p.login() as b:
        a.query("begin")
        b.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        a.query("select pg_sleep(0.2)")
        a.query("commit")
        b.until()
    p.wait_log("client unexpected eof")
    assert "slow" not in p.log()


def name_of(c):
    """As the log has it."""
    return "%s:%d" % c.sock.getsockname()


def in_line(p, holder, waiter):
    """`waiter` asks while `holder` has the only server."""
    holder.query("begin")
    waiter.send(wire.query("select 1"))
    wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")


def test_slow_wait(pooler):
    p = pooler(log_format="json", default_pool_size=1, log_slow_wait="0.000001")
    with p.login() as holder, p.login() as waiter:
        in_line(p, holder, waiter)
        holder.query("commit")
        waiter.until()
        o = wait_for(p, event="slow_wait", outcome="served", address=name_of(waiter))[0]
    assert o["waited_us"] > 0 and o["level"] == "LOG"
    assert (o["database"], o["user"], o["pool_database"], o["pool_user"]) == ("p0", "alice", "p0", "alice")
    assert (o["pool_servers"], o["pool_size"]) == (1, 1) and o["worker"] in (0, 1)
    assert o["message"].startswith("slow wait: ") and "pool p0/alice" in o["message"]


def test_slow_wait_in_vain(pooler):
    p = pooler(default_pool_size=1, log_slow_wait="0.000001")
    with p.login() as holder:
        with p.login() as waiter:
            in_line(p, holder, waiter)
            before = len(lines(p, "in vain"))
        wait_until(lambda: len(lines(p, "in vain")) == before + 1, "the one who left is in the log")
        with p.login() as waiter:
            in_line(p, holder, waiter)
            wire.cancel(waiter.address, waiter.key)
            assert [m.code for m in waiter.until() if m.type == "E"] == ["57014"]
            wait_until(lambda: len(lines(p, "in vain")) == before + 2, "the one who was cancelled, too")
        holder.query("rollback")
    assert re.search(r"LOG C-0x\w+: p0/alice@127\.0\.0\.1:\d+ slow wait: \d+\.\d{3} s for a server of pool p0/alice, "
                     r"in vain; worker [01], servers 1 of 1\n", p.log())


def test_slow_waits_are_kept(pooler):
    """For whoever asks, whether they are logged or not: from a tenth of a second on, if log_slow_wait does not say."""
    p = pooler(default_pool_size=1)

    def kept(client):  # logins of a busy moment may be among the others
        return [r for r in p.show("SLOW_WAITS", user="stats") if r["port"] == str(client.sock.getsockname()[1])]

    def long():
        wait_until(lambda: int(p.pool()["maxwait"]) > 0 or int(p.pool()["maxwait_us"]) > 100_000, "that is long")
    with p.login() as holder, p.login(application_name="a job") as waiter:
        in_line(p, holder, waiter)
        long()
        holder.query("commit")
        waiter.until()
        (row,) = kept(waiter)
        assert int(row["waited_us"]) >= 100_000 and row["outcome"] == "served" and row["ended"][:2] == "20"
        assert (row["database"], row["user"], row["servers"], row["pool_size"]) == ("p0", "alice", "1", "1")
        client = next(r for r in p.show("CLIENTS") if r["application_name"] == "a job")
        assert (row["client_id"], row["addr"]) == (client["id"], "127.0.0.1")
        assert row["application_name"] == "a job" and row["worker"] in ("0", "1")
        with p.login() as other:
            in_line(p, holder, other)
            long()
            port = other.sock.getsockname()[1]
        holder.query("commit")
        wait_until(lambda: [r["outcome"] for r in p.show("SLOW_WAITS") if r["port"] == str(port)] == ["none"], "in vain")


def test_below_the_threshold_is_silent(pooler):
    p = pooler(default_pool_size=1, log_slow_wait=600, log_slow_login=600, log_slow_transaction=600)
    with p.login() as holder, p.login() as waiter:
        in_line(p, holder, waiter)
        holder.query("commit")
        waiter.until()
    p.wait_log("client unexpected eof")
    assert "slow " not in p.log()


def test_slow_transaction(pooler):
    """Each part of it is where it belongs: a wait, the server at work, the client's own time."""
    p = pooler(log_format="json", default_pool_size=1, log_slow_transaction="0.15")

    def found(c, what):
        """A line about c, of which at least 0.2 s are `what`."""
        return wait_until(lambda: [o for o in objects(p, event="slow_transaction", address=name_of(c))
                                   if o[what] >= 200_000])[0]
    with p.login() as c, p.login() as other, p.login() as waiter:
        c.value("select pg_sleep(0.2)")
        o = found(c, "server_us")
        assert o["outcome"] == "done" and o["idle_us"] == 0
        assert o["total_us"] == o["server_us"] + o["waited_us"]
        assert o["server_address"] == f"127.0.0.1:{p.pg.port}" and o["worker"] in (0, 1)
        assert (o["database"], o["user"], o["pool_database"], o["pool_user"]) == ("p0", "alice", "p0", "alice")

        other.query("begin")
        time.sleep(0.2)  # the client's own time
        other.query("commit")
        o = found(other, "idle_us")
        assert o["total_us"] == o["server_us"] + o["waited_us"] + o["idle_us"]

        in_line(p, c, waiter)
        c.value("select pg_sleep(0.2)")
        c.query("commit")
        waiter.until()
        o = found(waiter, "waited_us")
        assert o["idle_us"] == 0 and o["total_us"] == o["server_us"] + o["waited_us"]

        # The next transaction begins at zero.
        number = len(objects(p, event="slow_transaction", address=name_of(waiter)))
        waiter.value("select pg_sleep(0.2)")
        o = wait_for(p, number + 1, event="slow_transaction", address=name_of(waiter))[number]
        assert o["total_us"] == o["server_us"] + o["waited_us"] and o["server_us"] >= 200_000


def test_slow_transaction_that_is_broken_off(pooler):
    p = pooler(log_slow_transaction="0.1")
    with p.login() as c:
        c.query("begin")
        c.value("select pg_sleep(0.11)")
    p.wait_log(", broken off: waiting for a server ")
    assert re.search(r"slow transaction: \d+\.\d{3} s, broken off: waiting for a server \d+\.\d{3} s, the server at work "
                     r"\d+\.\d{3} s, the client between its requests \d+\.\d{3} s; pool p0/alice, worker [01], server "
                     rf"127\.0\.0\.1:{p.pg.port}\n", p.log())


def test_slow_login(pooler):
    p = pooler(log_format="json", log_slow_login="0.000001", auth_type="plain", userlist={"alice": "pw", "admin": "pw"})
    with p.login(password="pw") as c:
        c.value("select 1")
    (o,) = wait_for(p, event="slow_login", database="p0")
    assert o["outcome"] == "done" and o["user"] == "alice"
    assert o["total_us"] == o["authentication_us"] + o["server_us"] and o["authentication_us"] > 0
    assert o["auth_query_us"] == o["judge_us"] == 0
    assert o["message"].startswith("slow login: ")
    with p.wire() as c:
        c.start("alice", "p0")
        assert c.authenticate("wrong")[-1].type == "E"
    o = wait_for(p, event="slow_login", outcome="failed")[0]
    assert o["server_us"] == 0 and o["total_us"] == o["authentication_us"] > 0


def test_slow_login_by_auth_query(make_pooler):
    p = make_pooler(log_format="json", log_slow_login="0.1", auth_type="md5", auth_user="admin",
                    auth_query="select $1::text, 'pw' from pg_sleep(0.15)")
    del p.userlist["bob"]
    p.start()
    with p.login(user="bob", password="pw") as c:
        c.value("select 1")
    o = wait_for(p, event="slow_login", user="bob")[0]
    assert o["total_us"] >= o["authentication_us"] >= o["auth_query_us"] >= 150_000, o


def test_slow_login_that_never_ends(make_pooler):
    """What it hung in is in the line, though it has not come to an end."""
    p = make_pooler(log_format="json", log_slow_login="0.1", auth_type="md5", auth_user="admin", client_login_timeout=1,
                    auth_query="select $1::text, 'pw' from pg_sleep(600)")
    del p.userlist["bob"]
    p.start()
    with p.wire() as c:
        c.start("bob", "p0")
        assert c.fatal().text == "client_login_timeout"
    o = wait_for(p, event="slow_login", user="bob")[0]
    assert o["outcome"] == "failed" and o["total_us"] >= o["auth_query_us"] > 0 == o["judge_us"], o


@pytest.mark.workers(1)
def test_a_storm_is_counted_instead(pooler):
    """400 slow waits in a moment: ten lines a second, and how many more there were."""
    p = pooler(default_pool_size=1, log_slow_wait="0.000001", log_format="json", log_connections=0,
               log_disconnections=0)
    n = 400
    with p.login() as holder:
        holder.query("begin")
        before = len(objects(p, event="slow_wait"))
        crowd = [p.login() for _ in range(n)]
        for c in crowd:
            c.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == n, "all wait")
        holder.query("commit")
        for c in crowd:
            c.until()

        def counted():
            return sum(o["count"] for o in objects(p, event="slow_untold"))
        wait_until(lambda: len(objects(p, event="slow_wait")) - before + counted() >= n, "every one is told or counted")
        assert counted() > 0
        seconds = [o["time"][:19] for o in objects(p, event="slow_wait")]
        assert all(seconds.count(t) <= 20 for t in seconds)  # two of ours may meet in one of the clock's
        for c in crowd:
            c.close()
