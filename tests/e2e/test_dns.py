"""Names of servers: moved, gone and back, slow; what the console shows of it."""
import re

import pytest

import wire
from conftest import EXE, wait_until
from dns_server import A, Dns

pytestmark = pytest.mark.ours  # PgBouncer cannot be told the port of a name server


@pytest.fixture
def dns():
    server = Dns()
    yield server
    server.close()


@pytest.fixture
def resolving(make_pooler, pg, dns):
    """A started pooler that asks `dns`. db.test and the names given are hosts of databases of the same name (a list: _ for each comma)."""
    def make(*hosts, options="timeout:1 attempts:1", **settings):
        p = make_pooler(server_login_retry="0.2", dns_nxdomain_ttl="0.2", **settings)
        conf = p.dir / "resolv.conf"
        conf.write_text(f"nameserver 127.0.0.1:{dns.port}\noptions {options}\n")
        p.settings["resolv_conf"] = conf
        p.extra_env["CARES_HOSTS"] = str(p.dir / "hosts")
        (p.dir / "hosts").write_text("127.0.0.1 filed.test\n")
        p.databases["db"] = f"host=db.test port={pg.port} dbname=p0"
        for host in hosts:
            p.databases[host.replace(",", "_")] = f"host={host} port={pg.port} dbname=p0"
        return p.start()
    return make


def server_address(c):
    return c.value("select host(inet_server_addr())")


def pid(c):
    return c.value("select pg_backend_pid()")


def dns_hosts(p):
    return {r["hostname"]: r for r in p.show("DNS_HOSTS")}


def lists(p):
    return {r["list"]: int(r["items"]) for r in p.show("LISTS")}


def test_console_columns(resolving, dns, pg):
    dns.hosts = {"db.test": ["127.0.0.2", "127.0.0.1"]}
    dns.ttl = 3600
    p = resolving("filed.test", dns_max_ttl=100)
    with p.console() as console:
        out = console.query("SHOW DNS_HOSTS")
        assert out[0].columns == [("hostname", 25), ("ttl", 20), ("addrs", 25)]
        out = console.query("SHOW DNS_ZONES")
        assert out[0].columns == [("zonename", 25), ("serial", 20), ("count", 23)]
    assert dns_hosts(p) == {} and p.show("DNS_ZONES") == []
    with p.login(database="db") as c, p.login(database="filed.test") as d, p.login() as literal:
        assert [x.value("select 1") for x in (c, d, literal)] == ["1"] * 3
    rows = dns_hosts(p)
    assert list(rows) == ["db.test", "filed.test"]
    assert rows["db.test"]["addrs"] == "127.0.0.1:0,127.0.0.2:0"
    assert rows["filed.test"]["addrs"] == "127.0.0.1:0"
    assert all(0 < int(r["ttl"]) <= 100 for r in rows.values())
    assert p.show("DNS_ZONES") == [{"zonename": "test", "serial": "0", "count": "2"}]
    items = lists(p)
    assert (items["dns_names"], items["dns_zones"], items["dns_queries"], items["dns_pending"]) == (2, 1, 0, 0)
    assert ("filed.test", A) not in dns.asked
    assert p.run(EXE, "-V").stdout.splitlines()[2].startswith("adns: c-ares ")


@pytest.mark.workers(1, 3)
def test_host_moves(resolving, dns):
    """New connections go to the new address; those to the old one end when they are free, not before."""
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(dns_max_ttl=0, default_pool_size=4)
    with p.login(database="db") as a, p.login(database="db") as b:
        a.query("begin")
        assert server_address(a) == "127.0.0.1"
        old = pid(a)
        dns.hosts = {"db.test": ["127.0.0.2"]}
        b.query("begin")
        assert server_address(b) == "127.0.0.2"
        wait_until(lambda: any(r["close_needed"] == "1" for r in p.show("SERVERS")), "the old server is marked")
        assert server_address(a) == "127.0.0.1" and pid(a) == old  # its transaction goes on
        a.query("commit")
        b.query("commit")
        for _ in range(5):
            assert server_address(a) == "127.0.0.2"
        assert all((r["addr"], r["close_needed"]) == ("127.0.0.2", "0") for r in p.show("SERVERS"))


@pytest.mark.workers(1, 3)
def test_idle_servers_of_a_moved_host_are_closed(resolving, dns, pg):
    """Found by the zone's serial: nobody has to open a connection."""
    dns.hosts, dns.serials = {"db.test": ["127.0.0.1"]}, {"test": 7}
    dns.ttl = 3600
    p = resolving(dns_max_ttl=3600, dns_zone_check_period="0.1")
    with p.login(database="db") as a:
        assert server_address(a) == "127.0.0.1"
        wait_until(lambda: p.show("DNS_ZONES")[0]["serial"] == "7", "the serial is known")
        pids = pg.backends("datname = 'p0'")
        assert pids
        dns.hosts, dns.serials = {"db.test": ["127.0.0.2"]}, {"test": 8}
        p.wait_log("zone 'test' serial changed: old=7 new=8")
        wait_until(lambda: not set(pids) & set(pg.backends()), "the idle server is closed")
        assert server_address(a) == "127.0.0.2"
        assert dns_hosts(p)["db.test"]["addrs"] == "127.0.0.2:0"


def test_reordered_answer_changes_nothing(resolving, dns):
    dns.hosts = {"db.test": ["127.0.0.2", "127.0.0.1"]}
    p = resolving(dns_max_ttl=0, default_pool_size=2)
    with p.login(database="db") as a, p.login(database="db") as b:
        a.query("begin")
        first = pid(a)
        dns.hosts = {"db.test": ["127.0.0.1", "127.0.0.2", "127.0.0.3"]}
        b.query("begin")
        assert {server_address(a), server_address(b)} == {"127.0.0.1", "127.0.0.2"}
        assert dns_hosts(p)["db.test"]["addrs"] == "127.0.0.1:0,127.0.0.2:0,127.0.0.3:0"
        assert all(r["close_needed"] == "0" for r in p.show("SERVERS"))
        assert pid(a) == first


def test_host_in_a_list_moves(resolving, dns, pg):
    dns.hosts, dns.serials = {"db.test": ["127.0.0.1"], "two.test": ["127.0.0.1"]}, {"test": 1}
    p = resolving("db.test,two.test", dns_max_ttl=3600, dns_zone_check_period="0.1", default_pool_size=2)
    with p.login(database="db.test_two.test") as a, p.login(database="db.test_two.test") as b:
        a.query("begin")
        b.query("begin")
        assert {server_address(a), server_address(b)} == {"127.0.0.1"}
        assert list(dns_hosts(p)) == ["db.test", "two.test"]
        dns.hosts["two.test"] = ["127.0.0.2"]
        dns.serials = {"test": 2}
        wait_until(lambda: [r["close_needed"] for r in p.show("SERVERS")].count("1") == 1, "one of the two is marked")
        a.query("commit")
        b.query("commit")


def test_host_goes_away_and_comes_back(resolving, dns, pg):
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(dns_max_ttl=0)
    with p.login(database="db") as a:
        old = pid(a)
        dns.hosts = {}
        a.query("begin")
        with p.login(database="db") as b:
            b.send(wire.query("select pg_backend_pid()"))
            p.wait_log("server DNS lookup failed")
            assert re.search(r"WARNING .*DNS lookup failed: db\.test: result=\d+", p.log())
            assert pid(a) == old  # what is connected goes on
            wait_until(lambda: dns_hosts(p)["db.test"]["addrs"] == "", "no addresses are shown")
            dns.hosts = {"db.test": ["127.0.0.1"]}
            assert b.until("Z")[1].row[0] != old
            a.query("commit")
            assert pid(a)
        assert all(r["close_needed"] == "0" for r in p.show("SERVERS"))


@pytest.mark.workers(1, 3)
def test_silent_resolver(resolving, dns):
    """1,000 clients on 50 names that nobody answers: one question per name, and the others do not notice."""
    names = [f"slow{i}.test" for i in range(50)]
    dns.silent = set(names)
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(*names, options="timeout:30 attempts:1", max_client_conn=2000, server_connect_timeout=60)
    clients = [p.wire() for _ in range(1000)]
    for i, c in enumerate(clients):
        c.start(database=names[i % 50])
    wait_until(lambda: lists(p)["dns_queries"] == 50, "all names are asked for")
    with p.login() as literal, p.login(database="db") as named:
        for _ in range(20):
            assert literal.value("select 1") == named.value("select 1") == "1"
    assert max(dns.asked[n, A] for n in names) == 1
    assert lists(p)["dns_queries"] == 50
    dns.silent = set()
    for c in clients:
        c.close()


def test_silent_resolver_times_out(resolving, dns):
    dns.silent = {"db.test"}
    p = resolving(query_wait_timeout=2)
    with p.wire() as c:
        c.start(database="db")
        p.wait_log("server DNS lookup failed")
        dns.silent, dns.hosts = set(), {"db.test": ["127.0.0.1"]}
    with p.login(database="db") as c:
        assert c.value("select 1") == "1"


def test_hosts_file_edited(resolving, dns):
    p = resolving("filed.test", dns_max_ttl=0, server_lifetime=0)
    with p.login(database="filed.test") as c:
        assert server_address(c) == "127.0.0.1"
        (p.dir / "hosts").write_text("127.0.0.2 filed.test\n")
        wait_until(lambda: server_address(c) == "127.0.0.2", "the new line counts")


def test_ttl_by_set_and_reload(resolving, dns):
    dns.hosts = {"db.test": ["127.0.0.1"]}
    dns.ttl = 3600
    p = resolving(dns_max_ttl=0, server_lifetime=0)
    with p.login(database="db") as c:
        c.value("select 1")
        assert dns_hosts(p)["db.test"]["ttl"] == "0"
        p.admin("SET dns_max_ttl = 500")
        wait_until(lambda: c.value("select 1") and int(dns_hosts(p)["db.test"]["ttl"]) > 400, "SET counts")
        assert int(dns_hosts(p)["db.test"]["ttl"]) <= 500
        (p.dir / "resolv.conf").unlink()
        p.admin("RELOAD")
        assert int(dns_hosts(p)["db.test"]["ttl"]) > 400  # RELOAD forgets no answer


def test_missing_resolv_conf_is_said(make_pooler):
    p = make_pooler(resolv_conf="/nonexistent/resolv.conf").start()
    assert "WARNING cannot read resolv_conf /nonexistent/resolv.conf: No such file" in p.log()


def test_list_of_a_socket_directory_and_a_literal(make_pooler, pg):
    """Each element is what it is, whatever the first one is; neither is a name."""
    p = make_pooler(default_pool_size=2)
    p.databases["mixed"] = f"host={pg.dir},127.0.0.1 port={pg.port} dbname=p0"
    p.databases["mixed2"] = f"host=127.0.0.1,{pg.dir} port={pg.port} dbname=p0"
    p.start()
    for database in ("mixed", "mixed2"):
        with p.login(database=database) as a, p.login(database=database) as b:
            a.query("begin")
            b.query("begin")
            assert {server_address(a), server_address(b)} == {None, "127.0.0.1"}
    assert dns_hosts(p) == {}
