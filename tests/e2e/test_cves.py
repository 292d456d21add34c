"""One attack per CVE that the reliability catalogue names: PgBouncer's, and Odyssey's where they could be ours.

Each test is the attack, not the mend: a client, a server or somebody on the wire who does what the CVE tells of, and a
bystander whose session must not notice.
"""
import base64
import contextlib
import socket
import struct
import threading
import time

import psycopg
import pytest

import wire
from conftest import PASSWORD, code_is
from fakes import DONE, LOGIN, OK, READY, Scripted, bystander, row, with_fake
from test_auth import login_error
from test_auth_query import NO_USER, TROUBLE, lookup, role  # noqa: F401
from test_tls import SSL_PACKET, SecureWire, certs, pg_tls, tls_pooler  # noqa: F401
from wire import cstr, msg, query, startup_packet


def secure_login(p, *args, **kw):
    return SecureWire(p.port).login(*args, **kw)


# ---------------------------------------------------------------------------------------------- CVE-2012-4575

NAMES = {"63": "n" * 63, "64": "n" * 64, "65": "n" * 65, "127": "n" * 127, "128": "n" * 128, "255": "n" * 255,
         "1000": "n" * 1000, "9000": "n" * 9000, "format": "%n%s%x" * 20, "quotes": "'\"\\" * 40,
         "lines": "a\n[pgbouncer]\nadmin_users=mallory\n" * 3, "blank": " " * 80, "utf8": "ü" * 63}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_cve_2012_4575_long_database_name_from_the_network(tls_pooler, pg, tls):
    """With an entry `*` the name of a database comes from a stranger. A long one ended the process."""
    p = tls_pooler(databases={"*": f"host=127.0.0.1 port={pg.port}"})
    with bystander(p):
        for name in NAMES.values():
            with SecureWire(p.port) if tls else p.wire() as c:
                c.start("alice", name)
                error = c.authenticate()[-1]
                assert error.type == "E" and error.fields["S"] == "FATAL", error
        # Whole or not at all: no name was cut down to another one, and none became a line of anything else.
        known = {r["name"] for r in p.show("DATABASES")}
        assert known <= {"p0", "p1", "pgbouncer", *NAMES.values()}, known
        assert max(len(n.encode()) for n in known) <= 63
        assert not any(line.startswith(("[pgbouncer]", "admin_users")) for line in p.log().splitlines())


# ---------------------------------------------------------------------------------------------- CVE-2015-6817

@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256", "trust", "hba"])
def test_cve_2015_6817_unknown_user_does_not_become_auth_user(lookup, certs, auth_type, tls):  # noqa: F811
    """auth_user looks names up. Whoever came with a name that nobody has was let in as auth_user."""
    one, _ = certs
    p = lookup("plain", client_tls_sslmode="prefer", client_tls_key_file=one.key("pooler"),
               client_tls_cert_file=one.crt("pooler"))
    p.userlist["bob"] = "of auth_user"
    hba = p.dir / "hba"
    hba.write_text("host pgbouncer all 127.0.0.1/32 password\nhost all all 127.0.0.1/32 md5\n")
    p.settings |= {"auth_type": auth_type, "auth_hba_file": hba}
    p.write_ini()
    p.admin("RELOAD")
    for name in ("nobody_here", "bob ", "BOB", "bo", "bobby"):
        for password in ("", "of auth_user", PASSWORD, "nobody_here"):
            with SecureWire(p.port) if tls else p.wire() as c:
                c.start(name)
                error = c.authenticate(password)[-1]
                assert error.type == "E" and error.text == NO_USER and code_is(error.code, "28P01"), (name, password)
                assert c.at_eof()
    clients = [r for r in p.show("CLIENTS") if r["database"] == "p0"]
    assert clients == []
    assert {r["user"] for r in p.show("POOLS") if r["database"] == "p0"} == {"bob"}


# ---------------------------------------------------------------------------------------------- CVE-2021-3935, 43766

class Middle:
    """Somebody on the wire between client and pooler, who cannot read TLS but may say something of his own first."""

    def __init__(self, port, evil, when):
        self.port, self.evil, self.when = port, evil, when
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = self.listener.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self.serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def serve(self):
        with contextlib.suppress(OSError), self.listener.accept()[0] as victim, \
                socket.create_connection(("127.0.0.1", self.port)) as pooler:
            pooler.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = victim.recv(8, socket.MSG_WAITALL)
            if self.when == "with the request":
                pooler.sendall(request + self.evil)
                victim.sendall(pooler.recv(1))
            else:
                pooler.sendall(request)
                victim.sendall(pooler.recv(1))
                hello = victim.recv(65536)
                if self.when == "before the hello":
                    pooler.sendall(self.evil + hello)
                elif self.when == "before the hello, alone":
                    pooler.sendall(self.evil)
                    time.sleep(0.1)
                    pooler.sendall(hello)
                else:  # with the hello
                    pooler.sendall(hello + self.evil)
            threading.Thread(target=self.pump, args=(victim, pooler), daemon=True).start()
            self.pump(pooler, victim)

    @staticmethod
    def pump(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)


WHEN = ["with the request", "before the hello", "before the hello, alone", "with the hello"]


def inject_at_the_client(tls_pooler, pg, certs, when, auth_type):  # noqa: F811
    one, _ = certs
    pg.sql("drop table if exists injected; create table injected (who text)")
    p = tls_pooler("verify-full" if auth_type == "cert" else "prefer", auth_type=auth_type)
    evil = startup_packet({"user": "alice", "database": "p0"}) + query("insert into injected values ('mallory')")
    with Middle(p.port, evil, when) as middle:
        with pytest.raises((psycopg.OperationalError, OSError)):
            psycopg.connect(host="127.0.0.1", port=middle.own, dbname="p0", user="alice", autocommit=True,
                            sslmode="require", sslcert=one.crt("alice"), sslkey=one.key("alice"), sslrootcert="/none",
                            gssencmode="disable", connect_timeout=20)
    # The same road works when nobody says anything on it: what was refused above is the injection.
    with psycopg.connect(host="127.0.0.1", port=p.port, dbname="p0", user="alice", autocommit=True, sslmode="require",
                         sslcert=one.crt("alice"), sslkey=one.key("alice"), sslrootcert="/none",
                         gssencmode="disable") as c:
        assert c.execute("select current_user::text").fetchone() == ("alice",)
        assert c.execute("select count(*) from injected").fetchone() == (0,)
    return p


@pytest.mark.parametrize("when", WHEN)
def test_cve_2021_3935_clear_text_ahead_of_a_clients_tls(tls_pooler, pg, certs, when):  # noqa: F811
    """auth_type=cert asks no question after the handshake: SQL that came before it was run as the victim."""
    p = inject_at_the_client(tls_pooler, pg, certs, when, "cert")
    if when == "with the request":
        p.wait_log("received unencrypted data after SSL request")


@pytest.mark.parametrize("when", WHEN)
def test_cve_2021_43766_odyssey_clear_text_ahead_of_a_clients_tls(tls_pooler, pg, certs, when):  # noqa: F811
    """The same hole in Odyssey; here with auth_type=trust, and with GSS in place of TLS."""
    p = inject_at_the_client(tls_pooler, pg, certs, when, "trust")
    evil = startup_packet({"user": "alice", "database": "p0"}) + query("insert into injected values ('mallory')")
    with p.wire() as c:
        c.send(struct.pack("!II", 8, wire.GSSENC_REQUEST) + SSL_PACKET + evil)
        with contextlib.suppress(wire.Closed):
            c.until_closed()
    assert pg.sql("select count(*) from injected") == [(0,)]


# ---------------------------------------------------------------------------------------------- CVE-2021-43767

class InFront:
    """Stands in front of PostgreSQL: `serve(pooler)` in a thread for each connection that the pooler makes."""

    def __init__(self, pg):
        self.pg = pg
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()


class Liar(InFront):
    """In front of a TLS server: says yes to TLS, and more in the clear, before the true server has said a word."""

    def __init__(self, pg, evil, apart):
        self.evil, self.apart = evil, apart
        self.tries = 0
        super().__init__(pg)

    def serve(self, pooler):
        with contextlib.suppress(OSError), pooler, socket.create_connection(("127.0.0.1", self.pg.port)) as server:
            self.tries += 1
            server.sendall(pooler.recv(8, socket.MSG_WAITALL))
            yes = server.recv(1)
            if self.apart:
                pooler.sendall(yes)
                hello = pooler.recv(65536)
                pooler.sendall(self.evil)
                server.sendall(hello)
            else:
                pooler.sendall(yes + self.evil)
            threading.Thread(target=Middle.pump, args=(pooler, server), daemon=True).start()
            Middle.pump(server, pooler)


@pytest.mark.parametrize("apart", [False, True], ids=["with the answer", "after our hello"])
@pytest.mark.parametrize("evil", [LOGIN + row("evil") + DONE, msg("E", b"SFATAL\0C28P01\0Mevil\0\0"), b"\0"],
                         ids=["login and rows", "error", "zero"])
def test_cve_2021_43767_odyssey_clear_text_ahead_of_a_servers_tls(make_pooler, pg_tls, certs, evil, apart):  # noqa: F811
    """Answers that somebody on the wire gives before the server's handshake were taken for the server's own."""
    one, _ = certs
    with Liar(pg_tls, evil, apart) as liar:
        p = make_pooler(server_tls_sslmode="verify-full", server_tls_ca_file=one.crt("ca"), query_wait_timeout=2,
                        databases={"x": f"host=127.0.0.1 port={liar.port} dbname=p0"}).start()
        with bystander(p), p.wire() as c:
            c.start(database="x")
            error = c.fatal()
            assert error.text == "query_wait_timeout", error.fields  # nothing of the liar's
        assert liar.tries >= 1
        assert "evil" not in p.log()
        assert [r for r in p.show("SERVERS") if r["database"] == "x" and r["state"] in ("idle", "active")] == []


# ---------------------------------------------------------------------------------------------- CVE-2025-2291

@pytest.mark.parametrize("auth_type, encryption", [("plain", "scram-sha-256"), ("md5", "md5"), ("md5", "scram-sha-256"),
                                                   ("scram-sha-256", "scram-sha-256")])
def test_cve_2025_2291_expired_password(lookup, role, pg, auth_type, encryption):  # noqa: F811
    """The default auth_query did not look at VALID UNTIL: a password that PostgreSQL refuses was good here."""
    role("expired", encryption=encryption, more="valid until '2001-01-01'")
    role("expiring", encryption=encryption)
    p = lookup(auth_type)
    assert p.show("CONFIG") and "valid" in {r["key"]: r["value"] for r in p.show("CONFIG")}["auth_query"]
    wrong = {login_error(p, "expired", password=w).text for w in (PASSWORD, "wrong")}
    assert wrong <= {"password authentication failed", "SASL authentication failed"}  # as for a wrong password
    # It expires while its secret, and a server connection that it opened, are still here.
    with p.login("expiring", password=PASSWORD) as c:
        assert c.value("select current_user") == "expiring"
        assert p.pool("p0", "expiring")["sv_idle"] == 1
        pg.sql("alter role expiring valid until '2001-01-01'")
        assert login_error(p, "expiring", password=PASSWORD).text in wrong
        assert c.value("select 'who is in stays in'") == "who is in stays in"
    for _ in range(3):  # every worker
        assert login_error(p, "expiring", password=PASSWORD).text in wrong
    pg.sql("alter role expiring valid until 'infinity'")
    p.login("expiring", password=PASSWORD).close()


# ---------------------------------------------------------------------------------------------- CVE-2025-12819

EVIL = """
create schema trap;
create table trap.sprung (who text);
grant all on schema trap to public;
create function trap.spring(timestamptz, timestamptz) returns bool language plpgsql as $$
  begin insert into trap.sprung values (session_user); return false; end $$;
create operator trap.< (leftarg = timestamptz, rightarg = timestamptz, function = trap.spring);
create view trap.pg_authid as select 'victim'::name as rolname, 'mine'::text as rolpassword, true as rolcanlogin,
  null::timestamptz as rolvaliduntil;
"""


class Reporting(InFront):
    """Reports search_path at login, as PostgreSQL 18 and Citus do."""

    def serve(self, pooler):
        with contextlib.suppress(OSError), pooler, socket.create_connection(("127.0.0.1", self.pg.port)) as server:
            threading.Thread(target=Middle.pump, args=(pooler, server), daemon=True).start()
            login = b""
            while not login.endswith(READY):
                login += server.recv(65536) or READY
            pooler.sendall(login[:-len(READY)] + msg("S", b'search_path\0"$user", public\0') + READY)
            Middle.pump(server, pooler)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_cve_2025_12819_search_path_of_a_stranger(lookup, role, pg, certs, tls):  # noqa: F811
    """search_path is tracked, and auth_query names its tables and operators without a schema: a stranger's startup
    packet decided which ones those were, and so what ran as auth_user."""
    one, _ = certs
    pg.sql("drop schema if exists trap cascade;" + EVIL)
    role("victim", more="valid until '2100-01-01'")
    path = "trap, pg_catalog"
    try:
        # The trap is a good one: whoever has that path falls into it.
        with pg.connect(user="bob", options="-c search_path=trap,pg_catalog") as c:
            assert c.execute("select rolpassword from pg_authid").fetchone() == ("mine",)
            c.execute("select now() < now()")
            assert c.execute("delete from trap.sprung").rowcount == 1
        with Reporting(pg) as front:
            p = lookup("plain", track_extra_parameters="search_path, IntervalStyle", client_tls_sslmode="prefer",
                       client_tls_key_file=one.key("pooler"), client_tls_cert_file=one.crt("pooler"),
                       databases={"p0": f"host=127.0.0.1 port={front.port}"}, server_tls_sslmode="disable")
            for params in ({"search_path": path}, {"SEARCH_PATH": path}, {"options": "-c search_path=trap,pg_catalog"},
                           {"options": "--search_path=trap,pg_catalog"}, {"options": "-csearch_path=trap,pg_catalog"}):
                for password in ("mine", PASSWORD):
                    with SecureWire(p.port) if tls else p.wire() as c:
                        c.start("victim", **params)
                        last = c.authenticate(password)[-1]
                        assert (last.type == "Z") == (password == PASSWORD) or last.text.startswith("unsupported"), params
            assert pg.sql("select * from trap.sprung") == []
            with p.login("victim", password=PASSWORD, search_path=path) as c:  # after the login it is one's own affair
                assert c.value("show search_path") == path
            assert login_error(p, "victim", password="mine").text == "password authentication failed"
    finally:
        pg.sql("drop schema trap cascade")


# ---------------------------------------------------------------------------------------------- CVE-2026-6664

LENGTHS = [-1, -2, -4, -5, -9, -100, -2**31, -2**31 + 1, 2**31 - 1, 2**31 - 5, 0, 1, 9, 11, 100, 65536]
# What stands behind the type and length of a SASLInitialResponse, in ways that are none.
SHAPES = [b"", b"\0", b"SCRAM-SHA-256", b"SCRAM-SHA-256\0", b"SCRAM-SHA-256\0\0", b"SCRAM-SHA-256\0\0\0\0",
          b"SCRAM-SHA-256\0\x7f\xff\xff", b"\0\xff\xff\xff\xff", b"A" * 60000, b"A" * 60000 + b"\0\xff\xff\xff\xff"]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("user", ["alice", "nobody_here"])
def test_cve_2026_6664_lengths_in_a_scram_packet(tls_pooler, user, tls):
    """A length in the first SCRAM message that wraps when it is added to: read beyond the packet, and a crash."""
    p = tls_pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD, "bob": PASSWORD})
    bodies = [b"SCRAM-SHA-256\0" + struct.pack("!i", n) + b"n,,n=,r=x" for n in LENGTHS if n != 9] + SHAPES
    with p.login("bob", password=PASSWORD) as bob:
        for body in bodies:
            with SecureWire(p.port) if tls else p.wire() as c:
                c.start(user)
                assert c.recv().type == "R"
                c.send(msg("p", body))
                error = c.fatal()
                assert error.code in ("08P01", "28P01"), (body[:40], error.fields)
        for _ in range(2):  # the second message: nothing is left to overflow, but lengths may still lie
            with SecureWire(p.port) if tls else p.wire() as c:
                c.start(user)
                c.recv()
                first = b"n,,n=,r=" + b"x" * 20
                c.send(msg("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
                assert c.recv().type == "R"
                c.send(msg("p", b"c=biws,r=,p=" + b"=" * 60000))
                assert c.fatal().code in ("08P01", "28P01")
        assert bob.value("select 'untouched'") == "untouched"
        assert p.alive()


# ---------------------------------------------------------------------------------------------- CVE-2026-6665

class ScramServer(Scripted):
    """Asks for SCRAM and answers with whatever `first(client nonce)` makes."""

    def __init__(self, first):
        super().__init__(self.exchange, login=msg("R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0"))
        self.first, self.finals = first, []

    def exchange(self, link):
        _, body = link.recv()
        nonce = body.rsplit(b",r=", 1)[1]
        link.send(msg("R", struct.pack("!I", 11) + self.first(nonce)))
        _, final = link.recv()
        self.finals.append(final)
        link.send(msg("R", struct.pack("!I", 12) + b"v=" + base64.b64encode(bytes(32))))
        link.send(LOGIN)
        link.recv()


SALT = b",s=" + base64.b64encode(b"0123456789abcdef")
FIRSTS = {
    "nonce of 1 kB": lambda n: b"r=" + n + b"x" * 1000 + SALT + b",i=4096",
    "nonce of 4 kB": lambda n: b"r=" + n + b"x" * 4096 + SALT + b",i=4096",
    "nonce of 64 kB": lambda n: b"r=" + n + b"x" * 65000 + SALT + b",i=4096",
    "nonce of 1 MB": lambda n: b"r=" + n + b"x" * 1_000_000 + SALT + b",i=4096",
    "salt of 64 kB": lambda n: b"r=" + n + b"x,s=" + base64.b64encode(b"s" * 48000) + b",i=4096",
    "iterations 2^31-1": lambda n: b"r=" + n + b"x" + SALT + b",i=2147483647",
    "iterations 0": lambda n: b"r=" + n + b"x" + SALT + b",i=0",
    "another nonce": lambda n: b"r=" + n[::-1] + b"x" + SALT + b",i=4096",
    "no salt": lambda n: b"r=" + n + b"x,i=4096",
    "nothing": lambda n: b"",
}


@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS)
@pytest.mark.workers(1)  # who stalls, stalls everybody
def test_cve_2026_6665_long_nonce_of_a_malicious_server(make_pooler, first):
    """The server's nonce is copied into our final message. A long one was written over the stack."""
    fake = ScramServer(first)
    p = with_fake(make_pooler(userlist={"alice": PASSWORD}), fake, "user=alice query_wait_timeout=2")
    with bystander(p), p.wire() as c:
        c.start("bob", "fake")
        error = c.fatal()
        assert error.code != "00000" and "Z" not in error.text
        assert b"evil" not in error.body
        assert [r for r in p.show("SERVERS") if r["database"] == "fake" and r["state"] in ("idle", "active")] == []
    for final in fake.finals:  # if we went on at all, then with exactly its nonce
        assert b"x" * 1000 in final or b"s=" not in final
    fake.close()


# ---------------------------------------------------------------------------------------------- CVE-2026-6666

WITHOUT = {"no code": b"SERROR\0Mevil\0\0", "only severity": b"SERROR\0\0", "no fields": b"\0",
           "fatal without code": b"SFATAL\0Mevil\0\0"}
PLACES = ["login", "answer", "own SET", "reset", "check", "auth_query", "connect_query"]


@pytest.mark.parametrize("body", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("place", PLACES)
def test_cve_2026_6666_error_without_sqlstate(make_pooler, place, body):
    """An ErrorResponse without its code, wherever a server can say one: the code was read all the same, from nowhere."""
    def talk(link):
        while True:
            _, said = link.recv()
            trouble = {"answer": b"select", "own SET": b"SET", "reset": b"reset me", "check": b"check me",
                       "auth_query": b"look up", "connect_query": b"connected"}[place] in said
            if place == "check" and not link.fake.armed:
                trouble = False
            if trouble and link.fake.bad > 0:
                link.fake.bad -= 1
                link.send(msg("E", body) + READY)
            else:
                link.send(row("fine") + DONE)
    fake = Scripted(talk, login=OK + msg("E", body) if place == "login" else LOGIN)
    fake.bad, fake.armed = 1, False
    more = "connect_query='select connected'" if place == "connect_query" else ""
    if place == "auth_query":
        more = "auth_user=bob auth_query='select look up'"
    p = make_pooler(default_pool_size=1, query_wait_timeout=5, client_login_timeout=5,
                    **({"pool_mode": "session", "server_reset_query": "reset me"} if place == "reset" else {}),
                    **({"server_check_query": "check me", "server_check_delay": 0} if place == "check" else {}))
    if place == "auth_query":
        p.userlist.pop("alice")
        p.settings["auth_type"] = "plain"
    p = with_fake(p, fake, more)
    if place == "auth_query":
        error = login_error(p, "alice", "fake", password="x")
        assert error.text == TROUBLE and code_is(error.code, "08P01")
        assert p.alive()
        return
    with bystander(p), p.wire() as c:
        c.start(database="fake", **({"application_name": "mine"} if place == "own SET" else {}))
        try:
            last = c.authenticate()[-1]
            if last.type == "Z":
                fake.armed = True
                c.send(query("select 1"))
                last = c.until("ZE")[-1]
        except wire.Closed:
            last = None  # an answer may be passed on as it is, and the end of the connection is one, too
        if place == "login":
            assert last.type == "E" and len(last.code) == 5 and last.text, last
    with bystander(p):  # the next one gets a server that is in order
        if place != "login":
            with p.login(database="fake") as c:
                assert [m.row for m in c.query("select 2") if m.type == "D"] == [["fine"]]
    fake.close()


# ---------------------------------------------------------------------------------------------- CVE-2026-6667

@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("name", ["stats", "admin2", "adm", "ADMIN"])
def test_cve_2026_6667_console_of_who_may_only_look(tls_pooler, name, tls):
    """KILL_CLIENT was open to members of stats_users. So: every command that is not SHOW, and names nearly an admin's."""
    p = tls_pooler(admin_users="admin, admin3", stats_users="stats, admin2, adm, ADMIN",
                   userlist={"admin2": "", "adm": "", "ADMIN": ""})
    with p.login("bob") as victim:
        (row_,) = [r for r in p.show("CLIENTS") if r["user"] == "bob"]
        with (secure_login(p, name, "pgbouncer") if tls else p.console(name)) as c:
            for command in (f"KILL_CLIENT {row_['id']}", f"kill_client {row_['id']};", f"KILL_CLIENT {int(row_['id']) + 99}", "KILL_CLIENT 0x1", "KILL nowhere",
                            "KILL p0", "KILL", "PAUSE", "PAUSE p0", "RESUME", "RESUME p0",
                            "DISABLE p0", "ENABLE p0", "RECONNECT", "RECONNECT p0", "RELOAD", "SUSPEND", "SHUTDOWN",
                            "SHUTDOWN WAIT_FOR_CLIENTS", "SHUTDOWN WAIT_FOR_SERVERS", "WAIT_CLOSE", "WAIT_CLOSE p0",
                            "SET verbose = 3", "SET auth_type = 'trust'"):
                error, last = c.query(command)
                assert (error.type, last.type) == ("E", "Z"), command
                assert error.text == "admin access needed" and code_is(error.code, "42501"), command
            assert c.query("SHOW POOLS")[0].type == "T"
        assert victim.value("select 'untouched'") == "untouched"
        assert {r["name"]: (r["paused"], r["disabled"]) for r in p.show("DATABASES")}["p0"] == ("0", "0")
        # The same command of an administrator does work: what was refused above is the person.
        assert p.admin(f"KILL_CLIENT {row_['id']}") == "KILL_CLIENT"
        victim.until_closed()
