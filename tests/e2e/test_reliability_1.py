"""Section 1 of the reliability catalogue: startup and authentication. What is missing here by number is in test_auth.py,
test_auth_query.py, test_hba.py, test_tls.py and others: docs/reliability.md says where."""
import base64
import contextlib
import hashlib
import hmac
import re
import socket
import struct
import threading

import pytest

import wire
from conftest import PASSWORD, PATIENCE, wait_until
from fakes import KEY, OK, PARAMS, READY, FakeBackend, bystander, with_fake
from test_auth import login_error
from test_auth_query import lookup  # noqa: F401
from test_hba import rules  # noqa: F401
from test_reliability_12 import at_work
from wire import cstr, msg

pytestmark = [pytest.mark.ours, pytest.mark.one_engine]


def sasl_first(text, mechanism="SCRAM-SHA-256"):
    raw = text if isinstance(text, bytes) else text.encode()
    return msg("p", cstr(mechanism) + struct.pack("!i", len(raw)) + raw)


# ------------------------------------------------------------------------------------------------- 1, 2: who is there

def test_r1_unknown_users_are_nobody(lookup, pg):  # noqa: F811
    """auth_user is bob: no name that does not exist becomes him."""
    p = lookup("plain")
    for name in ("nobody", "bob2", "Bob", "bob ", "bob\n", "", "bob' or 'a'='a", "$1"):
        with p.wire() as c:
            c.start(name)
            for password in ("", "x"):
                out = c.until_closed() if password else [c.recv()]
                if out[-1].type == "E":
                    assert out[-1].code in ("28P01", "28000"), (name, out[-1])
                    break
            assert not c.params
    done = pg.sql("select query from pg_stat_activity where usename = 'bob' and client_addr is not null")
    assert all("WHERE rolname=$1" in query for query, in done), done


def transcript(p, user, database="p0", password="wrong"):
    """What a stranger can see of a login: the types, the questions, the error."""
    with p.wire() as c:
        c.start(user, database)
        seen = []
        while True:
            m = c.recv()
            if m.type == "E":
                return seen + [m.fields]
            (kind,) = struct.unpack_from("!I", m.body)
            if kind == 3:
                seen.append("cleartext")
                c.send(msg("p", cstr(password)))
            elif kind == 5:
                seen.append("md5")
                c.send(msg("p", cstr("md5" + "0" * 32)))
            elif kind == 10:
                seen.append(m.body)
                c.send(sasl_first("n,,n=,r=abc"))
            elif kind == 11:
                attributes = dict(x.split(b"=", 1) for x in m.body[4:].split(b","))
                seen.append((len(attributes[b"r"]), len(base64.b64decode(attributes[b"s"])), attributes[b"i"]))
                c.salt = attributes[b"s"]
                c.send(msg("p", b"c=biws,r=" + attributes[b"r"] + b",p=" + base64.b64encode(b"x" * 32)))
            else:
                return seen + [m]


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_r2_nothing_can_be_probed(pooler, auth_type):
    """Wrong password, no such user, no password, no such database, a disabled one, one whose server is not there: the
    same conversation, to the length of each field."""
    p = pooler(auth_type=auth_type, databases={"down": "host=127.0.0.1 port=1"},
               userlist={"alice": PASSWORD, "carol": "", "admin": PASSWORD})
    p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
    p.admin("DISABLE p1")
    expected = transcript(p, "alice")
    assert expected[-1]["C"] == "28P01"
    for user in ("alice", "nobody", "carol", "x" * 100):
        for database in ("p0", "p1", "down", "nowhere", "y" * 63):
            assert transcript(p, user, database) == expected, (user, database)
    with p.wire() as c:  # only who has proved himself hears more
        c.start(database="nowhere")
        assert c.authenticate(PASSWORD)[-1].code == "3D000"
    with p.wire() as c:
        c.start(database="p1")
        assert c.authenticate(PASSWORD)[-1].code == "57P03"


def test_r2_mock_salts_are_as_steady_as_real_ones(pooler):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})

    def salt(user):
        with p.wire() as c:
            c.start(user)
            c.recv()
            c.send(sasl_first("n,,n=,r=abc"))
            return dict(x.split(b"=", 1) for x in c.recv().body[4:].split(b","))[b"s"]
    salts = {user: salt(user) for user in ("alice", "nobody", "nobody2")}
    assert len(set(salts.values())) == 3
    for user, before in salts.items():
        assert salt(user) == before, user


# ------------------------------------------------------------------------------------------------- 5: hostile names

def test_r5_hostile_names(pooler):
    """No name that is cut short becomes another's, none forges a line of the log or writes to the reader's terminal."""
    longest = "u" * 127
    p = pooler(auth_type="trust", databases={"d" * 63: None}, userlist={longest: "", "n" * 63: ""})
    p.databases["d" * 63] = f"{p.server} dbname=p0 user=bob"
    p.write_ini()
    p.admin("RELOAD")
    for user, database in ((longest, "d" * 63), ("n" * 63, "d" * 63)):
        with p.login(user, database) as c:
            assert c.value("select current_user") == "bob"
    for user, database in ((longest + "u", "d" * 63), ("n" * 64, "d" * 63), ("n" * 62, "d" * 63), ("alice", "d" * 64),
                           ("alice", "d" * 62), ("u" * 9000, "p0"), ("alice", "d" * 9000)):
        error = login_error(p, user, database)
        assert error.code in ("28000", "28P01", "08P01", "3D000"), error.fields
    forged = "2026-01-01 00:00:00.000 UTC [1] LOG forged"
    for name in (f"x\n{forged}", f"x\r{forged}", "x\x1b[2J", "x\x07\x08\x7f", "'; drop table t; --", "\\", "a\"b", "%s%n", "{}"):
        login_error(p, name)
        login_error(p, "alice", name)
    for raw in (b"\xff\xfe\x80", b"\xc3", b"\xed\xa0\x80"):
        with p.wire() as c:
            c.send(wire.startup_packet({"user": raw, "database": raw}))
            assert c.fatal().code in ("28000", "28P01", "08P01")
    log = p.logfile.read_bytes()
    assert b"LOG forged" in log and not re.search(rb"^2026-01-01 00:00:00", log, re.M)
    assert not set(log) & (set(range(32)) - {9, 10}) and 0x7f not in log


# ------------------------------------------------------------------------------------------------- 7, 8, 9, 10: secrets

def test_r7_replication_stays_out_of_the_lookup(lookup, pg):  # noqa: F811
    """The server connection that auth_query uses is an ordinary one, whatever its client asks for."""
    p = lookup(databases={"p1": None})
    for _ in range(2):
        with p.login("s_scram", password=PASSWORD, replication="database") as c:
            assert "s_scram" in [r[0] for r in pg.sql("select usename from pg_stat_activity where backend_type = "
                                                      "'walsender'")]
            assert len([m for m in c.query("IDENTIFY_SYSTEM") if m.type == "D"]) == 1
            assert pg.sql("select distinct backend_type from pg_stat_activity where usename = 'bob' and client_addr is "
                          "not null") == [("client backend",)]
        with p.login("s_scram", password=PASSWORD) as c:
            assert c.value("select 1") == "1"


@pytest.mark.workers(1, 3)
def test_r8_login_storm(make_pooler, pg):
    """300 clients of 30 users that only the server knows, two connections for everything: no deadlock between lookups
    and queries, and who was on before works on."""
    p = make_pooler(auth_type="md5", auth_user="bob", auth_query="select $1::text, 'pw'", max_db_connections=2,
                    userlist={"alice": PASSWORD})
    p.userlist = {"bob": "", "alice": PASSWORD, "admin": PASSWORD}
    p.databases["p0"] += " user=carol"
    p.start()
    with at_work(p, clients=2, password=PASSWORD):
        clients = [p.wire().start(f"u{i % 30}") for i in range(300)]
        for c in clients:
            assert c.authenticate("pw")[-1].type == "Z"
        with p.wire() as c:
            assert c.start("u1").authenticate("wrong")[-1].code == "28P01"
        for c in clients[:60]:
            assert c.value("select current_user") == "carol"
        assert len(pg.backends("datname = 'p0'")) <= 2
        [c.close() for c in clients]


def test_r9_password_changes_on_the_server(pooler, pg):
    """The pooler's copy is old: what is connected serves on, new connections are tried now and then and never in a loop
    that would lock the account."""
    p = pooler(default_pool_size=5, server_login_retry=1, userlist={"s_md5": PASSWORD})
    with p.login("s_md5") as c:
        pid = c.value("select pg_backend_pid()")
        before = pg.log().count('password authentication failed for user "s_md5"')
        with pg.connect() as direct:
            direct.execute("set password_encryption = 'md5'")
            direct.execute("alter role s_md5 password 'another'")
        try:
            c.query("begin")
            waiting = [p.login("s_md5") for _ in range(20)]
            for w in waiting:
                w.send(wire.query("select 1"))
            wait_until(lambda: p.log().count("closing because: password authentication failed") >= 2, "it was tried again")
            assert c.query("commit")[0].tag == "COMMIT"
            for w in waiting:
                assert w.until()[1].row == ["1"]
            assert c.value("select pg_backend_pid()") == pid
            tries = pg.log().count('password authentication failed for user "s_md5"') - before
            assert 2 <= tries < 10
            p.userlist["s_md5"] = "another"
            p.write_ini()
            p.admin("RELOAD")
            for w in waiting[:5]:
                w.query("begin")
            assert len({w.value("select pg_backend_pid()") for w in waiting[:5]}) == 5
            [w.close() for w in waiting]
        finally:
            with pg.connect() as direct:
                direct.execute("set password_encryption = 'md5'")
                direct.execute("alter role s_md5 password '%s'" % PASSWORD.replace("'", "''"))


@pytest.mark.workers(3)
@pytest.mark.parametrize("stored", ["secret", "plain"])
def test_r10_scram_pass_through_survives_reconnect(pooler, pg, stored):
    """From the server's own secret, and from a plain password of which the pooler makes a secret itself."""
    secret = PASSWORD if stored == "plain" else pg.sql("select rolpassword from pg_authid where rolname = 's_scram'")[0][0]
    p = pooler(auth_type="scram-sha-256", userlist={"s_scram": secret, "admin": PASSWORD})
    p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
    old = p.login("s_scram", password=PASSWORD)
    for i in range(6):
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 's_scram'")
        wait_until(lambda: not pg.backends("usename = 's_scram'"), "they are gone")
        if i % 3 == 1:
            p.admin("RELOAD")
        if i % 3 == 2:
            assert login_error(p, "s_scram", password="wrong").code == "28P01"
        clients = [p.login("s_scram", password=PASSWORD) for _ in range(4)]
        for c in (*clients, old):
            c.query("begin")
            assert c.value("select current_user") == "s_scram"
        for c in (*clients, old):
            c.query("commit")
        [c.close() for c in clients]
    old.close()


# ------------------------------------------------------------------------------------------------- 11, 13: SCRAM, both sides

GOOD_FIRST = "n,,n=,r=abc"


def test_r11_malformed_scram_of_clients(pooler):
    """One FATAL of 28P01 or 08P01 for each, and nobody else notices."""
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD, "admin": PASSWORD})
    final = f"c=biws,r=NONCE,p={base64.b64encode(b'x' * 32).decode()}"
    firsts = ["n,,r=abc", "n,,n=", "n,,n=,r=", "n,,n=", "n,,m=x,n=,r=abc", "n,,n=,r=abc,m=x", "n,,n=,r=a\tb", "n,,n=,r=a,b=c,",
              "n,a=bob,n=,r=abc", "y", "n", ",", "", "n,,", "x,,n=,r=abc", "p=tls-unique,,n=,r=abc", "n,,n=,r=" + "a" * 60000]
    finals = [final.replace("NONCE", "abc"), final.replace("NONCE", "NONCE2"), final.replace("biws", "eSws"),
              final.replace("biws", "!!!!"), final.replace(",p=", ",x=1,p=") + "=", final.split(",p=")[0],
              final.split(",p=")[0] + ",p=", final.split(",p=")[0] + ",p=AAAA", final.split(",p=")[0] + ",p=****",
              final + ",x=y", "m=x," + final, final.replace("c=biws,", ""), "e=other-error", "", "\0" * 100, final * 500]
    with p.login(password=PASSWORD) as other:
        for first in firsts:
            with p.wire() as c:
                c.start()
                c.recv()
                c.send(sasl_first(first))
                error = [m for m in c.until_closed() if m.type == "E"] if first != firsts[-1] else [c.recv()]
                assert error and (error[0].type == "R" or error[0].code in ("28P01", "08P01")), (first, error)
        for last in finals:
            with p.wire() as c:
                c.start()
                c.recv()
                c.send(sasl_first(GOOD_FIRST))
                nonce = dict(x.split(b"=", 1) for x in c.recv().body[4:].split(b","))[b"r"].decode()
                c.send(msg("p", last.replace("NONCE", nonce).encode()))
                assert c.fatal().code in ("28P01", "08P01"), last
        for early in (msg("p", final.encode()), msg("p", b""), msg("p", cstr("SCRAM-SHA-256")), sasl_first("", "SCRAM-SHA-1"),
                      sasl_first(GOOD_FIRST, ""), msg("p", cstr("SCRAM-SHA-256") + b"\x7f\xff\xff\xff" + GOOD_FIRST.encode())):
            with p.wire() as c:
                c.start()
                c.recv()
                c.send(early)
                assert c.fatal().code in ("28P01", "08P01"), early
        with p.login(password=PASSWORD) as c:  # a third answer, when nothing is asked any more
            c.send(msg("p", final.encode()))
            assert c.fatal().code == "08P01"
        assert other.value("select 'untouched'") == "untouched"


class ScramServer(FakeBackend):
    """Plays SCRAM with the pooler: `first` and `last` make the two messages from what is needed for it."""

    def __init__(self, first=None, last=None, skip_final=False):
        self.first, self.last, self.skip_final = first, last, skip_final
        self.reached = []
        super().__init__(None)

    def one(self, c):
        with contextlib.suppress(OSError), c:
            code = wire.SSL_REQUEST
            while code == wire.SSL_REQUEST:
                size, code = struct.unpack("!II", self.exactly(c, 8))
                self.exactly(c, size - 8)
                if code == wire.SSL_REQUEST:
                    c.sendall(b"N")
            c.sendall(msg("R", struct.pack("!I", 10) + cstr("SCRAM-SHA-256") + b"\0"))
            bare = self.answer_of(c).split(b"n,,", 1)[1]
            nonce = bare.split(b"r=")[1] + b"SERVER"
            first = b"r=%s,s=%s,i=4096" % (nonce, base64.b64encode(b"salt"))
            if self.first:
                first = self.first(nonce)
            self.reached.append("first")
            c.sendall(msg("R", struct.pack("!I", 11) + first))
            if self.skip_final:
                c.sendall(OK + PARAMS + KEY + READY)
            final = self.answer_of(c)
            self.reached.append("final")
            salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 4096)
            text = b",".join([bare, first, final.split(b",p=")[0]])
            signature = base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), text, "sha256"))
            last = self.last(signature) if self.last else b"v=" + signature
            if last is not None:
                c.sendall(msg("R", struct.pack("!I", 12) + last))
            c.sendall(OK + PARAMS + KEY + READY)
            self.answer_of(c)
            self.reached.append("query")

    def answer_of(self, c):
        self.exactly(c, 1)
        return self.exactly(c, struct.unpack("!I", self.exactly(c, 4))[0] - 4)


BAD_FIRSTS = {
    "64 kB nonce": lambda n: b"r=" + n + b"x" * 65536 + b",s=c2FsdA==,i=4096",
    "not our nonce": lambda n: b"r=x" + n + b",s=c2FsdA==,i=4096",
    "our nonce alone": lambda n: b"r=" + n[:-6] + b",s=c2FsdA==,i=4096",
    "no salt": lambda n: b"r=" + n + b",i=4096",
    "empty salt": lambda n: b"r=" + n + b",s=,i=4096",
    "bad salt": lambda n: b"r=" + n + b",s=****,i=4096",
    "huge salt": lambda n: b"r=" + n + b",s=" + b"A" * 60000 + b",i=4096",
    "no rounds": lambda n: b"r=" + n + b",s=c2FsdA==,i=0",
    "negative rounds": lambda n: b"r=" + n + b",s=c2FsdA==,i=-4096",
    "endless rounds": lambda n: b"r=" + n + b",s=c2FsdA==,i=2147483647",
    "more than a number": lambda n: b"r=" + n + b",s=c2FsdA==,i=99999999999999999999",
    "nothing": lambda n: b"",
    "an error": lambda n: b"e=other-error",
}
BAD_LASTS = {
    "wrong signature": lambda s: b"v=" + base64.b64encode(b"x" * 32),
    "short signature": lambda s: s[:-8],
    "no signature": lambda s: b"",
    "an error": lambda s: b"e=invalid-proof",
    "bad base64": lambda s: b"v=****",
    "no final at all": lambda s: None,
}


def test_r13_hostile_backends_in_scram(make_pooler):
    """None of these servers is ever given a query, though each says that all is well; a good one is."""
    fakes = {name: ScramServer(first=f) for name, f in BAD_FIRSTS.items()}
    fakes |= {name + " at the end": ScramServer(last=f) for name, f in BAD_LASTS.items()}
    fakes["ok before the proof"] = ScramServer(skip_final=True)
    fakes["good"] = ScramServer()
    p = make_pooler(userlist={"alice": PASSWORD}, client_login_timeout=2, server_login_retry="0.5")
    for i, fake in enumerate(fakes.values()):
        p.databases[f"fake{i}"] = f"host=127.0.0.1 port={fake.port} dbname=x"
    p.start()
    with bystander(p):
        clients = [p.wire().start(database=f"fake{i}") for i in range(len(fakes))]
        for (name, fake), c in zip(fakes.items(), clients):
            if name == "good":
                assert c.authenticate()[-1].type == "Z"
                c.send(wire.query("select 1"))
                wait_until(lambda: "query" in fake.reached, "a good server gets the query")
            else:
                assert c.fatal().code in ("08P01", "28P01", "28000"), name
                assert "first" in fake.reached and "query" not in fake.reached, name
            c.close()
    [f.close() for f in fakes.values()]


# ------------------------------------------------------------------------------------------------- 14: weaker methods

@pytest.mark.parametrize("required, fits", [
    ("scram-sha-256", {"scram"}), ("md5,scram-sha-256", {"md5", "scram"}), ("!password,!none", {"md5", "scram"}),
    ("password", {"password"}), ("none", {"alice"}), ("!scram-sha-256", {"password", "md5", "alice"})])
def test_r14_method_that_require_auth_forbids(pooler, pg, required, fits):
    quoted = PASSWORD.replace("'", "''")
    server = f"host=127.0.0.1 port={pg.port} dbname=p0 password='{quoted}' require_auth={required}"
    users = {"password": "s_password", "md5": "s_md5", "scram": "s_scram", "alice": "alice"}
    p = pooler(databases={name: f"{server} user={user}" for name, user in users.items()}, server_login_retry="0.2")
    for name in users:
        with p.wire() as c:
            c.start(database=name)
            last = c.authenticate()[-1]
            if name in fits:
                assert last.type == "Z", name
            else:
                assert (last.type, last.code) == ("E", "28000"), name
                assert f"which require_auth={required} forbids" in last.text, name
    if "password" not in fits:
        p.wait_log("server asks for the password in clear, which require_auth")


def test_r14_nothing_leaks_to_who_asks_for_clear_text(make_pooler):
    """Somebody in between asks for the password itself: he gets the end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(PATIENCE)
        p = make_pooler(server_login_retry="0.2", server_tls_sslmode="disable", userlist={"alice": PASSWORD})
        p.databases["trap"] = f"host=127.0.0.1 port={trap.getsockname()[1]} dbname=x require_auth=scram-sha-256,md5"
        p.start()
        got = []

        def in_between():
            s, _ = trap.accept()
            with s:
                s.settimeout(PATIENCE)
                s.recv(10_000)
                s.sendall(wire.msg("R", struct.pack("!I", 3)))
                got.append(s.recv(10_000))
        thread = threading.Thread(target=in_between)
        thread.start()
        with p.wire() as c:
            c.start(database="trap")
            assert c.authenticate()[-1].code == "28000"
        thread.join()
        assert got == [b""], "not a byte"


# ------------------------------------------------------------------------------------------------- 15, 17: passwords, rules

@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_r15_shapes_of_passwords(make_pooler, auth_type):
    """Of every length around the limits of others, in any script; a message that comes byte by byte; a NUL inside."""
    shapes = ["x", "a" * 996, "b" * 1023, "c" * 1024, "d" * 2048, "e" * 40000, "пароль 密码", "I\u00adX", "\u00aa", "  blanks  ", "q\"q\\'"]
    p = make_pooler(auth_type=auth_type, userlist={f"u{i}": s for i, s in enumerate(shapes)})
    p.databases["p0"] += " user=bob"
    p.start()
    for i, shape in enumerate(shapes):
        if auth_type == "scram-sha-256":
            with p.connect(user=f"u{i}", password=shape) as c:  # libpq knows SASLprep
                assert c.execute("select 1").fetchone() == (1,)
        else:
            p.login(f"u{i}", password=shape).close()
        for wrong in (shape + "x", shape[:-1] or "y"):
            assert login_error(p, f"u{i}", password=wrong).code in ("28P01", "08P01")
    if auth_type == "plain":
        with p.wire() as c:
            c.start("u2")
            c.recv()
            c.send_slowly(msg("p", cstr(shapes[2])))
            assert c.recv().type == "R"
        for inside in (b"x\0", b"\0x", b"x\0y"):
            with p.wire() as c:
                c.start("u0")
                c.recv()
                c.send(msg("p", inside + b"\0"))
                assert c.fatal().code in ("28P01", "08P01")


def test_r17_ten_thousand_rules(rules):  # noqa: F811
    """With CRLF line ends, names in quotes, a database called replication; the first that fits decides, on every worker
    at the same time."""
    many = "local all all reject\r\n" + "".join(f"host db{i} user{i} 10.{i // 256 % 256}.{i % 256}.0/24 reject\r\n" for i in range(10_000))
    r = rules(many + 'host "p0" "alice" 127.0.0.1/32 trust\r\nhost p0,p1 all 0.0.0.0/0 reject\r\n')
    p = r.p
    with at_work(p, clients=2):
        assert login_error(p, "bob").text == "login rejected"
        assert login_error(p, "alice", "p1").text == "login rejected"
        r.set(many + "host p0 alice 127.0.0.0/8 trust\r\nhost p1 all 127.0.0.1 255.255.255.255 trust\r\n"
              "host replication all 0.0.0.0/0 trust\r\n")
        for _ in range(4):
            p.login("alice", "p1").close()
            assert login_error(p, "bob").text == "no authentication method is found"


# ------------------------------------------------------------------------------------------------- 24, 25

def test_r24_a_servers_login_of_every_size(make_pooler):
    """30 kB of parameters, and one alone of that size; notices and changed parameters between them."""
    many = b"".join(msg("S", cstr(f"extra_{i}") + cstr("v" * 50)) for i in range(500))
    notice = msg("N", b"SNOTICE\0C00000\0Mhello\0\0")
    fake = FakeBackend(OK + many + notice + PARAMS + msg("S", cstr("big") + cstr("w" * 30000)) + KEY + notice +
                       msg("S", cstr("TimeZone") + cstr("Asia/Tokyo")) + READY, msg("C", b"SELECT 0\0") + READY)
    p = with_fake(make_pooler(), fake)
    with p.login(database="fake") as c:
        assert c.params["extra_499"] == "v" * 50 and len(c.params["big"]) == 30000
        assert c.query("select 1")[0].tag == "SELECT 0"
    fake.close()


def test_r25_counts_of_clients_go_up_once_and_down_once(pooler):
    """Logins that fail at each step leave nothing behind in the counts per user and database."""
    p = pooler(auth_type="plain", databases={"down": "host=127.0.0.1 port=1"}, client_login_timeout=1,
               max_user_client_connections=3, max_db_client_connections=3,
               userlist={"alice": PASSWORD, "s_md5": "no", "admin": PASSWORD})
    p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
    for _ in range(5):  # more often than the limits would stand, if one were left behind
        login_error(p, password="wrong")
        login_error(p, "nobody")
        login_error(p, database="nowhere", password=PASSWORD)
        login_error(p, "s_md5", password="no")
        with p.wire() as c:
            c.start()
            c.recv()
    slow = [p.wire().start(database="down") for _ in range(3)]
    for c in slow:
        assert c.authenticate(PASSWORD)[-1].type == "E"
    with p.login(password=PASSWORD), p.login(password=PASSWORD), p.login(password=PASSWORD):
        assert login_error(p, password=PASSWORD).code == "53300"

    def counts():
        rows = [r for r in p.show("USERS") + p.show("DATABASES") if r["name"] not in ("pgbouncer", "admin")]
        return {r["name"]: r["current_client_connections"] for r in rows}
    wait_until(lambda: set(counts().values()) == {"0"}, "all counts are back at zero")
