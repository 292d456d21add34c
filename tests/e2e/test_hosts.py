"""Many PostgreSQL hosts behind one name: where connections go, what a dead host costs, who is the primary."""
import contextlib
import subprocess
import threading
import time

import pytest

import wire
from clusters import BlackHole, Silent, caught_up, independent, replicated
from conftest import free_port, wait_until
from dns_server import Dns
from fakes import DONE, KEY, OK, PARAMS, READY, Scripted, relay, row
from ledger import TABLE, Ledger

pytestmark = pytest.mark.ours

ADDRESSES = ["127.0.0.11", "127.0.0.12", "127.0.0.13"]


@pytest.fixture(scope="module")
def three():
    with independent(ADDRESSES) as servers:
        yield servers


@pytest.fixture(scope="module")
def family():
    """A primary and two replicas; tests that change roles have their own."""
    with replicated(["127.0.0.21", "127.0.0.22", "127.0.0.23"]) as servers:
        yield servers


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


def entry(hosts, port, more=""):
    return f"host={','.join(hosts)} port={port} dbname=p0 {more}"


def address(c):
    return c.value("select host(inet_server_addr())")


def hosts(p, database="db"):
    return [r for r in p.show("HOSTS") if r["database"] == database]


def host(p, name, database="db"):
    return next(r for r in hosts(p, database) if r["host"] == name or r["address"] == name)


def refusal(code, text, severity="FATAL"):
    body = b"".join(k + v.encode() + b"\0" for k, v in ((b"S", severity), (b"C", code), (b"M", text)))
    return wire.msg("E", body + b"\0")


# ---------------------------------------------------------------------------------------------- the spread

def pgbench(p, n, database, tmp, clients=4):
    script = tmp / "insert.sql"
    script.write_text("insert into history default values;\n")
    done = subprocess.run(["pgbench", "-n", "-C", "-c", str(clients), "-t", str(n // clients), "-f", script, database],
                          env=p.env(), text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"number of transactions actually processed: {n}/{n}" in done.stdout, done.stdout
    assert "number of failed transactions: 0 " in done.stdout, done.stdout


@pytest.mark.parametrize("policy", ["random", "round-robin", "least-conn"])
def test_spread_over_three(pooler, three, tmp_path, policy):
    """libpq's own measure: 25 to 42 per cent each of 500 connections. Each transaction has a server of its own."""
    p = pooler(server_lifetime=0, log_connections=0, log_disconnections=0,
               databases={"db": entry(ADDRESSES, three[0].port, f"load_balance_hosts={policy}")})
    pgbench(p, 500, "db", tmp_path)
    counts = [c.history() for c in three]
    assert sum(counts) == 500
    assert all(125 <= n <= 210 for n in counts), counts


@pytest.mark.parametrize("policy,n", [("random", 1000), ("random", 2000), ("round-robin", 1000), ("least-conn", 1000)])
def test_stopped_host_is_no_error(pooler, three, tmp_path, policy, n):
    dead = "127.0.0.14"  # nobody listens there: refused
    p = pooler(server_lifetime=0, log_connections=0, log_disconnections=0,
               databases={"db": entry([ADDRESSES[0], dead, *ADDRESSES[1:]], three[0].port, f"load_balance_hosts={policy}")})
    pgbench(p, n, "db", tmp_path)
    counts = [c.history() for c in three]
    assert sum(counts) == n and all(n * 0.2 <= got <= n * 0.5 for got in counts), counts
    assert host(p, dead)["state"] == "out"
    assert "Connection refused" in host(p, dead)["last_error"]


@pytest.mark.parametrize("policy", ["random", "round-robin", "least-conn"])
def test_named_twice_is_twice_as_much(pooler, three, tmp_path, policy):
    p = pooler(server_lifetime=0, log_connections=0, log_disconnections=0,
               databases={"db": entry([ADDRESSES[0], ADDRESSES[1], ADDRESSES[0]], three[0].port,
                                      f"load_balance_hosts={policy}")})
    pgbench(p, 600, "db", tmp_path)
    twice, once, none = (c.history() for c in three)
    assert twice + once == 600 and none == 0
    assert 340 <= twice <= 460, (twice, once)
    rows = hosts(p)
    assert [(r["host"], r["weight"]) for r in rows] == [(ADDRESSES[0], "2"), (ADDRESSES[1], "1")]


@pytest.mark.parametrize("policy", ["random", "round-robin", "least-conn"])
def test_open_servers_are_spread(pooler, three, policy):
    """Of a pool that stays: 12 servers, over all workers; by least-conn and round-robin 4 on each host exactly."""
    p = pooler(default_pool_size=12, databases={"db": entry(ADDRESSES, three[0].port, f"load_balance_hosts={policy}")})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(12)]
        for c in clients:
            c.query("begin")
        got = [address(c) for c in clients]
        rows = hosts(p)
        assert {r["host"]: int(r["open"]) for r in rows} == {a: got.count(a) for a in ADDRESSES}
        assert {r["host"]: int(r["active"]) for r in rows} == {a: got.count(a) for a in ADDRESSES}
        # On a machine that is too busy a host may have been thought dead for a moment.
        if policy != "random" and all(r["failures"] == "0" for r in rows):
            assert [got.count(a) for a in ADDRESSES] == [4, 4, 4]


def test_disable_goes_in_the_given_order(pooler, three):
    p = pooler(default_pool_size=3,
               databases={"db": entry([ADDRESSES[1], ADDRESSES[0]], three[0].port, "load_balance_hosts=disable")})
    with p.login(database="db") as a, p.login(database="db") as b, p.login(database="db") as c:
        for client in (a, b, c):
            client.query("begin")
            assert address(client) == ADDRESSES[1]


@pytest.fixture
def named(make_pooler, closing):
    """A started pooler with a name server: named(Dns.hosts, databases, **settings)."""
    def make(names, databases, **settings):
        dns = closing(Dns())
        dns.hosts, dns.ttl = names, 3600
        p = make_pooler(databases=databases, dns_max_ttl=100, **settings)
        (p.dir / "resolv.conf").write_text(f"nameserver 127.0.0.1:{dns.port}\noptions timeout:1 attempts:1\n")
        p.settings["resolv_conf"] = p.dir / "resolv.conf"
        return p.start()
    return make


@pytest.mark.parametrize("policy", ["random", "round-robin"])
def test_addresses_of_one_name_share(named, three, tmp_path, policy):
    p = named({"db.test": [*ADDRESSES, "127.0.0.14"]},
              {"db": entry(["db.test"], three[0].port, f"load_balance_hosts={policy}")},
              server_lifetime=0, log_connections=0, log_disconnections=0)
    pgbench(p, 1000, "db", tmp_path)
    counts = [c.history() for c in three]
    assert sum(counts) == 1000 and all(250 <= n <= 500 for n in counts), counts
    # On a machine that is too busy one may have been thought dead for a moment.
    assert {r["address"]: r["state"].replace("returning", "up") for r in hosts(p)} == {
        **{f"{a}:{three[0].port}": "up" for a in ADDRESSES}, f"127.0.0.14:{three[0].port}": "out"}


def test_disable_takes_addresses_in_the_resolvers_order(named, three):
    p = named({"db.test": ADDRESSES}, {"db": entry(["db.test"], three[0].port, "load_balance_hosts=disable")},
              default_pool_size=3)
    with p.login(database="db") as a, p.login(database="db") as b:
        a.query("begin")
        b.query("begin")
        assert address(a) == address(b)


def test_name_that_is_nothing_is_passed_over(named, three):
    p = named({"good.test": [ADDRESSES[0]]},
              {"db": entry(["nothing.test", "good.test"], three[0].port, "load_balance_hosts=disable"),
               "lost": entry(["nothing.test", "nowhere.test"], three[0].port, "query_wait_timeout=2")})
    with p.login(database="db") as a, p.login(database="db") as b:
        for c in (a, b):
            c.query("begin")
            assert address(c) == ADDRESSES[0]
    assert p.log().count("DNS lookup failed: nothing.test") == 1  # the second one knew
    assert (host(p, "nothing.test")["state"], host(p, "nothing.test")["address"]) == ("out", None)
    with p.wire() as c:
        c.start(database="lost")
        m = c.fatal()
        for name in ("nothing.test", "nowhere.test"):
            assert f'could not translate host name "{name}" to address' in m.fields["D"]


# ---------------------------------------------------------------------------------------------- forms of lists

def test_ports_sockets_and_families(pooler, three, pg):
    p = pooler(default_pool_size=2, databases={
        "ports": f"host=127.0.0.1,{ADDRESSES[0]} port={pg.port},{three[0].port} dbname=p0",
        "mixed": f"host={three[1].dir},{ADDRESSES[2]} port={three[0].port} dbname=p0",
        "v6": f"host=::1,{ADDRESSES[2]} port={three[0].port} dbname=p0"})
    for database, expected in (("ports", {"127.0.0.1", ADDRESSES[0]}), ("mixed", {None, ADDRESSES[2]})):
        with p.login(database=database) as a, p.login(database=database) as b:
            a.query("begin")
            b.query("begin")
            assert {address(a), address(b)} == expected
    with p.login(database="v6") as c:
        assert address(c) == ADDRESSES[2]
    assert host(p, "::1", "v6")["address"] == f"[::1]:{three[0].port}"
    assert host(p, str(three[1].dir), "mixed")["address"] == f"{three[1].dir}/.s.PGSQL.{three[0].port}"


def test_ports_must_fit_the_hosts(pooler):
    p = pooler()
    p.databases["db"] = "host=a,b port=1,2,3"
    p.write_ini()
    with p.console() as c:
        assert any(m.type == "E" for m in c.query("RELOAD"))
    assert 'database "db" has 3 ports for 2 hosts' in p.log()
    with p.login() as c:
        assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- hosts that fail

@pytest.fixture
def bad(closing, request):
    """(host, port, what the report says) of a host that cannot be used."""
    kind = request.param
    if kind == "refused":
        return "127.0.0.1", free_port(), "Connection refused"
    if kind == "silent":
        return "127.0.0.1", closing(Silent()).port, "timeout expired"
    if kind == "black hole":
        return "127.0.0.1", closing(BlackHole()).port, "timeout expired"
    code, text = {"authentication": ("28P01", "password authentication failed for user \"alice\""),
                  "recovery": ("57P03", "the database system is not yet accepting connections"),
                  "shutdown": ("57P03", "the database system is shutting down"),
                  "full": ("53300", "sorry, too many clients already"), "crash": (None, None)}[kind]
    if kind == "crash":
        return "127.0.0.1", Scripted(lambda link: None, login=b"").port, "server closed the connection unexpectedly"
    return "127.0.0.1", Scripted(lambda link: None, login=refusal(code, text)).port, text


KINDS = ["refused", "silent", "black hole", "authentication", "recovery", "shutdown", "full", "crash"]


@pytest.mark.parametrize("bad", KINDS, indirect=True)
@pytest.mark.parametrize("policy", ["disable", "random"])
def test_one_bad_host_is_passed_over(pooler, three, bad, policy):
    """Whoever had to wait for it would get query_wait_timeout, long before server_connect_timeout."""
    h, port, _ = bad
    p = pooler(server_connect_timeout=100, query_wait_timeout=10, server_lifetime=0, databases={
        "db": f"host={h},{ADDRESSES[0]} port={port},{three[0].port} dbname=p0 load_balance_hosts={policy}"})
    for _ in range(5):
        with p.login(database="db") as c:
            assert address(c) == ADDRESSES[0]


@pytest.mark.parametrize("bad", KINDS, indirect=True)
def test_error_names_every_address(pooler, bad):
    h, port, text = bad
    other = free_port()
    p = pooler(server_connect_timeout=1, query_wait_timeout=3, server_login_retry=15, databases={
        "db": f"host={h},127.0.0.1 port={port},{other} dbname=p0 load_balance_hosts=disable"})
    with p.wire() as c:
        c.start(database="db")
        m = c.fatal()
    refused = text.startswith(("password", "sorry"))
    assert m.text == "query_wait_timeout" or refused, m.fields
    report = m.text if refused else m.fields["D"]
    assert f'connection to server at "127.0.0.1", port {port} failed: ' in report and text in report, report
    assert f'connection to server at "127.0.0.1", port {other} failed: Connection refused' in report, report
    if refused:
        assert m.code == ("28P01" if text.startswith("password") else "53300")


def test_one_dead_host_of_ten(pooler, three, closing):
    """At start and when it dies later; with a connection per transaction everybody would meet it in the end."""
    hole = closing(BlackHole())
    names = [ADDRESSES[i % 3] for i in range(9)]
    listed = f"host=127.0.0.1,{','.join(names)} port={hole.port},{','.join([str(three[0].port)] * 9)} dbname=p0"
    p = pooler(server_connect_timeout=100, query_wait_timeout=10, server_lifetime=0,
               databases={"db": f"{listed} load_balance_hosts=round-robin"})
    for _ in range(40):
        with p.login(database="db") as c:
            assert c.value("select 1") == "1"
    row = host(p, "127.0.0.1")
    assert row["state"] == "out" and row["last_error"] == "timeout expired"


def test_host_that_heals_is_used_again(pooler, three, pg):
    port = free_port()
    p = pooler(server_lifetime=0, query_wait_timeout=20, databases={
        "db": f"host=127.0.0.1,{ADDRESSES[0]} port={port},{three[0].port} dbname=p0 load_balance_hosts=disable"})
    with p.login(database="db") as c:
        assert address(c) == ADDRESSES[0]
        assert host(p, "127.0.0.1")["state"] == "out"
        assert 0 < int(host(p, "127.0.0.1")["next_try"]) <= 40
        # A relay to the test's PostgreSQL stands for the host that heals.
        with relay(port, pg.port):
            wait_until(lambda: host(p, "127.0.0.1")["state"] != "out", "it is seen to be back")
            assert "host 127.0.0.1:%d is back" % port in p.log()
            wait_until(lambda: address(c) == "127.0.0.1", "it is used")


def test_connections_move_to_a_host_that_is_back(pooler, three, pg):
    """One by one, and only idle ones: nobody's transaction ends for it."""
    port = free_port()
    p = pooler(default_pool_size=4, databases={
        "db": f"host=127.0.0.1,{ADDRESSES[0]} port={port},{three[0].port} dbname=p0 load_balance_hosts=least-conn"})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(4)]

        def spread():
            for c in clients:
                c.query("begin")
            got = [address(c) for c in clients]
            for c in clients:
                assert [m.type for m in c.query("commit")] == ["C", "Z"]
            return got.count("127.0.0.1")

        assert spread() == 0
        stack.enter_context(relay(port, pg.port))
        wait_until(lambda: spread() == 2, "half of them are there")
        assert "makes room for a host that is back" in p.log()


def test_all_down_then_one_back(pooler, pg):
    """The client waits, and is served by whoever comes first: no ban outlasts the need."""
    ports = [free_port() for _ in range(3)]
    p = pooler(server_login_retry=15, query_wait_timeout=30, databases={
        "db": f"host=127.0.0.1,127.0.0.1,127.0.0.1 port={','.join(map(str, ports))} dbname=p0"})
    with p.wire() as c:
        c.start(database="db")
        p.wait_log("no host of database db can be used")
        wait_until(lambda: all(int(r["failures"]) > 3 for r in hosts(p)), "all have been tried again")
        with relay(ports[1], pg.port):
            c.authenticate()
            assert c.value("select 1") == "1"


def test_reload_adds_and_removes_hosts(pooler, three):
    p = pooler(default_pool_size=4, databases={"db": entry(ADDRESSES[:2], three[0].port, "load_balance_hosts=least-conn")})
    with p.login(database="db") as a, p.login(database="db") as b:
        a.query("begin")
        b.query("begin")
        pids = {address(x): x.value("select pg_backend_pid()") for x in (a, b)}
        assert set(pids) == set(ADDRESSES[:2])
        p.databases["db"] = entry(ADDRESSES[1:], three[0].port, "load_balance_hosts=least-conn")
        p.write_ini()
        p.admin("RELOAD")
        assert {r["addr"]: r["close_needed"] for r in p.show("SERVERS")} == {ADDRESSES[0]: "1", ADDRESSES[1]: "0"}
        assert [r["host"] for r in hosts(p)] == ADDRESSES[1:]
        a.query("commit")
        b.query("commit")
        wait_until(lambda: [r["addr"] for r in p.show("SERVERS")] == [ADDRESSES[1]], "the server of the host that left ends")
        a.query("begin")
        b.query("begin")
        assert {address(a), address(b)} == set(ADDRESSES[1:])
        assert pids[ADDRESSES[1]] in (a.value("select pg_backend_pid()"), b.value("select pg_backend_pid()"))


def test_reconnect_of_one_host(pooler, three):
    """Servers of that host are replaced when they are free, and no others; in all databases, or in one."""
    listed = entry(ADDRESSES[:2], three[0].port, "load_balance_hosts=least-conn")
    p = pooler(default_pool_size=2, databases={"db": listed, "other": listed})

    def pids():
        """{(database, address): pid}, with both servers of each in use at the moment."""
        with contextlib.ExitStack() as stack:
            got = {}
            clients = [(d, stack.enter_context(p.login(database=d))) for d in ("db", "db", "other", "other")]
            for database, c in clients:
                c.query("begin")
                got[database, address(c)] = c.value("select pg_backend_pid()")
            for _, c in clients:
                c.query("commit")
            return got

    def changed(command):
        before = pids()
        with p.login(database="db") as busy, p.login(database="db") as other:
            for c in (busy, other):
                c.query("begin")
            busy_pid = busy.value("select pg_backend_pid()")
            assert p.admin(command) == "RECONNECT"
            assert busy.value("select pg_backend_pid()") == busy_pid
            busy.query("commit")
            other.query("commit")
            p.admin("WAIT_CLOSE")
        after = pids()
        assert set(before) == set(after) and len(before) == 4
        return {k for k in before if before[k] != after[k]}

    a, b = ADDRESSES[:2]
    assert changed(f"RECONNECT db host={a}") == {("db", a)}
    assert changed(f"RECONNECT host={b} port={three[0].port};") == {("db", b), ("other", b)}
    assert changed("RECONNECT") == {(d, h) for d in ("db", "other") for h in (a, b)}
    for command, text in ((f"RECONNECT db host={ADDRESSES[2]}", f"database db has no host {ADDRESSES[2]}"),
                          (f"RECONNECT host={a} port=1", f"no database has a host {a} with port 1"),
                          (f"RECONNECT nothing host={a}", "no such database: nothing"),
                          ("RECONNECT pgbouncer host=a", "cannot reconnect admin db: pgbouncer"),
                          ("RECONNECT db host=", "invalid command 'RECONNECT db host=', use SHOW HELP;")):
        with p.console() as console:
            assert [m.text for m in console.query(command) if m.type == "E"] == [text]
    with p.console("stats") as console:
        assert any(m.type == "E" for m in console.query(f"RECONNECT db host={a}"))


@pytest.mark.workers(1, 4)
def test_reconnect_of_a_host_under_load(pooler, three):
    """Clients notice nothing, whichever worker its servers are on or between."""
    p = pooler(default_pool_size=4, databases={"db": entry(ADDRESSES, three[0].port)})
    with clients_that_never_fail(p, "db", "select 1") as count:
        for i in range(20):
            before = count()
            p.admin(f"RECONNECT db host={ADDRESSES[i % 3]}")
            wait_until(lambda: count() > before + 20, "queries go on")
        p.admin("WAIT_CLOSE db")


@contextlib.contextmanager
def clients_that_never_fail(p, database, sql, n=6):
    """So many clients say it again and again, in transactions of two queries. Yields how often all of them did so far."""
    stop, errors, done = threading.Event(), [], [0] * n

    def client(i):
        try:
            with p.login(database=database) as c:
                while not stop.is_set():
                    for q in ("begin", sql, "commit"):
                        errors.extend(m.fields for m in c.query(q) if m.type == "E")
                    done[i] += 1
        except (wire.Closed, OSError, AssertionError) as e:
            errors.append(repr(e))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    try:
        yield lambda: sum(done)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not errors, errors[:3]


@pytest.mark.workers(1, 4)
def test_reload_under_load(pooler, three):
    """Hosts come and go while clients work: nobody notices, and who left is left."""
    lists = [ADDRESSES[:2], ADDRESSES[1:], ADDRESSES, [ADDRESSES[2], ADDRESSES[0], ADDRESSES[2]], [ADDRESSES[0]]]
    p = pooler(default_pool_size=4, databases={"db": entry(lists[0], three[0].port), "other": entry(ADDRESSES, three[0].port)})
    with p.login(database="other") as other, clients_that_never_fail(p, "db", "select 1") as count:
        pid = other.value("select pg_backend_pid()")
        for i in range(1, 16):
            listed = lists[i % len(lists)]
            p.databases["db"] = entry(listed, three[0].port)
            p.write_ini()
            p.admin("RELOAD")
            before = count()
            wait_until(lambda: count() > before + 20, "transactions go on")
            wait_until(lambda: {s["addr"] for s in p.show("SERVERS") if s["database"] == "db"} <= set(listed),
                       "no server is left of a host that is not in the list")
            assert [r["host"] for r in hosts(p)] == list(dict.fromkeys(listed))
        assert other.value("select pg_backend_pid()") == pid


BAD_LISTS = [
    ("host=a,b port=1,2,3", 'database "db" has 3 ports for 2 hosts'),
    ("port=1,2", 'database "db" has 2 ports for 1 host'),
    ("host=a,,b", "empty name in host list: a,,b"),
    ("host=a,b port=5432,0", "invalid port: 0"),
    ("host=a,b load_balance_hosts=best", "invalid load_balance_hosts: best"),
    ("host=a,b target_session_attrs=standby,primary", "invalid target_session_attrs: standby,primary"),
    ("host=a,b connect_timeout=soon", "invalid connect_timeout: soon")]


@pytest.mark.one_engine
def test_bad_lists_are_refused(pooler, three):
    """RELOAD says what is wrong and with which database; what was in force goes on for all."""
    good = entry(ADDRESSES, three[0].port)
    p = pooler(databases={"db": good})
    with p.login(database="db") as c:
        pid = c.value("select pg_backend_pid()")
        for bad, text in BAD_LISTS:
            p.databases["db"] = bad
            p.write_ini()
            with p.console() as console:
                assert [m.code for m in console.query("RELOAD") if m.type == "E"] == ["F0000"]
            assert text in p.log() and f'invalid value "{bad}" for parameter db in configuration' in p.log(), p.log_tail()
            assert c.value("select pg_backend_pid()") == pid
        assert [r["host"] for r in hosts(p)] == ADDRESSES


@pytest.mark.one_engine
def test_r157_many_hosts_and_blanks(pooler, three):
    """A hundred elements, all forms mixed, most of them dead; a name that is too long for a socket's path is not one."""
    dead = [f"127.0.1.{i}" for i in range(60)] + [f"/nowhere/{i}" for i in range(37)] + ["/" + "x" * 200, "::1"]
    listed = ", ".join([*dead, ADDRESSES[0]])
    p = pooler(databases={"db": f"host='{listed}' port={three[0].port} dbname=p0 load_balance_hosts=disable",
                          "random": f"host='{listed}' port={three[0].port} dbname=p0 load_balance_hosts=random"})
    for database in ("db", "random"):
        with p.login(database=database) as c:
            assert address(c) == ADDRESSES[0]
    rows = hosts(p)
    assert len(rows) == 100 and [r["host"] for r in rows] == [*dead, ADDRESSES[0]]
    assert {r["state"] for r in rows[:60]} == {"out"} and rows[-1]["state"] == "up"


def test_r157_clients_parameters_on_every_host(pooler, three):
    """Each host has defaults of its own: a client has what it asked for, wherever its transaction runs."""
    zones = ["Asia/Tokyo", "Europe/Berlin", "America/Lima"]
    for c, zone in zip(three, zones):
        c.sql(f"alter database p0 set timezone = '{zone}'")
    try:
        p = pooler(default_pool_size=3, databases={"db": entry(ADDRESSES, three[0].port, "load_balance_hosts=least-conn")})
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(p.login(database="db", TimeZone="Asia/Kolkata")) for _ in range(3)]
            for _ in range(3):
                for c in clients:
                    c.query("begin")
                assert {address(c) for c in clients} == set(ADDRESSES)
                assert {c.value("show timezone") for c in clients} == {"Asia/Kolkata"}
                for c in reversed(clients):
                    c.query("commit")
    finally:
        for c in three:
            c.sql("alter database p0 reset timezone")


def test_r158_flapping_host(pooler, three, pg):
    """It comes and goes: clients see nothing of it, and it is not stormed whenever it is there."""
    port = free_port()
    p = pooler(server_lifetime=0, query_wait_timeout=20, databases={
        "db": f"host=127.0.0.1,{ADDRESSES[0]} port={port},{three[0].port} dbname=p0 load_balance_hosts=least-conn"})
    with p.login(database="db") as c:
        for _ in range(3):
            wait_until(lambda: c.value("select 1") and host(p, "127.0.0.1")["state"] == "out", "it is out")
            with relay(port, pg.port):
                wait_until(lambda: c.value("select 1") and host(p, "127.0.0.1")["state"] != "out", "it is back")
                wait_until(lambda: address(c) == "127.0.0.1", "it is used")


def test_pool_size_is_the_total(pooler, three):
    p = pooler(default_pool_size=2, databases={"db": entry(ADDRESSES, three[0].port)})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(6)]
        for c in clients:
            c.send(wire.query("select pg_sleep(0.05)"))
        for c in clients:
            c.until("Z")
        assert sum(int(r["open"]) for r in hosts(p)) == 2


# ---------------------------------------------------------------------------------------------- roles

@pytest.mark.parametrize("attrs,who", [
    ("any", "012"), ("read-write", "0"), ("primary", "0"), ("read-only", "12"), ("standby", "12"),
    ("prefer-standby", "12")])
def test_target_session_attrs(pooler, family, attrs, who):
    p = pooler(default_pool_size=3, databases={
        "db": entry([c.address for c in family], family[0].port, f"target_session_attrs={attrs}")})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.login(database="db")) for _ in range(3)]
        for c in clients:
            c.query("begin")
        got = {address(c) for c in clients}
    assert got == {family[int(i)].address for i in who}
    roles = {r["host"]: r["role"] for r in hosts(p)}
    for i, c in enumerate(family):
        assert roles[c.address] in (["primary", "standby", "standby"][i], "unknown")


def test_prefer_standby_takes_a_primary_if_there_is_no_standby(pooler, family, three):
    p = pooler(databases={"db": entry([family[0].address, ADDRESSES[0]], family[0].port,
                                      "target_session_attrs=prefer-standby load_balance_hosts=disable")})
    with p.login(database="db") as c:
        assert address(c) == family[0].address


def test_r156_prefer_standby_goes_back_to_it(pooler):
    """The standby goes: its clients are the primary's. It returns: connections go back one by one, and no client sees it."""
    with replicated(["127.0.0.81", "127.0.0.82"]) as (primary, standby):
        p = pooler(default_pool_size=3, query_wait_timeout=30, databases={
            "db": entry([primary.address, standby.address], primary.port, "target_session_attrs=prefer-standby")})

        def servers():
            return {s["addr"] for s in p.show("SERVERS") if s["database"] == "db"}

        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(p.login(database="db")) for _ in range(3)]

            def serve():
                for c in clients:
                    c.query("begin")
                got = {address(c) for c in clients}
                for c in clients:
                    assert [m.type for m in c.query("commit")] == ["C", "Z"]
                return got

            assert serve() == {standby.address}
            standby.stop()
            wait_until(lambda: standby.address not in servers(), "the pooler knows")
            assert serve() == {primary.address}
            standby.start()
            wait_until(lambda: serve() == {standby.address}, "all are served by the standby again")


def test_single_host_of_the_wrong_kind(pooler, family):
    p = pooler(query_wait_timeout=2, databases={
        "db": entry([family[1].address], family[0].port, "target_session_attrs=primary")})
    with p.wire() as c:
        c.start(database="db")
        m = c.fatal()
        assert m.text == "query_wait_timeout" and "server is in hot standby mode" in m.fields["D"]


class Old(Scripted):
    """PostgreSQL before 14: says nothing of what it is, and has to be asked."""

    def __init__(self, standby, read_only):
        self.answers = {b"default_transaction_read_only": read_only, b"pg_is_in_recovery": standby}
        super().__init__(self.talk)

    def talk(self, link):
        while True:
            kind, body = link.recv()
            out = b""
            for part in body.rstrip(b"\0").split(b";"):
                known = [v for k, v in self.answers.items() if k in part]
                out += row(known[0] if known else str(self.port)) + wire.msg("C", b"SELECT 1\0")
            link.send(out + READY)


@pytest.mark.parametrize("attrs,chosen", [("read-write", 0), ("primary", 0), ("standby", 1), ("read-only", 1)])
def test_old_servers_are_asked(pooler, closing, attrs, chosen):
    servers = [Old("f", "off"), Old("t", "off")]
    p = pooler(databases={"db": "host=127.0.0.1,127.0.0.1 port=%d,%d dbname=p0 target_session_attrs=%s" % (
        servers[0].port, servers[1].port, attrs)})
    for _ in range(3):
        with p.login(database="db") as c:
            assert c.value("who") == str(servers[chosen].port)


class Deaf(Scripted):
    """A standby that logs in, answers its clients, and never the question what it is."""

    def __init__(self):
        reports = b"".join(wire.msg("S", f"{k}\0{v}\0".encode())
                           for k, v in (("in_hot_standby", "on"), ("default_transaction_read_only", "off")))
        super().__init__(self.talk, login=OK + PARAMS + reports + KEY + READY)

    def talk(self, link):
        while True:
            _, body = link.recv()
            if b"pg_is_in_recovery" not in body:
                link.send(row(str(self.port)), DONE)


def test_r154_role_check_that_hangs_holds_up_nobody(pooler):
    fake = Deaf()
    p = pooler(server_connect_timeout=2, query_wait_timeout=30, databases={
        "db": f"host=127.0.0.1 port={fake.port} dbname=p0 target_session_attrs=standby"})
    with p.login(database="db") as c:
        assert c.value("who") == str(fake.port)
        wait_until(lambda: any(s["state"] == "tested" for s in p.show("SERVERS")), "the idle server is being asked")
        assert c.value("who") == str(fake.port)  # by another connection
        p.wait_log("test query timeout")
        assert host(p, "127.0.0.1")["state"] == "up"  # a failed check of one connection says nothing of the host
        assert c.value("who") == str(fake.port)


def test_read_only_by_default_is_no_writer(pooler, family):
    """A server that stops taking writes, without a restart: the write pool waits for it, and gets it back."""
    primary = family[0]
    names = [c.address for c in family]
    p = pooler(query_wait_timeout=30, databases={
        "app": entry(names, primary.port, "target_session_attrs=read-write"),
        "app_ro": entry(names, primary.port, "target_session_attrs=read-only")})
    with p.login(database="app") as c, p.login(database="app_ro") as ro:
        assert c.value("show transaction_read_only") == "off"
        assert ro.value("show transaction_read_only") == "on"
        try:
            primary.sql("alter system set default_transaction_read_only = on", dbname="postgres")
            primary.sql("select pg_reload_conf()", dbname="postgres")
            wait_until(lambda: not [s for s in p.show("SERVERS") if s["database"] == "app" and s["state"] == "idle"],
                       "its servers are closed without a client's doing")
            c.send(wire.query("insert into history default values"))
            p.wait_log("session is read-only")
            assert ro.value("show transaction_read_only") == "on"
        finally:
            with primary.connect("postgres") as sql:
                sql.execute("set transaction_read_only = off")
                sql.execute("set default_transaction_read_only = off")
                sql.execute("alter system reset default_transaction_read_only")
                sql.execute("select pg_reload_conf()")
        out = c.until("Z")
        assert [m.type for m in out] == ["C", "Z"], out


def test_error_25006_is_looked_into(pooler, family):
    """A client's own read-only transaction is no demotion: the server is asked, and stays."""
    p = pooler(default_pool_size=1, databases={
        "db": entry([c.address for c in family], family[0].port, "target_session_attrs=read-write")})
    with p.login(database="db") as c:
        pid = c.value("select pg_backend_pid()")
        c.query("begin read only")
        (error,) = [m for m in c.query("insert into history default values") if m.type == "E"]
        assert error.code == "25006"
        c.query("rollback")
        assert c.value("select pg_backend_pid()") == pid


def test_switchover_under_load(pooler):
    """The primary goes down as one does that is replaced, a replica is promoted, the old primary comes back as a standby.
    Writers whose transaction had not begun see nothing of it; the read pool follows."""
    with replicated(["127.0.0.31", "127.0.0.32"]) as (old, new):
        names = [old.address, new.address]
        p = pooler(default_pool_size=4, query_wait_timeout=60, server_login_retry=15, databases={
            "app": entry(names, old.port, "target_session_attrs=read-write"),
            "app_ro": entry(names, old.port, "target_session_attrs=standby")})
        stop, errors, written = threading.Event(), [], []

        def write():
            """Autocommit inserts. The only error allowed is the one of a statement that the old primary had begun."""
            with p.login(database="app") as c:
                while not stop.is_set():
                    out = c.query("insert into history default values")
                    bad = [m.fields for m in out if m.type == "E"]
                    if bad:
                        errors.append(bad)
                    else:
                        written.append(time.monotonic())
                    time.sleep(0.005)

        threads = [threading.Thread(target=write) for _ in range(4)]
        with p.login(database="app_ro") as ro:
            assert address(ro) == new.address
            for t in threads:
                t.start()
            wait_until(lambda: len(written) > 50, "writes go on")
            # Idle in the pool only: no transaction is under way when the primary goes.
            p.admin("PAUSE app")
            caught_up(old, new)
            old.stop()
            p.admin("RESUME app")
            p.wait_log("no host of database app can be used")
            before = len(written)
            new.promote()
            wait_until(lambda: len(written) > before + 50, "writes go on at the new primary")
            old.follow(new)
            old.start()
            wait_until(lambda: address(ro) == old.address, "the read pool has moved to the new standby")
            before = len(written)
            wait_until(lambda: len(written) > before + 50, "writes still go on")
        stop.set()
        for t in threads:
            t.join()
        assert not errors
        assert new.sql("select count(*) from history")[0][0] == len(written)
        assert {r["host"]: r["role"] for r in hosts(p, "app")} == {old.address: "standby", new.address: "primary"}


@pytest.mark.parametrize("attrs", ["read-write", "primary"])
def test_r153_switchover_loses_and_misplaces_nothing(pooler, attrs):
    """There and back, without a word to the pooler. The ledger: whatever was acknowledged is there, once, and was taken by
    who was the primary then; the one that was demoted takes nothing, and who asks after it went away gets no error."""
    with replicated(["127.0.0.51", "127.0.0.52"]) as (old, new):
        p = pooler(default_pool_size=4, query_wait_timeout=60, server_login_retry=15, databases={
            "app": entry([old.address, new.address], old.port, f"target_session_attrs={attrs}")})
        old.sql(TABLE)
        reigns = [(old, 0.0)]
        down = []  # (from, to): a primary was on its way down
        with Ledger(p, "app") as ledger:
            def goes_on():
                before = len(ledger.acknowledged())
                wait_until(lambda: len(ledger.acknowledged()) > before + 50, "writes go on")

            goes_on()
            for primary, replica in ((old, new), (new, old)):
                began = time.monotonic()
                primary.stop()
                # Until the pooler has read the end of its connections, it may still lend one of them.
                wait_until(lambda: not [s for s in p.show("SERVERS") if s["addr"] == primary.address and s["state"] != "new"],
                           "its servers are closed")
                down.append((began, time.monotonic()))
                reigns.append((replica, time.monotonic()))
                replica.promote()
                goes_on()
                primary.follow(replica)
                primary.start()
                wait_until(lambda: host(p, primary.address, "app")["role"] == "standby"
                           or host(p, primary.address, "app")["state"] != "out", "it is seen to be back")
                goes_on()
        assert not ledger.broken, ledger.broken
        lost, strange, where = ledger.compare(old)
        assert not lost and not strange
        wait_until(lambda: ledger.compare(new)[2] == where, "both have the same rows, and nobody has some of its own")
        ends = [since for _, since in reigns[1:]] + [time.monotonic()]
        for w in ledger.acknowledged():
            reigned = {s.address for (s, since), end in zip(reigns, ends) if since <= w.ended and w.sent <= end}
            assert where[w.id] in reigned, (w, reigns)
        for w in ledger.refused():  # only what was under way when a primary went down
            assert any(w.sent <= to and w.ended >= since for since, to in down), (w, down)


def test_r153_two_that_take_writes(pooler, pg):
    """A failover went wrong: one is used, by all, until it is gone; then the other one, for good. Transactions end where
    they began."""
    ports = [free_port(), free_port()]
    p = pooler(default_pool_size=6, query_wait_timeout=20, databases={
        "app": f"host=127.0.0.1,127.0.0.1 port={ports[0]},{ports[1]} dbname=p0 target_session_attrs=read-write"})

    def used():
        return {int(s["port"]) for s in p.show("SERVERS") if s["state"] in ("active", "idle", "used")}

    def known(port):
        return next(r for r in hosts(p, "app") if r["port"] == str(port))

    def warned():
        return p.log().count("two servers of database app take writes")

    with contextlib.ExitStack() as stack:
        no_more = {port: stack.enter_context(relay(port, pg.port)) for port in ports}
        clients = [stack.enter_context(p.login(database="app")) for _ in range(5)]
        for c in clients[:4]:
            c.query("begin")
        (first,) = used()
        (second,) = set(ports) - {first}
        assert known(first)["role"] == known(second)["role"] == "primary"
        assert warned() == 1 and f"127.0.0.1:{first} is used until it fails, 127.0.0.1:{second} is not" in p.log()

        no_more[first]()
        clients[4].query("begin")
        assert used() == {first, second}
        for c in clients:
            assert [m.type for m in c.query("commit")] == ["C", "Z"]
        wait_until(lambda: used() == {second}, "who writes elsewhere ends when it is free")

        stack.enter_context(relay(first, pg.port))
        wait_until(lambda: known(first)["state"] != "out", "the first one is back")
        assert len([s for s in p.show("SERVERS") if s["port"] == str(second)]) < len(clients) - 1
        for c in clients:  # two new connections at least: one of them asks the first one what it is
            c.query("begin")
        assert known(first)["role"] == "primary"
        assert used() == {second} and warned() == 2


def test_standby_that_is_promoted_leaves_the_read_pool(pooler):
    """Found without a new connection: the idle server is asked."""
    with replicated(["127.0.0.41", "127.0.0.42"]) as (primary, replica):
        p = pooler(query_wait_timeout=30, databases={
            "db": entry([primary.address, replica.address], primary.port, "target_session_attrs=standby")})
        with p.login(database="db") as c:
            assert address(c) == replica.address
            replica.promote()
            wait_until(lambda: not [s for s in p.show("SERVERS") if s["addr"] == replica.address], "its server is closed")
            assert host(p, replica.address)["role"] == "primary"


# ---------------------------------------------------------------------------------------------- console

def test_show_hosts_columns(pooler, three):
    p = pooler(databases={"db": entry(ADDRESSES[:2], three[0].port)})
    with p.console() as console:
        out = console.query("SHOW HOSTS")
        assert out[0].columns == [
            ("database", 25), ("host", 25), ("port", 23), ("address", 25), ("weight", 23), ("role", 25), ("state", 25),
            ("since", 25), ("open", 23), ("active", 23), ("failures", 20), ("next_try", 23), ("last_error", 25),
            ("connect_us", 20)]
    assert [(r["host"], r["address"], r["state"]) for r in hosts(p)] == [(a, None, "unknown") for a in ADDRESSES[:2]]
    with p.login(database="db") as c:
        c.query("begin")
        row = host(p, address(c))
        assert (row["state"], row["open"], row["active"], row["failures"], row["last_error"]) == ("up", "1", "1", "0", None)
        assert row["since"] and int(row["connect_us"]) > 0
