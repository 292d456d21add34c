"""Chaos on the way to servers: 114 (a black hole in the middle of the TLS setup) and 165 of the reliability catalogue. Where
packets have to get lost, PostgreSQL and the pooler run in a network namespace (netns.py); else the server is a test's own."""
import contextlib
import resource
import socket
import threading

import pytest

import netns
import wire
from chaos import Load, nothing_is_left, times
from clusters import independent
from conftest import wait_until
from ledger import TABLE
from netns import net  # noqa: F401
from test_dns import dns, resolving  # noqa: F401
from test_hosts import address, host
from test_reliability_12 import at_work
from test_tls import certs, pg_tls  # noqa: F401

pytestmark = pytest.mark.ours
MISSING = netns.missing()
needs_network = pytest.mark.skipif(bool(MISSING), reason=str(MISSING))


# ---------------------------------------------------------------------------------------------- servers that stop talking

class Mute:
    """A server that says so much, and no more, to whoever asks for TLS; until it is healed, then it is PostgreSQL."""

    def __init__(self, port, says):
        self.says, self.back, self.asked, self.open = says, port, 0, []
        self.healed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                c = self.listener.accept()[0]
                self.open.append(c)
                threading.Thread(target=self.healthy if self.healed.is_set() else self.mute, args=(c,), daemon=True).start()

    def mute(self, c):
        with contextlib.suppress(OSError):
            c.recv(8, socket.MSG_WAITALL)
            self.asked += 1
            for part in self.says:
                c.sendall(part)
                c.recv(65536)  # what it is answered

    def healthy(self, c):
        with contextlib.suppress(OSError):
            d = socket.create_connection(("127.0.0.1", self.back))
            self.open.append(d)
            threading.Thread(target=self.copy, args=(d, c), daemon=True).start()
            self.copy(c, d)

    def copy(self, a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        for s in (self.listener, *self.open):
            s.close()


# Nothing; the promise of TLS; and half of what a server says next.
SAYS = {"nothing": [], "S": [b"S"], "half a hello": [b"S", b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03"]}


@pytest.fixture
def mute(pg_tls):  # noqa: F811
    made = []

    def make(says):
        made.append(Mute(pg_tls.port, SAYS[says]))
        return made[-1]
    yield make
    for m in made:
        m.close()


def row(p, port):
    return next(r for r in p.show("HOSTS") if r["database"] == "db" and r["port"] == str(port))


@pytest.mark.parametrize("policy", ["disable", "round-robin"])
@pytest.mark.parametrize("says", SAYS)
def test_r114_silent_in_tls_setup_is_passed_over(pooler, pg_tls, mute, says, policy):  # noqa: F811
    """Of two hosts the first goes silent before, in or behind its first word. A connection per transaction: whoever waited for
    server_connect_timeout would be told query_wait_timeout. It is remembered as out, and stays out as long as TLS does not come
    about, though it says S to each who asks; healed, it is used."""
    bad = mute(says)
    p = pooler(server_tls_sslmode="require", server_lifetime=0, server_connect_timeout=100, query_wait_timeout=20, databases={
        "db": f"host=127.0.0.1,127.0.0.1 port={bad.port},{pg_tls.port} dbname=p0 load_balance_hosts={policy}"})
    with at_work(p, clients=2):  # of another database
        for _ in range(6):
            with p.login(database="db") as c:
                assert c.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"
        out = row(p, bad.port)
        assert (out["state"], out["last_error"]) == ("out", "timeout expired"), out
        wait_until(lambda: bad.asked > 1, "it is asked in the background")
        for _ in range(3):
            with p.login(database="db") as c:
                assert c.value("select 1") == "1"
            assert row(p, bad.port)["state"] == "out"
        bad.healed.set()
        for c in bad.open:  # who waits there has waited in vain
            with contextlib.suppress(OSError):
                c.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: row(p, bad.port)["state"] != "out", "it is back")
        with p.login(database="db") as c:
            def used():
                c.query("begin")
                there = row(p, bad.port)["active"] == "1"
                return c.query("commit") and there
            wait_until(used, "it is used")


@pytest.mark.parametrize("says", SAYS)
def test_r114_silent_in_tls_setup_alone(pooler, pg_tls, mute, says):  # noqa: F811
    """Nobody else is there to be asked: connect_timeout is the limit, the client waits, and is served when it is healed."""
    bad = mute(says)
    p = pooler(server_tls_sslmode="require", server_connect_timeout=100, query_wait_timeout=100, server_login_retry="0.1",
               databases={"db": f"host=127.0.0.1 port={bad.port} dbname=p0 connect_timeout=1"})
    with at_work(p, clients=2), p.wire() as c:
        c.start(database="db")
        wait_until(lambda: row(p, bad.port)["last_error"] == "timeout expired", "it is given up")
        bad.healed.set()
        c.authenticate()
        assert c.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"
    assert "connect timeout" in p.log()


# ---------------------------------------------------------------------------------------------- packets that get lost

HOSTS = ["127.0.0.75", "127.0.0.76"]


@pytest.fixture(scope="module")
def the_net():
    net = netns.Network()
    yield net
    net.close()


@pytest.fixture(scope="module")
def two(the_net, certs):  # noqa: F811
    """They speak TLS, to those who ask for it."""
    one, _ = certs
    with independent(HOSTS, the_net.prefix) as servers:
        for s in servers:
            for name, value in (("ssl_cert_file", one.crt("pooler")), ("ssl_key_file", one.key("pooler")), ("ssl", "on")):
                s.sql(f"alter system set {name} = '{value}'")
            s.sql("select pg_reload_conf()")
            s.sql(TABLE)
            wait_until(lambda s=s: s.sql("show ssl")[0][0] == "on", "PostgreSQL speaks TLS")
        yield servers


@pytest.fixture
def inside(net, two, make_pooler):
    def make(hosts, more="", **settings):
        for s in two:
            s.sql("truncate ledger")
        p = make_pooler(databases={"db": f"host={','.join(hosts)} port={two[0].port} dbname=p0 {more}"}, **settings)
        p.prefix = net.prefix
        p.wire = lambda **kw: wire.Wire(p.port, unix=p.unix, **kw)
        return p.start()
    return make


@needs_network
@pytest.mark.one_engine
def test_r114_large_packets_get_lost(inside, net):
    """Small ones come through, as on a path whose largest packet nobody knows: TCP and SSLRequest work, what a server says in its
    handshake is too large."""
    net.narrow(HOSTS[0])
    p = inside(HOSTS, "load_balance_hosts=disable", server_tls_sslmode="require", server_lifetime=0, server_connect_timeout=100,
               query_wait_timeout=20)
    for _ in range(6):
        with p.login(database="db") as c:
            assert address(c) == HOSTS[1]
    assert (host(p, HOSTS[0])["state"], host(p, HOSTS[0])["last_error"]) == ("out", "timeout expired")
    net.heal()
    with p.login(database="db") as c:
        wait_until(lambda: address(c) == HOSTS[0], "it is used again")


@needs_network
@pytest.mark.one_engine
@pytest.mark.parametrize("tls", ["disable", "require"])
def test_r165_lost_packets(inside, net, two, tls):
    """One in seven, and now and then all of them for a moment: slow, and nobody is told anything."""
    p = inside(HOSTS[:1], server_tls_sslmode=tls, server_connect_timeout=100, query_wait_timeout=100, default_pool_size=4,
               server_lifetime=1)
    with nothing_is_left(p):
        with Load(p, "db") as load:
            load.goes_on()
            for _ in range(times(2)):
                net.lose_some(HOSTS[0])
                load.goes_on(30)
                net.heal()
                net.swallow(HOSTS[0])
                threading.Event().wait(0.3)
                net.heal()
                load.goes_on()
    load.settle(two[0])
    assert not load.refused(), load.refused()[:3]


# ---------------------------------------------------------------------------------------------- names and certificates

@pytest.fixture
def book(pg):
    pg.sql(TABLE)
    yield
    pg.sql("drop table ledger")


@pytest.mark.one_engine
def test_r165_name_server_in_trouble(resolving, dns, pg, book):  # noqa: F811
    """A connection per transaction, a lookup per connection: the name does not exist, cannot be found out, has no address, has
    others in another order, nobody answers. Who needs a server waits until there is one, and nobody is told anything."""
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(dns_max_ttl=0, default_pool_size=3, server_lifetime=0,
                  query_wait_timeout=100, client_login_timeout=100)
    with nothing_is_left(p):
        with Load(p, "db") as load:
            load.goes_on()
            for n in range(times(6)):
                dns.hosts = [{}, {"db.test": []}, {"db.test": ["127.0.0.2", "127.0.0.1"]}][n % 3]
                dns.servfail = {"db.test"} if n % 3 == 1 else set()
                if n % 3 == 2:
                    dns.silent = {"db.test"}
                threading.Event().wait(0.2)
                dns.silent, dns.servfail = set(), set()
                dns.hosts = dns.hosts if n % 3 == 2 else {"db.test": ["127.0.0.1"]}
                load.goes_on(10)
    load.settle(pg)
    assert not load.refused(), load.refused()[:3]


@pytest.mark.one_engine
def test_r34_the_servers_certificate_changes_under_load(pooler, pg_tls, certs, book):  # noqa: F811
    """Both authorities are trusted, each connection serves one transaction: whichever certificate the server shows, nobody notices.
    When only one is trusted any more, who meets the other one waits until the right one is back."""
    one, two = certs
    p = pooler(server_tls_sslmode="verify-full", server_tls_ca_file=one.crt("ca"), server_lifetime=0, default_pool_size=3,
               server_login_retry="0.1", query_wait_timeout=100)
    both = p.dir / "both.crt"
    both.write_text(one.crt("ca").read_text() + two.crt("ca").read_text())

    def trust(path):
        p.settings["server_tls_ca_file"] = path
        p.write_ini()
        p.admin("RELOAD")

    def show(ca):
        pg_tls.sql(f"alter system set ssl_cert_file = '{ca.crt('pooler')}'")
        pg_tls.sql(f"alter system set ssl_key_file = '{ca.key('pooler')}'")
        pg_tls.sql("select pg_reload_conf()")
    try:
        with nothing_is_left(p):
            with Load(p, "p0") as load:
                load.goes_on()
                trust(both)
                for n in range(times(4)):
                    show([two, one][n % 2])
                    load.goes_on()
                trust(one.crt("ca"))
                show(two)
                p.wait_log("certificate verify failed")
                show(one)
                load.goes_on()
        load.settle(pg_tls)
        assert not load.refused(), load.refused()[:3]
    finally:
        show(one)


@pytest.mark.one_engine
def test_r137_no_more_threads(pooler, pg):
    """The limit of the user or the container on threads is used up when the resolver wants its own, at the first name: who needs
    that waits, others do not notice; with room again it is found."""
    p = pooler(databases={"named": f"host=localhost port={pg.port} dbname=p0"}, server_login_retry="0.1", query_wait_timeout=100)
    limit = resource.prlimit(p.proc.pid, resource.RLIMIT_NPROC)
    resource.prlimit(p.proc.pid, resource.RLIMIT_NPROC, (1, limit[1]))
    with at_work(p, clients=2), p.wire() as c:
        c.start(database="named")
        p.wait_log("the resolver's thread cannot be started")
        resource.prlimit(p.proc.pid, resource.RLIMIT_NPROC, limit)
        c.authenticate()
        assert c.value("select 'found'") == "found"
