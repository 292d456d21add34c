"""TLS on both sides: modes, certificates, RELOAD, and what must not get through."""
import concurrent.futures
import contextlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest

from conftest import OURS, PASSWORD, SANITIZED, wait_until
from wire import SSL_REQUEST, Closed, Wire, cancel_packet, query, startup_packet

SSL_PACKET = struct.pack("!II", 8, SSL_REQUEST)
ALPN = "postgresql"


# ---------------------------------------------------------------------------------------------- certificates

class Authority:
    def __init__(self, directory, name):
        self.dir, self.name = directory, name
        self._run("req", "-x509", *self._key("ca"), "-subj", f"/CN={name}", "-days", "2", "-out", self.crt("ca"))

    def crt(self, name):
        return self.dir / f"{self.name}-{name}.crt"

    def key(self, name):
        return self.dir / f"{self.name}-{name}.key"

    def _key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key(name)]

    @staticmethod
    def _run(*argv):
        subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True)

    def issue(self, name, cn, san=None):
        csr, ext = self.dir / "csr", self.dir / "ext"
        ext.write_text(f"subjectAltName={san}\n" if san else "basicConstraints=CA:FALSE\n")
        self._run("req", "-new", *self._key(name), "-subj", f"/CN={cn}", "-out", csr)
        self._run("x509", "-req", "-in", csr, "-CA", self.crt("ca"), "-CAkey", self.key("ca"), "-CAcreateserial",
                  "-days", "2", "-extfile", ext, "-out", self.crt(name))
        self.key(name).chmod(0o600)


@pytest.fixture(scope="session")
def certs():
    directory = Path(tempfile.mkdtemp(prefix="pgf-certs-", dir="/tmp"))
    one, two = Authority(directory, "one"), Authority(directory, "two")
    for ca in (one, two):
        ca.issue("pooler", "localhost", "DNS:localhost,IP:127.0.0.1")
        ca.issue("alice", "alice")
    one.issue("bob", "bob")
    one.issue("elsewhere", "elsewhere", "DNS:elsewhere")
    one.issue("common", "localhost")
    yield one, two
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def pg_tls(pg, certs):
    """The same PostgreSQL, with TLS on for this file's tests: connections that speak TLS cannot be taken over (-R)."""
    one, _ = certs
    pg.sql(f"alter system set ssl_cert_file = '{one.crt('pooler')}'")
    pg.sql(f"alter system set ssl_key_file = '{one.key('pooler')}'")
    pg.sql(f"alter system set ssl_ca_file = '{one.crt('ca')}'")
    pg.sql("alter system set ssl = on")
    pg.sql("select pg_reload_conf()")
    wait_until(lambda: pg.sql("show ssl")[0][0] == "on", "PostgreSQL speaks TLS")
    yield pg
    for name in ("ssl", "ssl_cert_file", "ssl_key_file", "ssl_ca_file"):
        pg.sql(f"alter system reset {name}")
    pg.sql("select pg_reload_conf()")
    wait_until(lambda: pg.sql("show ssl")[0][0] == "off", "PostgreSQL speaks plainly again")


@pytest.fixture
def tls_pooler(make_pooler, certs):
    """A pooler that speaks TLS with clients; towards servers only where a test asks for it."""
    one, _ = certs

    def make(client_tls_sslmode="prefer", server_tls_sslmode="disable", **kw):
        return make_pooler(client_tls_sslmode=client_tls_sslmode, server_tls_sslmode=server_tls_sslmode,
                           client_tls_key_file=one.key("pooler"), client_tls_cert_file=one.crt("pooler"),
                           client_tls_ca_file=kw.pop("client_tls_ca_file", one.crt("ca")), **kw).start()
    return make


def connect(p, sslmode="require", host="127.0.0.1", dbname="p0", user="alice", **kw):
    kw.setdefault("sslcert", "/none")
    kw.setdefault("sslkey", "/none")
    kw.setdefault("sslrootcert", "/none")
    return psycopg.connect(host=host, port=p.port, dbname=dbname, user=user, autocommit=True, sslmode=sslmode,
                           prepare_threshold=None, gssencmode="disable", **kw)


def one_value(conn, sql="select 1"):
    return conn.execute(sql).fetchone()[0]


def show(p, what):
    """SHOW over the Unix socket, where even a pooler that demands TLS demands none."""
    with p.wire(unix=p.unix).login("admin", "pgbouncer") as c:
        out = c.query(f"SHOW {what}")
        names = [n for n, _ in next(m for m in out if m.type == "T").columns]
        return [dict(zip(names, m.row)) for m in out if m.type == "D"]


def client_tls(p):
    """What SHOW CLIENTS says about the one client of p0."""
    (row,) = [r for r in show(p, "CLIENTS") if r["database"] == "p0"]
    return row["tls"]


class SecureWire(Wire):
    """Raw protocol inside TLS."""

    def __init__(self, port, direct=False, alpn=None, **kw):
        super().__init__(port, **kw)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if alpn:
            context.set_alpn_protocols(alpn)
        if not direct:
            self.send(SSL_PACKET)
            assert self.exactly(1) == b"S"
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


# ---------------------------------------------------------------------------------------------- clients

ALL = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


@pytest.mark.parametrize("ours", ALL)
def test_client_modes(tls_pooler, certs, ours):
    """Every mode of the pooler against every mode of libpq."""
    one, _ = certs
    p = tls_pooler(ours)
    own = {"sslcert": one.crt("alice"), "sslkey": one.key("alice")}
    for theirs in ALL:
        possible = not (ours == "disable" and theirs not in ("disable", "allow", "prefer")) and \
            not (ours in ("require", "verify-ca", "verify-full") and theirs == "disable")
        expect = contextlib.nullcontext() if possible else pytest.raises(psycopg.OperationalError)
        with expect as failure:
            with connect(p, theirs, host="localhost", sslrootcert=one.crt("ca"), **own) as c:
                assert one_value(c) == 1
                encrypted = bool(client_tls(p))
                assert encrypted == bool(c.pgconn.ssl_in_use)
                assert encrypted == (ours != "disable" and theirs not in ("disable",) and
                                     not (theirs == "allow" and ours in ("allow", "prefer")))
        if failure and theirs == "disable":
            assert "SSL required" in str(failure.value)


def test_tls_in_show_and_log(tls_pooler):
    p = tls_pooler("require", client_tls_protocols="tlsv1.3")
    with connect(p) as c:
        one_value(c)
        tls = client_tls(p)
        assert re.fullmatch(r"TLSv1\.3/TLS_\w+(/ECDH=\w+)?", tls), tls
        p.wait_log(f"login attempt: db=p0 user=alice tls={tls} replication=no")


def test_unix_sockets_speak_no_tls(tls_pooler):
    p = tls_pooler("require")
    with connect(p, "prefer", host=str(p.dir)) as c:  # and need none
        assert one_value(c) == 1 and not c.pgconn.ssl_in_use
    with p.wire(unix=p.unix) as w:
        w.send(SSL_PACKET)
        assert w.exactly(1) == b"N"
    with p.wire(unix=p.unix) as w:
        w.send(b"\x16\x03\x01\x02\x00\x01")
        assert "bad packet header" in w.fatal().text


def test_clear_text_behind_ssl_request(tls_pooler):
    """CVE-2021-23214: what was sent before the handshake must not be taken for what TLS brought."""
    p = tls_pooler("allow")
    injected = startup_packet({"user": "mallory", "database": "p0"})
    with p.wire() as w:
        w.send(SSL_PACKET + injected)
        assert w.fatal().text == "received unencrypted data after SSL request"
    with p.wire() as w:
        w.send(SSL_PACKET + injected[:1])
        assert w.fatal().text == "received unencrypted data after SSL request"
    with p.wire() as w:  # late, but still before any key exists
        w.send(SSL_PACKET)
        assert w.exactly(1) == b"S"
        w.send(injected)
        with contextlib.suppress(Closed):
            assert w.exactly(1) == b"\x15", "an alert"
    with p.wire() as w:
        w.send(SSL_PACKET)
        assert w.exactly(1) == b"S"
        tls = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(*tls).do_handshake()
        w.send(tls[1].read() + injected)
        with contextlib.suppress(Closed):
            w.until_closed()
    assert "mallory" not in p.log()


def test_ssl_request_inside_tls(tls_pooler):
    p = tls_pooler()
    with SecureWire(p.port) as w:
        w.send(SSL_PACKET)
        assert w.sock.recv(10) == b""
    p.wait_log("SSL req inside SSL")


def test_gss_before_and_inside_tls(tls_pooler):
    p = tls_pooler()
    gss = struct.pack("!II", 8, 80877104)
    with SecureWire(p.port) as w:
        w.send(gss)
        assert w.exactly(1) == b"N"
        w.login()
        assert w.value("select 1") == "1"
    with p.wire() as w:
        w.send(gss)
        assert w.exactly(1) == b"N"
        w.send(SSL_PACKET)
        assert w.exactly(1) == b"S"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_byte_by_byte(tls_pooler, version):
    p = tls_pooler()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
    tls = context.wrap_bio(incoming, outgoing)
    with p.wire() as w:
        w.send_slowly(SSL_PACKET)
        assert w.exactly(1) == b"S"

        def run(step):
            while True:
                try:
                    got = step()
                    w.send_slowly(outgoing.read())
                    return got
                except ssl.SSLWantReadError:
                    w.send_slowly(outgoing.read())
                    incoming.write(w.sock.recv(65536))
        run(tls.do_handshake)
        run(lambda: tls.write(startup_packet({"user": "alice", "database": "p0"})))
        answer = b""
        while not answer.endswith(b"Z\0\0\0\x05I"):
            answer += run(lambda: tls.read(65536))
        run(lambda: tls.write(query("select 'dribble'")))
        while b"dribble" not in answer:
            answer += run(lambda: tls.read(65536))


def test_large_answers_and_copy(tls_pooler, pg_tls, certs):
    p = tls_pooler("require", "require")
    with connect(p) as c:
        assert one_value(c, "select repeat('x', 20000000)") == "x" * 20_000_000
        rows = c.execute("select i, repeat(i::text, 50) from generate_series(1, 30000) i").fetchall()
        assert len(rows) == 30000 and rows[-1] == (30000, "30000" * 50)
        c.execute("create table if not exists tls_copy (i int, t text)")
        c.execute("truncate tls_copy")
        with c.cursor().copy("copy tls_copy from stdin") as copy:
            for i in range(100_000):
                copy.write_row((i, f"row {i}"))
        assert c.execute("select count(*), sum(i), sum(length(t)) from tls_copy").fetchone() == \
            (100_000, 4999950000, sum(len(f"row {i}") for i in range(100_000)))
        with c.cursor().copy("copy (select * from tls_copy order by i) to stdout") as copy:
            data = b"".join(bytes(b) for b in copy)
        assert data == b"".join(b"%d\trow %d\n" % (i, i) for i in range(100_000))
        c.execute("drop table tls_copy")


def test_slow_reader(tls_pooler, pg_tls):
    """A client that does not read stops its server, and gets everything in the end."""
    p = tls_pooler("require", "require")
    with SecureWire(p.port, rcvbuf=4096) as w:
        w.login()
        before = p.rss()
        w.send(query("select repeat('y', 1000) from generate_series(1, 60000)"))
        time.sleep(0.5)
        if not SANITIZED:
            assert p.rss() - before < 20_000_000
        out = w.until("Z")
        assert sum(m.type == "D" for m in out) == 60000


def test_asynchronous_reader_is_never_stuck(tls_pooler):
    """psycopg in a pipeline reads only when the socket is readable; no rest of a record may wait in its OpenSSL."""
    p = tls_pooler("require")
    with connect(p) as c:
        for size in (8000, 8191, 8192, 8193, 16000, 16384, 33000, 70000):
            with c.pipeline():
                curs = [c.execute("select repeat('z', %s)", (size,)) for _ in range(5)]
                assert [len(cur.fetchone()[0]) for cur in curs] == [size] * 5


def test_cancel_inside_tls_and_in_the_clear(tls_pooler, pg_tls):
    p = tls_pooler("require", "require")
    for secure in (True, False):
        with SecureWire(p.port) as w:
            w.login()
            w.send(query("select pg_sleep(100)"))
            wait_until(lambda: pg_tls.backends("query like '%pg_sleep(100)%' and state = 'active'"), "query runs")
            with (SecureWire(p.port) if secure else p.wire()) as canceller:
                canceller.send(cancel_packet(w.key))
                assert canceller.sock.recv(1) == b""
            (error,) = [m for m in w.until("Z") if m.type == "E"]
            assert error.code == "57014"
            assert w.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- direct TLS

@pytest.mark.ours
def test_direct_tls(tls_pooler):
    p = tls_pooler("require")
    with SecureWire(p.port, direct=True, alpn=[ALPN]) as w:
        assert w.sock.selected_alpn_protocol() == ALPN
        w.login()
        assert w.value("select 1") == "1"
    for alpn in (None, ["h2"], ["postgresq"]):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            SecureWire(p.port, direct=True, alpn=alpn).login()
    with SecureWire(p.port, alpn=["h2", ALPN]) as w:
        assert w.sock.selected_alpn_protocol() == ALPN
    with SecureWire(p.port) as w:  # behind an SSLRequest nobody has to name a protocol
        w.login()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        SecureWire(p.port, alpn=["h2"])
    assert connect(p).close() is None


def test_direct_tls_when_off(tls_pooler):
    p = tls_pooler("disable")
    with p.wire() as w:
        w.send(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        assert w.fatal().text == "bad packet header: '1603010200010001'"


# ---------------------------------------------------------------------------------------------- bad clients

def test_bad_hello_costs_nobody_else(tls_pooler):
    p = tls_pooler("prefer", client_tls_protocols="tlsv1.3")
    with connect(p) as c:
        for garbage in (b"\x16" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\x40\x00" + b"a" * 20000,
                        b"\x80\x2e\x01\x00\x02" + b"\0" * 50):
            with p.wire() as w:
                w.send(SSL_PACKET)
                assert w.exactly(1) == b"S"
                with contextlib.suppress(Closed):
                    w.send(garbage)
                w.until_closed()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
        with p.wire() as w:
            w.send(SSL_PACKET)
            assert w.exactly(1) == b"S"
            with pytest.raises(ssl.SSLError):
                old.wrap_socket(w.sock, server_hostname="localhost")
        assert one_value(c) == 1
    p.wait_log("TLS handshake error: ")
    wait_until(lambda: [r["database"] for r in p.show("CLIENTS")] == ["pgbouncer"], "nobody is left")


def test_slow_handshake_is_ended(tls_pooler):
    p = tls_pooler("require", client_login_timeout=1)
    with connect(p) as c, p.wire() as silent, p.wire() as half:
        silent.send(SSL_PACKET)
        half.send(SSL_PACKET)
        assert silent.exactly(1) == half.exactly(1) == b"S"
        half.send(b"\x16\x03\x01\x02\x00\x01")
        assert silent.at_eof() and half.at_eof()  # and no clear text instead of TLS
        assert one_value(c) == 1
    p.wait_log("closing because: client_login_timeout")


def test_end_without_goodbye_is_no_news(tls_pooler):
    p = tls_pooler("require")
    for _ in range(3):
        SecureWire(p.port).sock.close()
        SecureWire(p.port).login().drop()
        w = p.wire()
        w.send(SSL_PACKET)
        w.exactly(1)
        w.close()
    wait_until(lambda: [r["database"] for r in show(p, "CLIENTS")] == ["pgbouncer"], "all are gone")
    assert "TLS" not in "".join(line for line in p.log().splitlines() if "WARNING" in line)


# ---------------------------------------------------------------------------------------------- client certificates

@pytest.mark.parametrize("mode_", ["require", "verify-ca", "verify-full"])
def test_client_certificates(tls_pooler, certs, mode_):
    one, two = certs
    p = tls_pooler(mode_)

    def login(ca=None, name="alice"):
        kw = {"sslcert": ca.crt(name), "sslkey": ca.key(name)} if ca else {}
        with connect(p, **kw) as c:
            return one_value(c)
    assert login(one) == 1
    if mode_ == "require":
        assert login() == 1
    else:
        with pytest.raises(psycopg.OperationalError):
            login()
    with pytest.raises(psycopg.OperationalError):
        login(two)


def test_auth_type_cert(tls_pooler, certs):
    one, _ = certs
    p = tls_pooler("verify-full", auth_type="cert")
    with connect(p, sslcert=one.crt("alice"), sslkey=one.key("alice")) as c:
        assert one_value(c, "select current_user::text") == "alice"
    for user, name in (("alice", "bob"), ("nobody_knows", "bob"), ("admin", "alice")):
        with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
            connect(p, user=user, sslcert=one.crt(name), sslkey=one.key(name))
    with pytest.raises(psycopg.OperationalError):
        connect(p, "disable", host=str(p.dir))  # no certificate on the Unix socket


# ---------------------------------------------------------------------------------------------- servers

class TlsFront:
    """TLS in front of PostgreSQL as a test wants it: direct, with another certificate, or misbehaving."""

    def __init__(self, pg, cert, key, direct=False, answer=b"S", alpn=(ALPN,)):
        self.pg, self.direct, self.answer = pg, direct, answer
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert, key)
        self.context.set_alpn_protocols(list(alpn))
        self.chosen, self.first = [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.listener.accept()[0],), daemon=True).start()

    def _serve(self, sock):
        with contextlib.suppress(OSError), sock:
            if not self.direct:
                head = sock.recv(8, socket.MSG_WAITALL)
                self.first.append(head)
                if head != SSL_PACKET:
                    return
                sock.sendall(self.answer)
                if self.answer[:1] != b"S":
                    sock.recv(1)
                    return
            tls = self.context.wrap_socket(sock, server_side=True)
            self.chosen.append(tls.selected_alpn_protocol())
            back = socket.create_connection(("127.0.0.1", self.pg.port))

            def pump(a, b):
                with contextlib.suppress(OSError):
                    while data := a.recv(65536):
                        b.sendall(data)
                for s in (tls, back):
                    with contextlib.suppress(OSError):
                        s.shutdown(socket.SHUT_RDWR)
            other = threading.Thread(target=pump, args=(back, tls), daemon=True)
            other.start()
            pump(tls, back)
            other.join()


def ssl_of(conn):
    return conn.execute("select ssl, version from pg_stat_ssl where pid = pg_backend_pid()").fetchone()


@pytest.mark.parametrize("mode_", ALL)
def test_server_modes(make_pooler, pg_tls, certs, mode_):
    one, _ = certs
    p = make_pooler(server_tls_sslmode=mode_, server_tls_ca_file=one.crt("ca")).start()
    with p.connect() as c:
        encrypted, version = ssl_of(c)
        assert encrypted == (mode_ != "disable")
        row = [r for r in p.show("SERVERS") if r["database"] == "p0"][0]
        assert bool(row["tls"]) == encrypted
        if encrypted:
            assert row["tls"].startswith(f"{version}/")
            p.wait_log(f"SSL established: {row['tls']}")


@pytest.mark.parametrize("mode_", ["prefer", "require"])
def test_server_without_tls(make_pooler, pg_tls, certs, mode_):
    """N: prefer goes on in the clear, require does not, and sends no user name."""
    one, _ = certs
    with TlsFront(pg_tls, one.crt("pooler"), one.key("pooler"), answer=b"N") as front:
        p = make_pooler(server_tls_sslmode=mode_, query_wait_timeout=2 if mode_ == "require" else 120,
                        databases={"x": f"host=127.0.0.1 port={front.port} dbname=p0"}).start()
        if mode_ == "require":
            with pytest.raises(psycopg.OperationalError):
                p.connect("x")
            p.wait_log("closing because: server refused SSL")
        with p.connect("p0") as c:
            if mode_ == "prefer":
                assert one_value(c) == 1


@pytest.mark.parametrize("answer, why", [(b"SE\0\0\0\x0aevil", "received unencrypted data after SSL response"),
                                         (b"NR\0\0\0\x08\0\0\0\0", "received unencrypted data after SSL response"),
                                         (b"E\0\0\0\x0fSFATAL\0Mx\0\0", "bad sslreq answer"),
                                         (b"x", "bad sslreq answer")])
def test_bad_answers_to_ssl_request(make_pooler, pg, certs, answer, why):
    """CVE-2021-23222 and CVE-2024-10977: nothing that came in the clear is believed or passed on."""
    one, _ = certs
    with TlsFront(pg, one.crt("pooler"), one.key("pooler"), answer=answer) as front:
        p = make_pooler(server_tls_sslmode="prefer", query_wait_timeout=1,
                        databases={"x": f"host=127.0.0.1 port={front.port} dbname=p0"}).start()
        with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
            p.connect("x")
        p.wait_log(f"closing because: {why}")
        assert "evil" not in p.log()


@pytest.mark.parametrize("cert, host, verify_full", [("pooler", "localhost", True), ("pooler", "127.0.0.1", True),
                                                     ("common", "localhost", True), ("common", "127.0.0.1", False),
                                                     ("elsewhere", "localhost", False)])
def test_server_names(make_pooler, pg, certs, cert, host, verify_full):
    one, two = certs
    with TlsFront(pg, one.crt(cert), one.key(cert)) as front:
        p = make_pooler(server_tls_sslmode="verify-ca", server_tls_ca_file=one.crt("ca"), query_wait_timeout=1,
                        databases={"x": f"host={host} port={front.port} dbname=p0"}).start()
        with p.connect("x") as c:
            assert one_value(c) == 1
        assert p.admin("SET server_tls_sslmode = 'verify-full'")
        if verify_full:
            with p.connect("x") as c:
                assert one_value(c) == 1
        else:
            with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
                p.connect("x")
            p.wait_log("certificate verify failed")
        p.admin("SET server_tls_sslmode = 'verify-ca'")
        p.admin(f"SET server_tls_ca_file = '{two.crt('ca')}'")
        with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
            p.connect("x")


def test_certificate_for_the_server(make_pooler, pg_tls, certs):
    one, _ = certs
    p = make_pooler(server_tls_sslmode="require", server_tls_cert_file=one.crt("alice"),
                    server_tls_key_file=one.key("alice")).start()
    with p.connect() as c:
        assert one_value(c, "select client_dn from pg_stat_ssl where pid = pg_backend_pid()") == "/CN=alice"


@pytest.mark.ours
def test_direct_tls_to_the_server(make_pooler, pg, certs):
    one, _ = certs
    with TlsFront(pg, one.crt("pooler"), one.key("pooler"), direct=True) as front:
        p = make_pooler(server_tls_sslmode="verify-full", server_tls_ca_file=one.crt("ca"),
                        databases={"x": f"host=localhost port={front.port} dbname=p0 sslnegotiation=direct"}).start()
        with p.connect("x") as c:
            assert one_value(c, "select repeat('d', 1000000)") == "d" * 1_000_000
        assert set(front.chosen) == {ALPN}
    with TlsFront(pg, one.crt("pooler"), one.key("pooler"), direct=True, alpn=("h2",)) as front:
        p = make_pooler(server_tls_sslmode="require", query_wait_timeout=1,
                        databases={"x": f"host=localhost port={front.port} dbname=p0 sslnegotiation=direct"}).start()
        with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
            p.connect("x")
        p.wait_log("TLS handshake error: ")


@pytest.mark.workers(4)
def test_servers_are_lent_with_their_tls(tls_pooler, pg_tls):
    """One server serves clients of four workers: its TLS state travels with it."""
    p = tls_pooler("prefer", "require", default_pool_size=1)

    def work(n):
        with connect(p, "require" if n % 2 else "disable") as c:
            return {one_value(c, "select pg_backend_pid() + 0 * length(repeat('m', 3000))") for _ in range(150)}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        pids = set().union(*pool.map(work, range(16)))
    assert len(pids) == 1
    assert sum(int(w["servers_moved_in"]) for w in p.show("WORKERS")) > 0 if OURS else True
    assert "TLS handshake error" not in p.log()


def test_dead_tls_server_is_noticed(make_pooler, pg_tls):
    p = make_pooler(server_tls_sslmode="require").start()
    with p.connect() as c:
        pid = one_value(c, "select pg_backend_pid()")
        pg_tls.sql("select pg_terminate_backend(%s)", pid)
        wait_until(lambda: pid not in pg_tls.backends(), "it is gone")
        wait_until(lambda: p.pool()["sv_idle"] == 0, "its end is noticed")
        assert one_value(c, "select pg_backend_pid()") != pid


@pytest.mark.ours
@pytest.mark.parametrize("direct", [False, True])
def test_cancel_goes_to_the_server_through_tls(make_pooler, pg, certs, direct):
    one, _ = certs
    with TlsFront(pg, one.crt("pooler"), one.key("pooler"), direct=direct) as front:
        how = "direct" if direct else "postgres"
        p = make_pooler(server_tls_sslmode="verify-full", server_tls_ca_file=one.crt("ca"),
                        databases={"x": f"host=localhost port={front.port} dbname=p0 sslnegotiation={how}"}).start()
        with p.connect("x") as c, concurrent.futures.ThreadPoolExecutor(1) as other:
            running = other.submit(one_value, c, "select pg_sleep(100)::text")
            wait_until(lambda: pg.backends("query like '%pg_sleep(100)%' and state = 'active'"), "query runs")
            c.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                running.result()
            assert one_value(c) == 1
        assert len(front.chosen) == 2
        assert direct or front.first == [SSL_PACKET] * 2


@pytest.mark.ours
def test_scram_is_bound_to_the_channel(tls_pooler, pg_tls, certs):
    """PostgreSQL refuses a client that could bind and does not, so a login shows that we did."""
    p = tls_pooler("prefer", "require", auth_type="scram-sha-256")
    login = {"user": "s_scram", "password": PASSWORD}
    with connect(p, channel_binding="require", **login) as c:
        assert one_value(c, "select ssl from pg_stat_ssl where pid = pg_backend_pid()") is True
    with connect(p, channel_binding="disable", **login) as c:
        assert one_value(c) == 1
    with connect(p, "disable", **login) as c:
        assert one_value(c) == 1
    with pytest.raises(psycopg.OperationalError):
        connect(p, "disable", channel_binding="require", **login)
    with pytest.raises(psycopg.OperationalError, match="SASL authentication failed"):
        connect(p, channel_binding="require", **(login | {"password": "wrong"}))
    with SecureWire(p.port) as w:
        w.start("s_scram")
        w.authenticate(PASSWORD)
        assert w.mechanisms == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]
    with p.wire() as w:
        w.start("s_scram")
        w.authenticate(PASSWORD)
        assert w.mechanisms == ["SCRAM-SHA-256"]


# ---------------------------------------------------------------------------------------------- settings, RELOAD

def test_protocols_and_ciphers(tls_pooler):
    p = tls_pooler("prefer")

    def info():
        with connect(p) as c:
            one_value(c)
            return client_tls(p)
    p.admin("SET client_tls_protocols = 'tlsv1.2'")
    p.admin("SET client_tls_ciphers = 'ECDHE-ECDSA-AES128-GCM-SHA256'")
    assert info().startswith("TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256")
    p.admin("SET client_tls_protocols = 'secure,!tlsv1.2'")
    p.admin("SET client_tls13_ciphers = 'TLS_CHACHA20_POLY1305_SHA256'")
    assert info().startswith("TLSv1.3/TLS_CHACHA20_POLY1305_SHA256")
    if OURS:
        p.admin("SET client_tls_ecdhcurve = 'secp384r1'")
        assert info().endswith("/ECDH=secp384r1")
    p.admin("SET client_tls_dheparams = 'none'")
    for key, bad, good in (("client_tls13_ciphers", "unknown", "TLS_CHACHA20_POLY1305_SHA256"),
                           ("client_tls_protocols", "sslv2", "secure"),
                           ("client_tls_cert_file", "/none", p.settings["client_tls_cert_file"])):
        with p.console() as c:
            out = c.query(f"SET {key} = '{bad}'")
        assert [m.text for m in out if m.type == "N"] == \
            ["TLS settings could not be applied, still using old configuration"]
        assert [m.tag for m in out if m.type == "C"] == [f"SET {key}={bad}"]
        assert info().startswith("TLSv1.3/TLS_CHACHA20_POLY1305_SHA256")  # what was in force still is
        p.admin(f"SET {key} = '{good}'")
    p.wait_log("failed to set the TLSv1.3 cipher suites")
    p.wait_log("No such file or directory")


def test_reload_takes_new_certificates(tls_pooler, certs):
    one, two = certs
    p = tls_pooler("prefer")
    with connect(p, "verify-full", host="localhost", sslrootcert=one.crt("ca")) as old:
        p.settings |= {"client_tls_key_file": two.key("pooler"), "client_tls_cert_file": two.crt("pooler")}
        p.write_ini()
        assert p.admin("RELOAD") == "RELOAD"
        for _ in range(4):  # every worker
            with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
                connect(p, "verify-full", host="localhost", sslrootcert=one.crt("ca"))
            connect(p, "verify-full", host="localhost", sslrootcert=two.crt("ca")).close()
        assert one_value(old) == 1
        p.settings["client_tls_sslmode"] = "disable"
        p.write_ini()
        p.admin("RELOAD")
        with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
            connect(p)
        assert one_value(old) == 1


@pytest.mark.ours
def test_reload_rereads_files_of_the_same_name(tls_pooler, certs):
    one, two = certs
    p = tls_pooler("prefer")
    shutil.copy(one.crt("pooler"), p.dir / "t.crt")
    shutil.copy(one.key("pooler"), p.dir / "t.key")
    p.settings |= {"client_tls_cert_file": p.dir / "t.crt", "client_tls_key_file": p.dir / "t.key"}
    p.write_ini()
    p.admin("RELOAD")
    connect(p, "verify-full", host="localhost", sslrootcert=one.crt("ca")).close()
    shutil.copy(two.crt("pooler"), p.dir / "t.crt")
    with p.console() as c:  # the key does not fit yet
        (error,) = [m for m in c.query("RELOAD") if m.type == "E"]
    assert error.code == "F0000" and error.text == "RELOAD failed, see logs for additional details"
    p.wait_log("TLS configuration could not be reloaded, keeping old configuration")
    connect(p, "verify-full", host="localhost", sslrootcert=one.crt("ca")).close()
    shutil.copy(two.key("pooler"), p.dir / "t.key")
    p.admin("RELOAD")
    connect(p, "verify-full", host="localhost", sslrootcert=two.crt("ca")).close()


@pytest.mark.ours
def test_failed_reload_changes_nothing(tls_pooler, certs):
    p = tls_pooler("prefer", default_pool_size=3)
    p.settings |= {"client_tls_cert_file": "/none.crt", "default_pool_size": 7}
    p.write_ini()
    with p.console() as c:
        (error,) = [m for m in c.query("RELOAD") if m.type == "E"]
    assert error.code == "F0000"
    p.wait_log("TLS setup failed: client_tls_cert_file = /none.crt: No such file or directory")
    assert {r["key"]: r["value"] for r in p.show("CONFIG")}["default_pool_size"] == "3"
    connect(p).close()


def test_servers_are_replaced_only_if_their_tls_changed(tls_pooler, pg_tls, certs):
    one, two = certs
    p = tls_pooler("prefer", "require")

    def backend():
        with p.connect() as c:
            return one_value(c, "select pg_backend_pid()")
    pid = backend()
    p.admin("RELOAD")
    p.settings |= {"client_tls_key_file": two.key("pooler"), "client_tls_cert_file": two.crt("pooler")}
    p.write_ini()
    p.admin("RELOAD")
    assert backend() == pid
    for change in ({"server_tls_protocols": "tlsv1.2"}, {"server_tls_sslmode": "allow"},
                   {"server_tls_ca_file": one.crt("ca"), "server_tls_sslmode": "verify-ca"},
                   {"server_tls_sslmode": "disable"}):
        p.settings |= change
        p.write_ini()
        p.admin("RELOAD")
        before, pid = pid, backend()
        assert pid != before, change
        p.admin("RELOAD")
        assert backend() == pid


@pytest.mark.parametrize("settings, text", [
    ({"client_tls_sslmode": "require"}, "client_tls_key_file and client_tls_cert_file must be set"),
    ({"client_tls_cert_file": "/none.crt"}, "client_tls_cert_file = /none.crt: No such file or directory"),
    ({"client_tls_sslmode": "verify-full", "client_tls_ca_file": None}, "client_tls_sslmode requires client_tls_ca_file"),
    ({"auth_type": "cert"}, "auth_type=cert requires client_tls_sslmode=SSLMODE_VERIFY_FULL"),
    ({"server_tls_ca_file": "/none.crt"}, "server_tls_ca_file = /none.crt: No such file or directory"),
    ({"server_tls_protocols": "sslv3"}, "invalid server_tls_protocols: sslv3"),
])
@pytest.mark.ours
def test_bad_files_are_fatal_at_start(make_pooler, certs, settings, text):
    one, _ = certs
    p = make_pooler(client_tls_sslmode="allow", client_tls_ca_file=one.crt("ca"))
    if settings != {"client_tls_sslmode": "require"}:
        p.settings |= {"client_tls_key_file": one.key("pooler"), "client_tls_cert_file": one.crt("pooler")}
    p.settings |= settings
    p.expect_exit = 1
    p.write_ini()
    p.spawn()
    assert p.wait_exit() == 1
    assert text in p.stderr.read_text() + p.log()


# ---------------------------------------------------------------------------------------------- cost

@pytest.mark.skipif(SANITIZED, reason="sanitizers have their own memory")
def test_idle_clients_are_small(tls_pooler):
    """At most 16 kB more than a plain one."""
    p = tls_pooler("prefer", max_client_conn=2000)

    def grow(make, n=300):
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(make()).login()
            before = p.rss()
            for _ in range(n):
                stack.enter_context(make()).login()
            return (p.rss() - before) / n
    plain = grow(p.wire)
    secure = grow(lambda: SecureWire(p.port))
    assert secure - plain < 16 * 1024, (plain, secure)
