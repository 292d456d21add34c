"""auth_type = hba and peer: which line decides, what each method asks, maps, and RELOAD with good and bad files."""
import os
import pwd
from pathlib import Path

import psycopg
import pytest

from conftest import PASSWORD, code_is, scram_secret
from test_auth import login_error

ME = pwd.getpwuid(os.geteuid()).pw_name
NO_LINE = "no authentication method is found"
# The tests' own way in; theirs come first.
CONSOLE = "host pgbouncer all 127.0.0.1/32 trust\n"


class Rules:
    """A pooler with auth_type=hba; set() replaces its rules by RELOAD."""

    def __init__(self, p):
        self.p = p
        self.hba, self.ident = p.dir / "hba.conf", p.dir / "ident.conf"

    def write(self, rules, ident=None):
        self.hba.write_text(rules + "\n" + CONSOLE)
        if ident is not None:
            self.ident.write_text(ident)

    def set(self, rules, ident=None):
        self.write(rules, ident)
        self.p.admin("RELOAD")


@pytest.fixture
def rules(make_pooler):
    def start(text, ident="", userlist=None, only=None, **settings):
        p = make_pooler(auth_type="hba", userlist=userlist, **settings)
        p.userlist = only or p.userlist
        r = Rules(p)
        p.settings |= {"auth_hba_file": r.hba, "auth_ident_file": r.ident}
        r.write(text, ident)
        p.start()
        return r
    return start


def unix_login(p, user="alice", database="p0", password="", **params):
    return p.wire(unix=p.unix).login(user, database, password, **params)


def unix_error(p, user="alice", database="p0", password=""):
    with p.wire(unix=p.unix) as c:
        c.start(user, database)
        out = c.authenticate(password)
        assert out[-1].type == "E" and out[-1].fields["S"] == "FATAL"
        return out[-1]


def reload_error(p):
    with p.console() as c:
        (error,) = [m for m in c.query("RELOAD") if m.type == "E"]
    return error


def test_methods(rules):
    r = rules("host p0 alice 127.0.0.1/32 trust\nhost all bob 127.0.0.1/32 password\n"
              "host all s_md5 127.0.0.1/32 md5\nhost all s_scram 127.0.0.1/32 scram-sha-256\n"
              "host all carol 127.0.0.1/32 reject\n", userlist={"bob": PASSWORD})
    p = r.p
    for user, request in (("alice", 0), ("bob", 3), ("s_md5", 5), ("s_scram", 10)):
        with p.login(user, password=PASSWORD) as c:
            assert c.auth_seen[0] == request
            assert c.value("select current_user") == user
    error = login_error(p, "carol")
    assert error.text == "login rejected" and code_is(error.code, "28000")
    error = login_error(p, "alice", "p1")
    assert error.text == NO_LINE and code_is(error.code, "28000")
    assert login_error(p, "bob", password="x").text == "password authentication failed"
    assert login_error(p, "s_scram", password="x").text == "SASL authentication failed"


def test_md5_line_and_a_scram_secret(rules):
    r = rules("host all all 127.0.0.1/32 md5", userlist={"alice": scram_secret()})
    with r.p.login(password=PASSWORD) as c:
        assert c.auth_seen[0] == 10


def test_unknown_user(rules):
    r = rules("host p0 all all trust\nhost p1 all all scram-sha-256")
    assert login_error(r.p, "mallory").text == '"trust" authentication failed'
    assert login_error(r.p, "mallory", "p1", password="x").text == "SASL authentication failed"
    r.set("host all bob all trust")
    assert login_error(r.p, "mallory").text == NO_LINE  # no hint whether there is one


def test_local_is_the_unix_socket_only(rules):
    r = rules("local all alice trust\nhost all bob all trust\nhostssl all carol all trust\nhostnossl all stats all trust")
    unix_login(r.p).close()
    assert login_error(r.p).text == NO_LINE
    r.p.login("bob").close()
    assert unix_error(r.p, "bob").text == NO_LINE
    assert login_error(r.p, "carol").text == NO_LINE
    r.p.login("stats").close()


def test_addresses(rules):
    r = rules("host all alice 127.0.0.2/32 trust\nhost all bob 127.0.0.0 255.0.0.0 trust\nhost all carol ::1/128 trust")
    assert login_error(r.p).text == NO_LINE
    r.p.login("bob").close()
    assert login_error(r.p, "carol").text == NO_LINE


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text(),
                    reason="no IPv6 here")
def test_ipv6(rules):
    r = rules("host all alice ::1/128 trust", listen_addr="127.0.0.1, ::1")
    assert login_error(r.p).text == NO_LINE
    with psycopg.connect(host="::1", port=r.p.port, dbname="p0", user="alice", sslmode="disable") as c:
        assert c.execute("select current_user").fetchone() == ("alice",)


def test_included_names_and_sameuser(rules, make_pooler):
    r = rules("host @dbs @users all trust\nhost sameuser all all trust")
    (r.p.dir / "dbs").write_text("p0, nothing\n")
    (r.p.dir / "users").write_text("alice\nbob\n")
    r.p.databases["carol"] = f"{r.p.server} dbname=p1"
    r.p.write_ini()
    r.set("host @dbs @users all trust\nhost sameuser all all trust")
    r.p.login("alice").close()
    r.p.login("bob").close()
    assert login_error(r.p, "carol").text == NO_LINE
    with r.p.login("carol", "carol") as c:
        assert c.value("select current_database()") == "p1"


def test_names_are_those_that_the_client_said(rules):
    r = rules("host p0 alice all trust")
    r.p.databases["p0"] += " user=bob"
    r.p.write_ini()
    r.p.admin("RELOAD")
    with r.p.login("alice") as c:
        assert c.value("select current_user") == "bob"


# ---------------------------------------------------------------------------------------------- peer and cert

def test_peer(rules):
    r = rules("local all all peer\nhost all alice all peer", userlist={ME: ""})
    error = unix_error(r.p, "alice")
    assert error.text == "unix socket login rejected" and code_is(error.code, "28000")
    assert unix_error(r.p, "mallory").text == "unix socket login rejected"
    assert login_error(r.p).text == "unix socket login rejected"  # no such thing on TCP
    r.p.databases["p0"] += " user=bob"
    r.p.write_ini()
    r.p.admin("RELOAD")
    with unix_login(r.p, ME) as c:
        assert c.auth_seen == [0] and c.value("select current_user") == "bob"


def test_peer_with_a_map(rules):
    r = rules("local all all peer map=m", ident=f"m nobody-else carol\nm {ME} alice\nother {ME} bob\n")
    with unix_login(r.p, "alice") as c:
        assert c.value("select current_user") == "alice"
    for user in ("bob", "carol", "mallory"):
        assert unix_error(r.p, user).text == "unix socket login rejected"
    r.p.wait_log("ident map m cannot be matched")
    r.set("local all all peer map=m", f'm "{ME}" all')
    unix_login(r.p, "bob").close()
    assert unix_error(r.p, "mallory").text == "unix socket login rejected"  # all users that there are


@pytest.mark.ours
def test_auth_type_peer(make_pooler):
    p = make_pooler(auth_type="peer", userlist={ME: ""})
    p.databases["p0"] += " user=bob"
    p.start()
    with unix_login(p, ME) as c:
        assert c.value("select current_user") == "bob"
    assert unix_error(p, "alice").text == "unix socket login rejected"
    assert login_error(p, ME).text == "unix socket login rejected"


def test_cert_needs_tls(rules):
    r = rules("host all all all cert\nlocal all all cert map=m", ident="m x all\n")
    for error in (login_error(r.p), unix_error(r.p)):
        assert error.text == "certificate authentication failed" and code_is(error.code, "28000")
    r.p.wait_log("TLS connection required")


def test_auth_query_and_rules(rules):
    p = rules("host all s_scram all scram-sha-256\nhost all bob all reject\nhost all s_md5 all reject",
              auth_user="bob", only={"bob": "", "admin": ""}).p
    with p.login("s_scram", password=PASSWORD) as c:
        assert c.value("select current_user") == "s_scram"
    assert login_error(p, "s_md5", password=PASSWORD).text == "login rejected"
    assert login_error(p, "nobody-here").text == "no such user"


# ---------------------------------------------------------------------------------------------- files

def test_reload(rules):
    r = rules("host p0 alice all trust")
    with r.p.login() as c:
        r.set("host p0 alice all reject")
        assert login_error(r.p).text == "login rejected"
        assert c.value("select 1") == "1"  # who is in stays in
        r.set("host p0 alice all trust")
        r.p.login().close()


@pytest.mark.ours
@pytest.mark.parametrize("bad", ["host p0 bob all trust\nhost p0 alice all nonsense\nhost p0 alice all trust",
                                 "local all all peer map=not_there", "host @missing all all trust"])
def test_reload_of_a_bad_file_keeps_the_rules(rules, bad):
    r = rules("host p0 alice all reject\nhost p0 carol all trust")
    r.write(bad)
    assert reload_error(r.p).code == "F0000"
    r.p.wait_log("could not parse hba config line")
    assert login_error(r.p, "alice").text == "login rejected"
    assert login_error(r.p, "bob").text == NO_LINE
    r.p.login("carol").close()
    r.set("host p0 bob all trust")
    r.p.login("bob").close()
    assert login_error(r.p, "carol").text == NO_LINE


@pytest.mark.ours
def test_reload_without_a_file_keeps_the_rules(rules):
    r = rules("host p0 alice all trust")
    r.hba.unlink()
    assert reload_error(r.p).code == "F0000"
    r.p.wait_log("could not open hba config file")
    r.p.login().close()
    r.write("host p0 alice all trust")
    r.ident.unlink()
    assert reload_error(r.p).code == "F0000"
    r.p.wait_log("could not open ident config file")
    r.p.login().close()


def test_bad_line_at_start_is_skipped(rules):
    r = rules("total nonsense\nhost p0 alice all trust\nhost p0 bob all trust extra")
    r.p.wait_log("could not parse hba config line 1")
    r.p.wait_log("could not parse hba config line 3")
    r.p.login().close()
    assert login_error(r.p, "bob").text == NO_LINE


def test_missing_file_at_start_rejects_everybody(make_pooler):
    p = make_pooler(auth_type="hba")
    p.settings["auth_hba_file"] = p.dir / "not_there"
    p.start()
    assert login_error(p).text == NO_LINE
    assert login_error(p, "admin", "pgbouncer").text == NO_LINE
    p.wait_log("could not open hba config file")


def test_switching_by_reload(rules):
    r = rules("host p0 alice all reject")
    p = r.p
    for _ in range(5):
        p.settings["auth_type"] = "trust"
        p.write_ini()
        p.admin("RELOAD")
        p.login().close()
        p.settings["auth_type"] = "hba"
        p.write_ini()
        p.admin("RELOAD")
        assert login_error(p).text == "login rejected"


def test_own_user_reaches_the_console_whatever_the_rules_say(rules):
    r = rules("host p0 alice all trust")
    with r.p.wire(unix=r.p.unix) as c:
        c.login("pgbouncer", "pgbouncer")
        assert c.query("SHOW VERSION")
