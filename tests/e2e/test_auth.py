"""Login: every client method x every kind of secret, the server side, pass-through, and the exact texts."""
import struct
import time

import psycopg
import pytest

import wire
from conftest import OURS, PASSWORD, code_is, md5_secret, scram_secret, wait_until

FAILED = {"plain": "password authentication failed", "md5": "password authentication failed",
          "scram-sha-256": "SASL authentication failed"}
SECRETS = {"plain": PASSWORD, "md5": md5_secret("alice"), "scram": scram_secret()}
REQUEST = {"plain": 3, "md5": 5, "scram-sha-256": 10}
# (auth_type, kind of secret) -> does the right password get in
TABLE = {("plain", "plain"): True, ("plain", "md5"): True, ("plain", "scram"): True,
         ("md5", "plain"): True, ("md5", "md5"): True, ("md5", "scram"): True,
         ("scram-sha-256", "plain"): True, ("scram-sha-256", "md5"): False, ("scram-sha-256", "scram"): True}


def login_error(p, user="alice", database="p0", password="", **params):
    with p.wire() as c:
        c.start(user, database, **params)
        out = c.authenticate(password)
        assert out[-1].type == "E", out
        assert out[-1].fields["S"] == "FATAL"
        assert c.at_eof()
        return out[-1]


@pytest.mark.parametrize("auth_type, kind", TABLE)
def test_method_and_secret(pooler, auth_type, kind):
    p = pooler(auth_type=auth_type, userlist={"alice": SECRETS[kind]})
    if TABLE[auth_type, kind]:
        with p.wire() as c:
            c.start()
            assert c.authenticate(PASSWORD)[-1].type == "Z"
            request = 10 if (auth_type, kind) == ("md5", "scram") else REQUEST[auth_type]
            assert c.auth_seen[0] == request
            if request == 10:
                assert c.mechanisms == ["SCRAM-SHA-256"]
            assert c.value("select current_user") == "alice"
        with p.connect(password=PASSWORD) as c:
            assert c.execute("select current_user").fetchone() == ("alice",)
    else:
        error = login_error(p, password=PASSWORD)
        assert error.text == FAILED[auth_type] and code_is(error.code, "28P01")
    error = login_error(p, password=PASSWORD + "x")
    text = "SASL authentication failed" if (auth_type, kind) == ("md5", "scram") else FAILED[auth_type]
    assert error.text == text and code_is(error.code, "28P01")


@pytest.mark.parametrize("auth_type", FAILED)
def test_unknown_user_gets_the_full_exchange(pooler, auth_type):
    p = pooler(auth_type=auth_type, userlist={"alice": PASSWORD})
    for user in ("nobody-here", "x" * 63):
        with p.wire() as c:
            c.start(user)
            out = c.authenticate(PASSWORD)
            assert c.auth_seen[0] == REQUEST[auth_type]
            assert out[-1].text == FAILED[auth_type] and code_is(out[-1].code, "28P01")


@pytest.mark.parametrize("auth_type", FAILED)
def test_user_with_empty_password_cannot_use_passwords(pooler, auth_type):
    p = pooler(auth_type=auth_type, userlist={"alice": ""})
    assert login_error(p, password=PASSWORD).text == FAILED[auth_type]


def test_empty_password_from_client(pooler):
    p = pooler(auth_type="plain", userlist={"alice": PASSWORD})
    assert login_error(p, password="").text == "empty password returned by client"


def test_longest_password(pooler):
    longest = "a" * 65530
    p = pooler(auth_type="plain", userlist={"alice": longest})
    with p.login(password=longest) as c:
        assert c.value("select 1") == "1"
    with p.wire() as c:  # one more, and its last byte comes late
        c.start()
        c.recv()
        message = wire.msg("p", wire.cstr("X" + longest))
        c.send(message[:-1])
        time.sleep(0.3)
        c.send(message[-1:])
        assert c.fatal().text == "password authentication failed"


def test_bad_server_password_after_reconnect(pooler, pg):
    """One server is left from before RECONNECT and busy: it will not serve those who wait, so they are told."""
    p = pooler(default_pool_size=1, userlist={"s_md5": PASSWORD})
    with p.login("s_md5") as busy, p.login("s_md5") as waiting:
        busy.query("begin")
        waiting.send(wire.query("select 1"))
        wait_until(lambda: p.pool("p0", "s_md5")["cl_waiting"] == 1, "it waits")
        p.userlist["s_md5"] = "not good any more"
        p.settings["default_pool_size"] = 2
        p.write_ini()
        p.admin("RECONNECT")
        p.admin("RELOAD")
        assert waiting.fatal().text == 'password authentication failed for user "s_md5"'
        assert busy.query("commit")[-1].type == "Z"


@pytest.mark.workers(1, 2)
def test_trust(pooler):
    p = pooler(auth_type="trust")
    with p.login() as c:
        assert c.auth_seen == [0]
        assert c.params["server_version"].startswith("1")
        assert len(c.key) == 8 and not c.key[0] & 0x80
    error = login_error(p, user="mallory")
    assert error.text == '"trust" authentication failed' and code_is(error.code, "28000") or error.code == "28P01"


def test_any_with_forced_user(pooler, make_pooler):
    p = make_pooler(auth_type="any")
    p.databases["p0"] += " user=bob"
    p.start()
    with p.login(user="whoever") as c:
        assert c.value("select current_user") == "bob"
    assert login_error(p, user="whoever", database="p1").text == "bouncer config error"


def test_forced_user(make_pooler):
    p = make_pooler(auth_type="md5", userlist={"alice": PASSWORD})
    quoted = PASSWORD.replace("'", "''")
    p.databases["p0"] += f" user=s_scram password='{quoted}'"
    p.databases["p1"] += " user=bob"
    p.start()
    with p.login(password=PASSWORD) as c:
        assert c.value("select current_user") == "s_scram"
    with p.login(database="p1", password=PASSWORD) as c:
        assert c.value("select current_user") == "bob"


def test_wildcard_database(pooler, pg):
    p = pooler(databases={"*": f"host=127.0.0.1 port={pg.port}"})
    with p.login(database="p2") as c:
        assert c.value("select current_database()") == "p2"
    p.wait_log("registered new auto-database: p2")
    error = login_error(p, database="not_there")
    assert error.code == "3D000" and error.text == 'database "not_there" does not exist'


def test_database_defaults_to_user(pooler):
    p = pooler(databases={"alice": None})
    p.databases["alice"] = f"{p.server} dbname=p1"
    p.write_ini()
    p.admin("RELOAD")
    with p.wire() as c:
        c.user = "alice"
        c.send(wire.startup_packet({"user": "alice"}))
        assert c.authenticate()[-1].type == "Z"
        assert c.value("select current_database()") == "p1"


def test_no_such_database(pooler):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})
    error = login_error(p, database="nope", password=PASSWORD)
    assert error.text == "no such database: nope" and code_is(error.code, "3D000")
    error = login_error(p, database="nope", password="wrong")
    assert error.text == "SASL authentication failed"
    p.wait_log("login failed: db=nope user=alice")


def test_driver_exceptions(pooler):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})
    with pytest.raises(psycopg.OperationalError, match="SASL authentication failed"):
        p.connect(password="wrong")
    with pytest.raises(psycopg.OperationalError, match="no such database: nope"):
        p.connect("nope", password=PASSWORD)


# ---------------------------------------------------------------------------------------------- towards the server

@pytest.mark.parametrize("role", ["s_password", "s_md5", "s_scram"])
def test_server_side_with_plain_secret(pooler, role):
    p = pooler(auth_type="scram-sha-256")
    with p.login(role, password=PASSWORD) as c:
        assert c.value("select current_user") == role


def test_server_side_with_md5_secret(pooler):
    p = pooler(auth_type="md5", userlist={"s_md5": md5_secret("s_md5"), "s_scram": md5_secret("s_scram")})
    with p.login("s_md5", password=PASSWORD) as c:
        assert c.value("select current_user") == "s_md5"
    error = login_error(p, "s_scram", password=PASSWORD)
    assert error.text == "server login failed: wrong password type"


def server_secret(pg, role):
    return pg.sql("select rolpassword from pg_authid where rolname = %s", role)[0][0]


def test_scram_pass_through(pooler, pg):
    """The stored secret only; the keys that log in to the server come from the client's own proof."""
    p = pooler(auth_type="scram-sha-256", userlist={"s_scram": server_secret(pg, "s_scram")})
    with p.login("s_scram", password=PASSWORD) as c:
        assert c.value("select current_user") == "s_scram"
    pids = pg.backends("usename = 's_scram'")
    assert pids
    pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 's_scram'")
    wait_until(lambda: not pg.backends("usename = 's_scram'"), "they are gone")
    with p.login("s_scram", password=PASSWORD) as c:
        assert c.value("select current_user") == "s_scram"


def test_scram_pass_through_needs_the_same_salt(pooler):
    p = pooler(auth_type="scram-sha-256", userlist={"s_scram": scram_secret()})
    error = login_error(p, "s_scram", password=PASSWORD)
    assert error.text.startswith(("server login failed", "password authentication failed")), error.fields


def test_scram_secret_without_keys_cannot_log_in(pooler, pg):
    p = pooler(auth_type="trust", userlist={"s_scram": server_secret(pg, "s_scram")})
    assert login_error(p, "s_scram").text == "server login failed: wrong password type"
    p.wait_log("password is SCRAM secret but client authentication did not provide SCRAM keys")


@pytest.mark.parametrize("role", ["s_password", "s_md5", "s_scram"])
def test_server_refuses_the_password(pooler, role):
    """The backend's own text and SQLSTATE reach the client."""
    p = pooler(auth_type="trust", userlist={role: "not it"})
    error = login_error(p, role)
    assert error.code == "28P01"
    assert error.text == f'password authentication failed for user "{role}"'


def test_backend_database_missing(pooler, pg):
    p = pooler(databases={"gone": f"host=127.0.0.1 port={pg.port} dbname=gone_db"})
    error = login_error(p, database="gone")
    assert (error.code, error.text) == ("3D000", 'database "gone_db" does not exist')


# ---------------------------------------------------------------------------------------------- odd logins

@pytest.mark.parametrize("first, final", [
    (b"n,,n=,r=abc", b"c=biws,r=abc,p=AAAA"),
    (b"n,,n=,r=abc", b"c=biws,r=wrong-nonce,p=" + b"A" * 43 + b"="),
    (b"n,,n=,r=abc", b"\xff\xfe\x00"),
    (b"n,,n=,r=abc", b""),
    (b"p=tls-unique,,n=,r=abc", None),
    (b"n,,m=ext,n=,r=abc", None),
    (b"n,a=bob,n=,r=abc", None),
    (b"garbage", None),
    (b"", None),
])
def test_broken_scram(pooler, first, final):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})
    with p.wire() as c:
        c.start()
        assert c.recv().type == "R"
        c.send(wire.msg("p", wire.cstr("SCRAM-SHA-256") + struct.pack("!I", len(first)) + first))
        if final is not None:
            m = c.recv()
            assert m.type == "R", m
            if b"r=abc," in final:
                final = final.replace(b"r=abc", b"r=" + m.body[4:].split(b",")[0][2:])
            c.send(wire.msg("p", final))
        out = c.until_closed()
        assert [m.type for m in out] == ["E"], out
        assert code_is(out[0].code, "28P01")
    with p.login(password=PASSWORD) as c:
        assert c.value("select 1") == "1"


@pytest.mark.ours
@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, 100])
def test_scram_length_lies(pooler, length):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})
    with p.wire() as c:
        c.start()
        c.recv()
        c.send(wire.msg("p", wire.cstr("SCRAM-SHA-256") + struct.pack("!i", length) + b"n,,n=,r=x"))
        c.until_closed()
    with p.login(password=PASSWORD) as c:
        assert c.value("select 1") == "1"


def test_wrong_sasl_mechanism(pooler):
    p = pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})
    with p.wire() as c:
        c.start()
        c.recv()
        c.send(wire.msg("p", wire.cstr("SCRAM-SHA-256-PLUS") + struct.pack("!I", 4) + b"n,,x"))
        assert c.fatal().text == "client selected an invalid SASL authentication mechanism"


def test_startup_parameters(pooler):
    p = pooler(ignore_startup_parameters="extra_float_digits")
    with p.login(extra_float_digits="3") as c:
        assert c.value("select 1") == "1"
    assert login_error(p, bogus_thing="1").text == "unsupported startup parameter: bogus_thing"
    assert login_error(p, options="-c bogus=1").text == "unsupported startup parameter in options: bogus"
    assert login_error(p, options="-x").text == \
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed"
    with p.login(options="-c datestyle=German --timezone=Asia/Tokyo") as c:
        assert c.value("show timezone") == "Asia/Tokyo"
        assert c.value("show datestyle").startswith("German")
    with p.wire() as c:
        c.send(wire.startup_packet({"database": "p0"}))
        assert c.fatal().text == "no username supplied"


def test_protocol_negotiation(pooler):
    p = pooler()
    with p.wire() as c:
        c.start(version=0x30000 | 9999, **{"_pq_.test": "1"})
        assert c.authenticate()[-1].type == "Z"
        assert c.negotiated.body == struct.pack("!II", 0x30002 if OURS else 0x30000, 1) + b"_pq_.test\0"
        assert c.value("select 1") == "1"


@pytest.mark.ours  # PgBouncer at verbose=2 logs packets
def test_no_secrets_in_the_log(pooler):
    p = pooler(auth_type="scram-sha-256", verbose=2)
    with p.login("s_scram", password=PASSWORD):
        pass
    login_error(p, "s_scram", password="hunter2-wrong")
    assert PASSWORD not in p.log() and "hunter2-wrong" not in p.log()
