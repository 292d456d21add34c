"""Section 10 of the reliability catalogue: DNS. See test_dns.py, too, and src/net/resolver_test.cc for what name servers
may answer."""
import pytest

import wire
from conftest import wait_until
from test_dns import dns, dns_hosts, lists, pid, resolving  # noqa: F401
from test_reliability_12 import at_work

pytestmark = [pytest.mark.ours, pytest.mark.one_engine]


def test_r121_lookup_fails_while_sessions_live(resolving, dns):  # noqa: F811
    """NXDOMAIN, SERVFAIL, no addresses: who has a server keeps it, who needs one waits, a login is told in the end; the
    negative answer is forgotten after dns_nxdomain_ttl."""
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(dns_max_ttl=0, default_pool_size=2, client_login_timeout=2)
    with p.login(database="db") as a, p.login(database="db") as b:
        a.query("begin")
        old = pid(a)
        for failure in ("nxdomain", "servfail", "nothing"):
            dns.hosts = {} if failure == "nxdomain" else {"db.test": []}
            dns.servfail = {"db.test"} if failure == "servfail" else set()
            said = p.log().count("closing because: server DNS lookup failed")
            b.send(wire.query("select pg_backend_pid()"))
            wait_until(lambda: p.log().count("closing because: server DNS lookup failed") > said, f"{failure} is said")
            assert pid(a) == old
            dns.hosts, dns.servfail = {"db.test": ["127.0.0.1"]}, set()
            assert [m.row for m in b.until() if m.type == "D"] != [[old]]
            p.admin("RECONNECT db")  # only the idle one goes
        assert pid(a) == old and a.query("commit")[0].tag == "COMMIT"
        dns.hosts = {}
        p.admin("RECONNECT db")
    with p.wire() as cold:  # a name that never was: the login ends in time, too
        p.databases["never"] = "host=never.test"
        p.write_ini()
        p.admin("RELOAD")
        cold.start(database="never")
        assert cold.fatal().text.startswith("client_login_timeout")


def test_r122_rotating_answers_cause_no_churn(resolving, dns, pg):  # noqa: F811
    """Three addresses in another order with each answer, looked up anew each time: nothing is closed for it."""
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    dns.hosts = {"db.test": addresses}
    p = resolving(dns_max_ttl=0, default_pool_size=4)
    with at_work(p, clients=3, database="db"):
        before = set()
        for i in range(7):
            dns.hosts = {"db.test": addresses[i % 3:] + addresses[:i % 3]}
            with p.login("bob", "db") as c:
                c.value("select 1")
            assert all(r["close_needed"] == "0" for r in p.show("SERVERS"))
            pids = set(pg.backends("usename = 'alice'"))
            assert before <= pids
            before = pids
            pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'bob'")
            wait_until(lambda: not pg.backends("usename = 'bob'"), "the next one has to be looked up")
        assert dns.asked["db.test", 1] >= 7


@pytest.mark.parametrize("ttl", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_r123_odd_ttls(resolving, dns, ttl):  # noqa: F811
    dns.hosts, dns.ttl = {"db.test": ["127.0.0.1", "127.0.0.2"]}, ttl
    p = resolving(dns_max_ttl=30)
    with p.login(database="db") as c:
        assert c.value("select 1") == "1"
        assert 0 <= int(dns_hosts(p)["db.test"]["ttl"]) <= 30
        assert dns_hosts(p)["db.test"]["addrs"] == "127.0.0.1:0,127.0.0.2:0"


@pytest.mark.workers(1, 3)
def test_r124_logins_end_in_time_though_the_resolver_is_silent(resolving, dns):  # noqa: F811
    """200 logins on 20 names without any answer: each ends at client_login_timeout; the others do not notice."""
    names = [f"slow{i}.test" for i in range(20)]
    dns.silent = set(names)
    dns.hosts = {"db.test": ["127.0.0.1"]}
    p = resolving(*names, options="timeout:30 attempts:1", client_login_timeout=1)
    with at_work(p, clients=2), at_work(p, clients=1, database="db"):
        clients = [p.wire().start(database=names[i % 20]) for i in range(200)]
        for c in clients:
            assert c.fatal().text.startswith("client_login_timeout")
        assert max(dns.asked[n, 1] for n in names) == 1
    assert lists(p)["dns_queries"] <= 20 and p.show("LISTS")[6]["items"] == "1"
