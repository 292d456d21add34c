"""Hosts whose packets are lost: 114 of the reliability catalogue, with several hosts behind one name. PostgreSQL and the pooler
run in a network namespace that the tests make (netns.py); clients come through the Unix socket."""
import contextlib
import socket

import pytest

import netns
import wire
from clusters import independent
from conftest import wait_until
from dns_server import Dns
from netns import net  # noqa: F401
from test_hosts import address, clients_that_never_fail, host, hosts

MISSING = netns.missing()
pytestmark = [pytest.mark.ours, pytest.mark.skipif(bool(MISSING), reason=str(MISSING))]

V4 = ["127.0.0.11", "127.0.0.12", "127.0.0.13"]
V6 = ["fd00:7::11", "fd00:7::12", "fd00:7::13"]
NAMES = ["one.test", "two.test", "three.test"]


@pytest.fixture(scope="module")
def the_net():
    net = netns.Network(*V6)
    yield net
    net.close()


@pytest.fixture(scope="module")
def three(the_net):
    """Each has an address of IPv4 and one of IPv6."""
    with independent([f"{a},{b}" for a, b in zip(V4, V6)], the_net.prefix) as servers:
        yield servers


@pytest.fixture
def pooler(net, three, make_pooler):
    """As the usual one, in the other network."""
    def make(hosts, more="", names=None, **settings):
        databases = {"db": f"host={','.join(hosts)} port={three[0].port} dbname=p0 {more}"}
        p = make_pooler(databases=databases, **settings)
        p.prefix = net.prefix
        p.wire = lambda **kw: wire.Wire(p.port, unix=p.unix, **kw)
        if any(h in NAMES for h in hosts):
            dns = stack.enter_context(contextlib.closing(Dns(net.socket(socket.AF_INET, socket.SOCK_DGRAM))))
            dns.hosts = names or {n: [a] for n, a in zip(NAMES, V4)}
            dns.ttl = 3600
            (p.dir / "resolv.conf").write_text(f"nameserver 127.0.0.1:{dns.port}\noptions timeout:1 attempts:1\n")
            p.settings["resolv_conf"] = p.dir / "resolv.conf"
        return p.start()
    with contextlib.ExitStack() as stack:
        yield make



# ---------------------------------------------------------------------------------------------- when connecting

@pytest.mark.parametrize("policy", ["disable", "random"])
@pytest.mark.parametrize("listed", [V4, V6, NAMES], ids=["ipv4", "ipv6", "names"])
def test_r114_black_hole_is_passed_over(pooler, net, listed, policy):
    """A connection per transaction. Whoever waited for the kernel, or for the pooler's own limit, would be told
    query_wait_timeout. And it is used again when it is back."""
    hole = V6[0] if listed is V6 else V4[0]
    net.swallow(hole)
    p = pooler(listed, f"load_balance_hosts={policy}", server_lifetime=0, server_connect_timeout=100, query_wait_timeout=10)
    for _ in range(8):
        with p.login(database="db") as c:
            assert address(c) != hole
    row = host(p, listed[0])
    if policy != "disable" and row["state"] == "unknown":  # nobody has tried it yet
        with p.login(database="db") as c:
            wait_until(lambda: c.value("select 1") and host(p, listed[0])["state"] == "out", "it is tried")
        row = host(p, listed[0])
    assert (row["state"], row["last_error"]) == ("out", "timeout expired")
    net.heal()
    with p.login(database="db") as c:
        wait_until(lambda: address(c) == hole, "it is used again")
    assert host(p, listed[0])["state"] in ("up", "returning")


@pytest.mark.parametrize("policy", ["disable", "random"])
def test_r114_one_address_of_a_name_is_a_black_hole(pooler, net, policy):
    """The name stands for three servers, one of them by IPv6."""
    net.swallow(V4[0])
    p = pooler(["one.test"], f"load_balance_hosts={policy}", names={"one.test": [V4[0], V4[1], V6[2]]},
               server_lifetime=0, server_connect_timeout=100, query_wait_timeout=10)
    got = set()
    with p.login(database="db") as c:
        for _ in range(12):
            got.add(address(c))
    assert got and got <= {V4[1], V6[2]}
    if policy == "random":
        wait_until(lambda: not address_is_unknown(p, V4[0]), "it is tried")
        with p.login(database="db") as c:
            wait_until(lambda: address(c) == V6[2], "the address by IPv6 has its turn")
    assert {r["address"].rsplit(":", 1)[0] for r in hosts(p)} == {V4[0], V4[1], f"[{V6[2]}]"}


def address_is_unknown(p, ip):
    with p.login(database="db") as c:
        c.value("select 1")
    return next(r for r in hosts(p) if r["address"].startswith(ip + ":"))["state"] == "unknown"


def test_r114_all_are_black_holes(pooler, net, three):
    """Each gets its connect_timeout, and the client's error names them all: two hosts, and two addresses of a name."""
    for a in (*V4, *V6):
        net.swallow(a)
    p = pooler([V4[0], V6[1], "one.test"], "connect_timeout=1 load_balance_hosts=disable",
               names={"one.test": [V4[1], V6[2]]}, server_connect_timeout=100, query_wait_timeout=20)
    with p.wire() as c:
        c.start(database="db")
        m = c.fatal()
    assert m.text == "query_wait_timeout"
    lines = m.fields["D"].splitlines()
    port = three[0].port
    expected = {f'connection to server at "{name}", port {port} failed: timeout expired' for name in (V4[0], V6[1])} | {
        f'connection to server at "one.test" ({ip}), port {port} failed: timeout expired' for ip in (V4[1], V6[2])}
    assert expected <= set(lines), m.fields["D"]


def test_r114_connect_timeout_of_a_single_host(pooler, net, three):
    """Nobody else is there to be tried: connect_timeout is the limit, not server_connect_timeout, nor the kernel's."""
    net.swallow(V4[0])
    p = pooler([V4[0]], "connect_timeout=1", server_connect_timeout=100, query_wait_timeout=100)
    with p.wire() as c:
        c.start(database="db")
        wait_until(lambda: host(p, V4[0])["last_error"] == "timeout expired", "it is given up")
        net.heal()
        c.authenticate()
        assert address(c) == V4[0]


@pytest.mark.parametrize("listed", [V4, V6], ids=["ipv4", "ipv6"])
def test_r114_host_that_says_nothing_is_passed_over(pooler, net, listed):
    """Its kernel takes the connection, and what is said then is lost: to a listener one cannot tell it from a dead server."""
    net.mute(listed[0])
    p = pooler(listed[:2], "load_balance_hosts=disable", server_lifetime=0, server_connect_timeout=100, query_wait_timeout=10)
    for _ in range(5):
        with p.login(database="db") as c:
            assert address(c) == listed[1]
    assert "timeout expired" in host(p, listed[0])["last_error"]


def test_r114_dies_between_two_connections(pooler, net):
    """One of ten, at run time, with a connection per transaction."""
    p = pooler([V4[0], *V4[1:] * 4, V4[1]], "load_balance_hosts=round-robin", server_lifetime=0,
               server_connect_timeout=100, query_wait_timeout=10)
    with p.login(database="db") as c:
        wait_until(lambda: address(c) == V4[0], "it serves")
        net.swallow(V4[0])
        for _ in range(40):
            assert address(c) in V4[1:]
    assert host(p, V4[0])["state"] == "out"


# ---------------------------------------------------------------------------------------------- later

def two_holders(p, stack):
    """Clients with a transaction on each of the two hosts, by address."""
    clients = [stack.enter_context(p.login(database="db")) for _ in range(2)]
    for c in clients:
        c.query("begin")
    return {address(c): c for c in clients}


@pytest.mark.parametrize("what,text", [
    # It waits for an answer. The other timeout is for the case that the acknowledgement of its question got lost as well.
    ("tcp_keepidle=1 tcp_keepintvl=1 tcp_user_timeout=2000", "server conn crashed?"),
    ("tcp_user_timeout=1000", "server conn crashed?"),  # its question is not heard
    ("query_timeout=3", "query timeout")])
def test_r114_goes_silent_in_a_query(pooler, net, three, what, text):
    """Only those who asked it something are told; the others, and whoever comes, are served by the other host."""
    settings = dict(w.split("=") for w in what.split())
    p = pooler(V4[:2], "load_balance_hosts=least-conn", server_connect_timeout=100, query_wait_timeout=30,
               default_pool_size=4, **settings)
    with contextlib.ExitStack() as stack:
        by = two_holders(p, stack)
        asks, other = by[V4[0]], by[V4[1]]
        if "keepidle" in what:
            asks.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: three[0].backends("query like '%pg_sleep(600)' and state = 'active'"), "it is under way")
            net.swallow(V4[0])
        else:
            net.swallow(V4[0])
            asks.send(wire.query("select 1"))
        error = asks.fatal()
        assert text in error.text, error.fields
        assert address(other) == V4[1]
        other.query("commit")
        for _ in range(5):
            with p.login(database="db") as c:
                assert address(c) == V4[1]


def test_r114_goes_silent_while_idle(pooler, net):
    """Keepalive finds it before any client meets it."""
    p = pooler(V4[:2], "load_balance_hosts=least-conn", server_connect_timeout=100, query_wait_timeout=30,
               tcp_keepidle=1, tcp_keepintvl=1, tcp_keepcnt=2)
    with contextlib.ExitStack() as stack:
        for c in two_holders(p, stack).values():
            c.query("commit")
        net.swallow(V4[0])
        wait_until(lambda: {s["addr"] for s in p.show("SERVERS")} == {V4[1]}, "the dead host's server is closed")
        with p.login(database="db") as a, p.login(database="db") as b:
            for c in (a, b):
                c.query("begin")
                assert address(c) == V4[1]


def test_r114_packets_get_lost(pooler, net):
    """One in seven, each way and on all hosts: slow, and nothing fails."""
    for a in V4:
        net.lose_some(a)
    p = pooler(V4, "load_balance_hosts=random", server_lifetime=1, server_connect_timeout=100, query_wait_timeout=60)
    with clients_that_never_fail(p, "db", "select 1") as count:
        wait_until(lambda: count() > 150, "transactions are done")


# ---------------------------------------------------------------------------------------------- clients

@pytest.mark.parametrize("state", ["idle", "in a transaction", "in a long query", "with data to be sent"])
def test_r133_client_whose_cable_is_pulled(pooler, net, three, state):
    """Nothing says that it is gone. Keepalive or TCP_USER_TIMEOUT find it, its transaction ends, its place is free."""
    p = pooler([V4[1]], default_pool_size=1, max_client_conn=4, tcp_keepidle=1, tcp_keepintvl=1, tcp_keepcnt=2,
               tcp_user_timeout=2000)
    sock = net.socket()
    sock.bind((V4[0], 0))

    def mine():
        return [r for r in p.show("CLIENTS") if r["addr"] == V4[0]]
    with wire.Wire(p.port, sock=sock, rcvbuf=4096) as c, p.login(database="db") as other:
        c.login(database="db")
        c.query("create table if not exists pulled (a int)")
        if state == "in a transaction":
            c.query("begin")
            c.query("insert into pulled values (1)")
        elif state == "in a long query":
            c.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: three[1].sql("select 1 from pg_stat_activity where query like 'select pg_sleep%' "
                                            "and state = 'active'"), "it runs")
        elif state == "with data to be sent":
            c.send(wire.query("select repeat('x', 100000) from generate_series(1, 1000)"))
            c.recv()
        assert mine()
        net.swallow(V4[0])
        wait_until(lambda: not mine(), "it is found to be gone")
        # There is one server only: its place is free, and nothing of the transaction is left.
        assert other.value("select count(*) from pulled") == "0"
