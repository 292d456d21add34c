"""Section 2 of the reliability catalogue: TLS. Modes, certificates, injection and reload by hand: test_tls.py."""
import base64
import contextlib
import os
import socket
import ssl
import struct

import psycopg
import pytest

from conftest import PASSWORD, wait_until
from test_reliability_1 import sasl_first
from test_reliability_12 import at_work
from test_reliability_3 import types
from test_tls import SSL_PACKET, SecureWire, certs, connect, one_value, pg_tls, tls_pooler  # noqa: F401
from wire import msg, query

pytestmark = pytest.mark.ours


# ------------------------------------------------------------------------------------------------- 12: channel binding

@pytest.mark.one_engine
def test_r12_channel_binding_cannot_be_talked_away(tls_pooler):  # noqa: F811
    p = tls_pooler(auth_type="scram-sha-256", userlist={"alice": PASSWORD})

    def attempt(secure, mechanism, first, final=None):
        """Types of what comes back, and the code of the error."""
        with SecureWire(p.port) if secure else p.wire() as c:
            c.start()
            offered = [m for m in c.recv().body[4:].split(b"\0") if m]
            assert (b"SCRAM-SHA-256-PLUS" in offered) == secure
            c.send(sasl_first(first, mechanism))
            m = c.recv()
            if m.type == "R" and final:
                nonce = dict(x.split(b"=", 1) for x in m.body[4:].split(b","))[b"r"]
                c.send(msg("p", final.replace(b"NONCE", nonce) + b",p=" + base64.b64encode(b"x" * 32)))
                m = c.recv()
            return m.type if m.type == "R" else m.code
    plain, plus = "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"
    bound = b"c=" + base64.b64encode(b"p=tls-server-end-point,," + b"x" * 32) + b",r=NONCE"
    assert attempt(True, plain, "n,,n=,r=abc") == "R", "a client that cannot bind"
    assert attempt(True, plus, "p=tls-server-end-point,,n=,r=abc") == "R"
    assert attempt(False, plain, "n,,n=,r=abc") == "R"
    assert attempt(False, plain, "y,,n=,r=abc") == "R", "it could, and was offered nothing"
    refused = {
        "says that nothing was offered, and it was": (True, plain, "y,,n=,r=abc"),
        "binds without the mechanism for it": (True, plain, "p=tls-server-end-point,,n=,r=abc"),
        "the mechanism without binding": (True, plus, "n,,n=,r=abc"),
        "the mechanism, and y": (True, plus, "y,,n=,r=abc"),
        "another kind of binding": (True, plus, "p=tls-unique,,n=,r=abc"),
        "no kind of binding": (True, plus, "p=junk,,n=,r=abc"),
        "bound without TLS": (False, plus, "p=tls-server-end-point,,n=,r=abc"),
        "bound by the wrong certificate": (True, plus, "p=tls-server-end-point,,n=,r=abc", bound),
        "binds in the second message only": (True, plain, "n,,n=,r=abc", bound),
        "takes it back in the second message": (True, plus, "p=tls-server-end-point,,n=,r=abc", b"c=biws,r=NONCE"),
        "another header": (False, plain, "n,,n=,r=abc", b"c=eSws,r=NONCE"),
    }
    for name, (secure, *how) in refused.items():
        assert attempt(secure, *how) in ("28P01", "08P01"), name
    with connect(p, password=PASSWORD, channel_binding="require") as c:
        assert one_value(c) == 1


# ------------------------------------------------------------------------------------------------- 30: names of hosts

@pytest.mark.one_engine
def test_r30_each_host_of_a_list_is_checked_by_its_own_name(make_pooler, pg_tls, certs):  # noqa: F811
    """The certificate is good for 127.0.0.1: the other address in the list is refused each time, and costs no client
    anything but time."""
    one, _ = certs
    p = make_pooler(server_tls_sslmode="verify-full", server_tls_ca_file=one.crt("ca"), default_pool_size=4,
                    server_login_retry="0.05")
    p.databases["p0"] = f"host=127.0.0.2,127.0.0.1 port={pg_tls.port} dbname=p0"
    p.start()
    clients = [p.login() for _ in range(4)]
    for c in clients:
        c.query("begin")
        assert c.value("select host(inet_server_addr())") == "127.0.0.1"
        assert c.value("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == "t"
    assert "127.0.0.2" in p.log() and {r["addr"] for r in p.show("SERVERS")} == {"127.0.0.1"}
    [c.close() for c in clients]


# ------------------------------------------------------------------------------------------------- 32, 33: abandoned

def test_r32_slow_and_abandoned_handshakes(tls_pooler):  # noqa: F811
    """300 sockets that send a hello byte by byte, or a part of it and nothing more: each ends at client_login_timeout,
    what they cost comes back, and others get in meanwhile."""
    p = tls_pooler(client_login_timeout=2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    sizes = []
    with connect(p) as c:
        for _ in range(2):
            slow = [socket.create_connection(("127.0.0.1", p.port)) for _ in range(300)]
            for s in slow:
                s.sendall(SSL_PACKET)
            for s in slow:
                assert s.recv(1) == b"S"
            for n in range(10):
                for i, s in enumerate(slow):
                    if i % 2 or n < 5:
                        with contextlib.suppress(OSError):  # its time may be over on a slow machine
                            s.sendall(hello[n:n + 1])
                with connect(p) as late:
                    assert one_value(late) == one_value(c) == 1
            for s in slow:
                s.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    while s.recv(1000):
                        pass
                s.close()
            sizes.append(p.rss())
    assert sizes[1] - sizes[0] < 8_000_000, sizes  # what they cost was 15 MB
    assert p.log().count("closing because: client_login_timeout") >= 600
    wait_until(lambda: {r["list"]: r["items"] for r in p.show("LISTS")}["login_clients"] == "0", "nothing is left of them")


@pytest.mark.parametrize("how", ["eof", "reset in a record", "half a record", "alert", "garbage"])
def test_r33_unclean_end_of_tls(tls_pooler, pg, how):  # noqa: F811
    """In a transaction: it is rolled back, the log says no more than of any client that goes, nobody stays."""
    p = tls_pooler(default_pool_size=1)
    pg.sql("truncate t")
    for _ in range(3):
        c = SecureWire(p.port).login()
        c.query("begin")
        c.query("insert into t (v) values ('lost')")
        raw = socket.socket(fileno=c.sock.detach())
        if how != "eof":
            raw.sendall({"alert": b"\x15\x03\x03\x00\x13" + b"a" * 19, "garbage": b"select 1;" * 100}
                        .get(how, b"\x17\x03\x03\x10\x00" + b"x" * 100))
        if how == "reset in a record":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        with SecureWire(p.port).login() as d:
            assert d.query("select 'next'")[-1].body == b"I"
            assert d.value("select count(*) from t") == "0"
    wait_until(lambda: p.pool()["cl_active"] + p.pool()["sv_active"] == 0, "nobody is left")
    assert " ERROR " not in p.log() and len(p.log().splitlines()) < 150


# ------------------------------------------------------------------------------------------------- 34: reload

@pytest.mark.workers(3)
@pytest.mark.one_engine
def test_r34_a_storm_of_certificates(tls_pooler, certs):  # noqa: F811
    """Certificates are exchanged under load, file by file: after the first file of each pair they do not match, RELOAD is
    refused and the old pair serves on; after the second the new pair does, on every worker. Nobody's session ends."""
    one, two = certs
    p = tls_pooler("prefer")
    cert, key = p.dir / "t.crt", p.dir / "t.key"
    for source, target in ((one.crt("pooler"), cert), (one.key("pooler"), key)):
        target.write_bytes(source.read_bytes())
    p.settings |= {"client_tls_cert_file": cert, "client_tls_key_file": key}
    p.write_ini()
    p.admin("RELOAD")

    def who():
        """The authority of the certificate that is shown, asked often enough to meet all workers."""
        found = set()
        for ca in (one, two):
            for _ in range(4):
                with contextlib.suppress(psycopg.OperationalError):
                    connect(p, "verify-full", host="localhost", sslrootcert=ca.crt("ca")).close()
                    found.add(ca)
        return found

    def reload():
        with p.console() as c:
            return c.query("RELOAD")[0].type

    def replace(path, source):
        new = path.with_suffix(".new")
        new.write_bytes(source)
        os.rename(new, path)
    with connect(p) as old, at_work(p, clients=2):
        for i in range(6):
            before, after = (one, two) if i % 2 == 0 else (two, one)
            replace(cert, after.crt("pooler").read_bytes())
            assert reload() == "E" and who() == {before}
            for half in (b"", after.key("pooler").read_bytes()[:100], b"\0" * 100):
                replace(key, half)
                assert reload() == "E"
            key.unlink()
            assert reload() == "E" and who() == {before}
            replace(key, after.key("pooler").read_bytes())
            assert reload() == "C" and who() == {after}
            assert one_value(old) == 1
        for setting, value in (("client_tls_ciphers", "no-such-cipher"), ("client_tls_protocols", "tlsv9"),
                               ("client_tls_sslmode", "sometimes"), ("client_tls_ca_file", "/none"),
                               ("client_tls_dheparams", "/none"), ("client_tls_ecdhcurve", "no-such-curve"),
                               ("client_tls13_ciphers", "none")):
            good = dict(p.settings)
            p.settings[setting] = value
            p.write_ini()
            answer = reload()
            if setting != "client_tls_dheparams":
                assert answer == "E", setting
            p.settings = good
            p.write_ini()
            assert reload() == "C" and one_value(old) == 1
            connect(p).close()


# ------------------------------------------------------------------------------------------------- 35: hidden bytes

def test_r35_many_messages_in_one_record(tls_pooler):  # noqa: F811
    """Everything that came in one write is answered, though no byte follows; also when it is more than a fair share, and
    when the client waits for a server in between."""
    p = tls_pooler(default_pool_size=1)
    with SecureWire(p.port).login() as c, p.login() as other:
        for count in (2, 100, 3000):
            c.send(b"".join(query(f"select {i}") for i in range(count)))
            for i in range(count):
                assert [m.row for m in c.until() if m.type == "D"] == [[str(i)]]
        other.query("begin")
        c.send(query("select 'first'"), query("select 'second'"), query("begin"), query("select 'third'"), query("commit"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
        other.query("commit")
        assert [types(c.until()) for _ in range(5)] == ["TDCZ", "TDCZ", "CZ", "TDCZ", "CZ"]
