#!/usr/bin/python3
"""tests/fuzz/seeds.py FOLDER [--made]: seeds of the fuzz targets, FOLDER/TARGET/NAME; --made: none that are captured.

Conversations are captured here and now: psql, pgbench and the driver programs of tests/e2e/drivers talk to a PostgreSQL
of their own through a recorder. What is kept in tests/fuzz/corpus is what scripts/fuzz --minimise left of them and of
what fuzzing added.
"""
import base64
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import conftest  # noqa: E402  (from here on not root)
import clusters  # noqa: E402

OUT = Path(sys.argv[1])
count = {}


def seed(target, data, name=None):
    count[target] = count.get(target, 0) + 1
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (name or f"seed-{count[target]:03}")).write_bytes(data if isinstance(data, bytes) else data.encode("latin-1"))


# ------------------------------------------------------------------------------------------------ captured

class Recorder:
    """A proxy that keeps what both sides say, in order: [(from_client, bytes)...] per connection."""

    def __init__(self, port):
        self.to, self.conversations, self.lock = port, [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.to))
            said = []
            self.conversations.append(said)
            for a, b, who in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(a, b, who, said), daemon=True).start()

    def pump(self, a, b, who, said):
        try:
            while data := a.recv(1 << 16):
                with self.lock:
                    if said and said[-1][0] == who:
                        said[-1][1].extend(data)
                    else:
                        said.append((who, bytearray(data)))
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def play(said, flags, honest):
    """As an input of conversation_fuzz."""
    out = bytes([flags | 16])
    for who, data in said:
        data = bytes(data)
        if who:
            out += b"\x08" + struct.pack(">H", len(data)) + data
        elif honest:
            out += b"\x02"
        else:
            for at in range(0, len(data), 255):
                out += b"\x03" + bytes([len(data[at:at + 255])]) + data[at:at + 255]
    return out


def messages(data):
    at = 0
    while at + 5 <= len(data):
        n = struct.unpack_from(">I", data, at + 1)[0]
        if at + 1 + n > len(data):
            return
        yield data[at:at + 1], data[at + 5:at + 1 + n]
        at += 1 + n


def captured():
    pg = clusters.Cluster("127.0.0.1", conftest.free_port())
    pg.start()
    try:
        with pg.connect("postgres") as sql:
            for role in conftest.ROLES:
                sql.execute(f"create role {role} login superuser")
            sql.execute("create table item (conn int, i int, v text)")
            sql.execute("create table bulk (conn int, i int, v text)")
        rec = Recorder(pg.port)
        url = f"postgresql://postgres@127.0.0.1:{rec.port}/postgres?sslmode=disable"
        run = lambda *argv: subprocess.run([*map(str, argv)], capture_output=True, timeout=120)  # noqa: E731
        run("psql", url, "-c", "select 1", "-c", "begin", "-c", "select nothing", "-c", "rollback", "-c", "set timezone='UTC'",
            "-c", "copy (select 1) to stdout", "-c", "discard all", "-c", "")
        run("psql", url, "-c", "select 1 \\bind \\g", "-c", "notify x", "-c", "do $$ begin raise notice 'n'; end $$")
        run("psql", f"{url}&replication=database", "-c", "IDENTIFY_SYSTEM")
        script = OUT / "script.sql"
        OUT.mkdir(parents=True, exist_ok=True)
        script.write_text("select :client_id;\nbegin;\nselect 2;\nend;\n")
        for mode in ("simple", "extended", "prepared"):
            run("pgbench", "-n", "-f", script, "-M", mode, "-t", "2", url)
        script.unlink()
        drivers = ROOT / "tests/e2e/drivers"
        for program in (["/usr/bin/python3", drivers / "py_psycopg3.py"], ["/usr/bin/python3", drivers / "py_asyncpg.py"],
                        ["node", drivers / "node/pg.mjs"], ["perl", drivers / "dbd_pg.pl"]):
            run(*program, url, "transaction")
        jar = "/usr/share/java/postgresql.jar"
        run("javac", "-cp", jar, "-d", "/tmp", drivers / "Jdbc.java")
        run("java", "-cp", f"/tmp:{jar}", "Jdbc", url, "transaction")
    finally:
        pg.stop()
        pg.remove()

    bodies, firsts, texts = set(), set(), set()
    kept = {}
    for said in list(rec.conversations):
        if not said or not said[0][0]:
            continue
        firsts.add(bytes(said[0][1])[:400])
        size, cut = 0, []
        for who, data in said[:40]:
            if size + len(data) > 3000:
                break
            size += len(data)
            cut.append((who, data))
        shape = tuple((who, tuple(t for t, _ in messages(bytes(d)))) for who, d in cut[1:])
        kept.setdefault(shape, cut)
        for who, data in cut[1:]:
            for kind, body in messages(bytes(data)):
                if len(body) < 400:
                    bodies.add((kind, body))
                if who and kind in b"QP":
                    texts.add(body)
    for n, cut in enumerate(sorted(kept.values(), key=lambda c: sum(len(d) for _, d in c))[:40]):
        for flags in (0, 2, 5):
            seed("conversation_fuzz", play(cut, flags, True), f"captured-{n:02}-honest-{flags}")
        seed("conversation_fuzz", play(cut, n % 8, False), f"captured-{n:02}-raw")
    for first in sorted(firsts):
        seed("startup_fuzz", first)
    shapes = {}
    for kind, body in sorted(bodies):
        shapes.setdefault((kind, len(body)), body)
    for body in shapes.values():
        seed("read_fuzz", body)
    for text in sorted(texts):
        seed("prepared_fuzz", text[:200])


# ------------------------------------------------------------------------------------------------ made

def msg(kind, body=b""):
    return kind.encode() + struct.pack(">I", 4 + len(body)) + body


def query(sql):
    return msg("Q", sql.encode() + b"\0")


def parse(name, sql):
    return msg("P", name.encode() + b"\0" + sql.encode() + b"\0\0\0")


def bind(name, portal=""):
    return msg("B", portal.encode() + b"\0" + name.encode() + b"\0\0\0\0\0\0\0")


DESCRIBE, EXECUTE, SYNC, FLUSH = msg("D", b"P\0"), msg("E", b"\0\0\0\0\0"), msg("S"), msg("H")


def statement(kind, name):
    return msg(kind, b"S" + name.encode() + b"\0")


def conversations():
    batch = bind("a") + DESCRIBE + EXECUTE + SYNC
    turns = {
        "simple": [query("select 1"), query("begin"), query("e"), query("s"), query("commit"), query("")],
        "several": [query("s") + query("begin") + query("s") + query("c")],
        "copy": [query("in"), msg("d", b"row") + msg("c"), query("in"), msg("d", b"row") + msg("f", b"no\0"), query("out"),
                 query("in") + msg("d", b"x") + msg("c") + query("s")],
        "copyext": [parse("", "in") + bind("") + EXECUTE + SYNC, msg("d", b"row") + msg("c") + SYNC, query("s"),
                    parse("", "in") + bind("") + EXECUTE + msg("d", b"1") + msg("c") + SYNC],
        "extended": [parse("", "s") + bind("") + DESCRIBE + EXECUTE + SYNC, parse("", "E") + bind("") + EXECUTE + SYNC,
                     bind("") + EXECUTE + FLUSH, SYNC],
        "named": [parse("a", "s1") + SYNC, batch, parse("b", "s2") + parse("c", "s3") + SYNC, bind("b") + EXECUTE + SYNC,
                  batch, statement("D", "c") + SYNC, statement("C", "a") + SYNC, parse("a", "s4") + SYNC, batch,
                  query("deallocate a"), query("DISCARD ALL"), query("deallocate all") + parse("a", "s1") + SYNC],
        "stale": [parse("a", "p") + SYNC, batch, batch, parse("b", "p") + bind("b") + EXECUTE + SYNC],
        "failed": [parse("a", "E") + SYNC, parse("a", "s") + batch, parse("x", "E") + parse("y", "s") + SYNC, bind("y") + SYNC],
        "pipeline": [parse("a", "s") + bind("a") + EXECUTE + SYNC + bind("a") + EXECUTE + SYNC + parse("", "e") + bind("") +
                     EXECUTE + SYNC + query("s")],
        "settings": [query("xapplication_name=z"), query("xTimeZone=UTC"), query("xsearch_path=a, b"), query("notice")],
        "function": [msg("F", b"\0\0\0\1\0\0\0\0\0\0")],
        "bye": [query("s"), msg("X")],
        "bad": [query("s"), msg("?", b"x")],
        "huge": [b"Q\x7f\xff\xff\xffselect"],
        "half": [query("select 1")[:7], query("select 1")[7:]],
    }
    login = b"".join(k.encode() + b"\0" for k in ("user", "u", "database", "db", "options", "-c search_path=x", ""))
    startup = struct.pack(">II", 8 + len(login), 3 << 16) + login
    cancel = struct.pack(">II", 16, 80877102) + bytes(8)
    ssl, gss = struct.pack(">II", 8, 80877103), struct.pack(">II", 8, 80877104)
    for config in range(8):
        for name, parts in turns.items():
            out = bytes([config])
            for n, part in enumerate(parts):
                out += bytes([8 | (n % 5 == 4)]) + struct.pack(">H", len(part)) + part + b"\x02"
            seed("conversation_fuzz", out, f"{name}-{config}")
        # Two at once, one leaves in the middle of it, time passes.
        a, b = query("begin"), query("s")
        both = bytes([config]) + b"\0" + bytes([len(a)]) + a + b"\1" + bytes([len(b)]) + b + b"\x02\x3f\x04\x02\xff\x02"
        seed("conversation_fuzz", both, f"both-{config}")
        # One is cancelled while it waits, while its query runs, and while it does nothing.
        out = bytes([config])
        for order in (b"\0" + bytes([len(b)]) + b, b"\2\0" + bytes([len(a)]) + a, b"\2\1" + bytes([len(b)]) + b, b"\x1e", b"\0" + bytes([len(b)]) + b,
                      b"\x0e", b"\2", b"\2", b"\x0e\2"):
            out += order
        seed("conversation_fuzz", out, f"cancel-{config}")
        for first in (startup, ssl + b"", gss, cancel):
            out = bytes([config | 16]) + b"\0" + bytes([len(first)]) + first
            if first in (ssl, gss):
                out += b"\x02\0" + bytes([len(startup)]) + startup
            password = msg("p", b"secret\0") if config != 6 else msg("p", b"SCRAM-SHA-256\0\0\0\0\x0bn,,n=,r=abc")
            out += b"\0" + bytes([len(password)]) + password + b"\x02\x02\0" + bytes([len(b)]) + b + b"\x02"
            seed("conversation_fuzz", out, f"login-{config}-{len(first)}")
    # How clients and servers log in.
    def said(data, who=0):
        return bytes([8 | who]) + struct.pack(">H", len(data)) + data

    def starts(user="u", database="db", **more):
        body = b"".join(k.encode() + b"\0" for k in ("user", user, "database", database))
        body += b"".join(k.encode() + b"\0" + v.encode() + b"\0" for k, v in more.items()) + b"\0"
        return struct.pack(">II", 8 + len(body), 3 << 16) + body

    secret, md5 = msg("p", b"secret\0"), msg("p", b"md5" + b"0" * 32 + b"\0")
    scram = msg("p", b"SCRAM-SHA-256\0" + struct.pack(">I", 12) + b"n,,n=,r=abcd") + msg("p", b"c=biws,r=abcd,p=AAAA")
    for config in range(8, 16):
        seed("conversation_fuzz", bytes([config]) + said(query("s")) + b"\2\2\2" + said(parse("a", "s") + bind("a") + EXECUTE + SYNC) + b"\2\2", f"plain-{config}")
        for n, (start, rest) in enumerate([(starts(), secret), (starts("v"), secret), (starts(user="x"), secret), (starts(database="pgbouncer"), secret + query("show x")),
                                           (starts(), md5), (starts(), scram), (starts(user="u" * 200), b""), (starts(database="d" * 70), secret), (starts(user=""), b""),
                                           (starts(x="y"), b""), (starts(replication="database"), secret + query("IDENTIFY_SYSTEM")), (starts(), msg("p", b"\0")),
                                           (starts(), b"p\0\0\0\3"), (starts(), msg("p", b"x"))]):
            seed("conversation_fuzz", bytes([config | 16]) + said(start) + b"\2" + said(rest) + b"\2\2\2" + said(query("s")) + b"\2\2", f"in-{config}-{n}")
    for config in (0, 4, 7, 12):
        for asks in (64, 128, 192):
            for database in ("db", "strict", "odd"):
                seed("conversation_fuzz", bytes([config | 16 | asks]) + said(starts(database=database)) + b"\2" + said(secret) + b"\2\2\2\2" + said(query("s")) + b"\2\2\2", f"asks-{config}-{asks}-{database}")
    sasl = struct.pack(">i", 10) + b"SCRAM-SHA-256\0\0"
    for config in (0, 12):
        for n, words in enumerate([msg("R", struct.pack(">i", 3)), msg("R", struct.pack(">i", 5) + b"salt"), msg("R", struct.pack(">i", 5)), msg("R", struct.pack(">i", 7)),
                                   msg("R", struct.pack(">i", 9)), msg("R", sasl), msg("R", sasl) + msg("R", sasl), msg("R", struct.pack(">i", 11) + b"r=x"), msg("R", struct.pack(">i", 12) + b"v=x"),
                                   msg("R", b"x"), msg("R", struct.pack(">i", 99)), msg("R", sasl) + msg("R", struct.pack(">i", 0)), msg("R", sasl) + msg("R", struct.pack(">i", 11) + b"r=x"),
                                   msg("R", sasl) + msg("R", struct.pack(">i", 12) + b"v=x"), msg("E", b"SFATAL\0C28P01\0Mno\0\0"), msg("E", b"\0"), msg("N", b"\0"), msg("S", b"x"), msg("K", b"short"),
                                   msg("v", struct.pack(">II", 3 << 16, 0)), msg("v", struct.pack(">II", 9 << 16, 0)), msg("Z", b"I"), b"?\0\0\0\4", b"R\0\0\0\0", b"S", b"N", b"NX", b"S\x15\3\3\0\2\2\x28",
                                   msg("R", struct.pack(">i", 0)) + msg("K", b"12345678") + msg("Z", b"T"),
                                   msg("R", struct.pack(">i", 0)) + msg("S", b"a\0b\0") + msg("S", b"TimeZone\0X\0") + msg("K", bytes(36)) + msg("Z", b"I")]):
            for database in ("db", "strict", "odd"):
                out = bytes([config | 16]) + said(starts(database=database)) + b"\3" + bytes([len(words)]) + words + said(query("s")) + b"\2\x7f\2\6\xff\2"
                seed("conversation_fuzz", out, f"server-login-{config}-{n}-{database}")
            out = bytes([config | 16]) + said(starts(replication="true")) + b"\3" + bytes([len(words)]) + words + b"\2\2" + said(query("s")) + b"\2"
            seed("conversation_fuzz", out, f"replication-{config}-{n}")
    # An unnamed statement of one client, another's in between; more text than there is room for.
    for config in (0, 1, 3, 5, 8, 13):
        seed("conversation_fuzz", bytes([config]) + said(parse("", "s1") + SYNC) + b"\2\2" + said(parse("", "s2") + bind("") + EXECUTE + SYNC, 1) + b"\2\2" +
             said(bind("") + DESCRIBE + EXECUTE + SYNC) + b"\2\2\2" + said(bind("") + SYNC, 1) + b"\2\2", f"unnamed-{config}")
        out = bytes([config])
        for n in range(4):
            out += said(parse(f"n{n}", "s" + str(n) * 120) + bind(f"n{n}") + EXECUTE + SYNC, n % 2) + b"\2\2"
        seed("conversation_fuzz", out + said(parse("big", "s" * 400) + SYNC) + b"\2\2", f"room-{config}")
        batch = bind("a") + DESCRIBE + EXECUTE + SYNC
        seed("conversation_fuzz", bytes([config]) + said(parse("a", "p") + SYNC) + b"\2\2" + said(batch) + b"\2\2\2" + said(batch) + b"\2\2", f"again-{config}")
        seed("conversation_fuzz", bytes([config]) + said(statement("C", "") + parse("a", "s") + SYNC) + b"\2\2" + said(query("e") + statement("C", "a") + bind("a") + SYNC) + b"\2\2" +
             said(bind("zz") + statement("C", "a") + SYNC) + b"\2", f"closed-{config}")
        for n, words in enumerate([msg("E", b"SFATAL\0C57P01\0Mbye\0\0"), msg("Z", b"X"), msg("Z", b""), msg("C", b"X" * 30), b"C\0\1\1\1", msg("S", b"x"), msg("A", b"\0\0\0\1x\0\0"),
                                   msg("D", b"\0\0"), msg("E", b"SERROR\0C25006\0Mro\0\0") + msg("Z", b"E"), msg("1") + msg("2"), msg("G", b"\0\0\0"), msg("Z", b"I") + msg("D", b"")]):
            seed("conversation_fuzz", bytes([config]) + b"\2" + said(query("s")) + b"\2\3" + bytes([len(words)]) + words + b"\2" + said(query("s")) + b"\2\2", f"odd-{config}-{n}")
            seed("conversation_fuzz", bytes([config]) + said(query("s")) + b"\3" + bytes([len(words)]) + words + b"\2\2", f"odd-set-{config}-{n}")
    # A server that says odd things.
    for n, odd in enumerate([msg("Z", b"I"), msg("A", b"\0\0\0\1x\0\0"), msg("E", b"SFATAL\0C57P01\0Mbye\0\0"), msg("N", b"\0"),
                             msg("S", b"a\0b\0"), msg("S", b"a"), b"?", msg("D", b"\0\0") + msg("C", b"X\0") + msg("Z", b"I"),
                             msg("K", b"12345678"), msg("v", b"\0\3\0\0\0\0\0\0"), msg("R", b"\0\0\0\3")]):
        q = query("s")
        seed("conversation_fuzz", b"\0\x02\0" + bytes([len(q)]) + q + b"\3" + bytes([len(odd)]) + odd + b"\x02\0" +
             bytes([len(q)]) + q + b"\x02\6", f"odd-{n}")


def texts():
    for ini in [*ROOT.glob("etc/*.ini"), *ROOT.glob("tests/e2e/inis/*.ini")]:
        data = ini.read_bytes()
        seed("ini_fuzz", data if len(data) < 3000 else b"\n".join(
            line for line in data.split(b"\n") if line.strip() and not line.strip().startswith((b";", b"#")))[:3000], ini.stem)
    seed("ini_fuzz", "[databases]\n%include !x\n")
    for text in ("[users]\nu = pool_size=1\n[peers]\n1 = host=h\n", "[pgbouncer]\nauth_file=!x\nmetrics_listen=127.0.0.1:9127\n", "[pgbouncer]\nmetrics_listen=[::1]:9\nfleet_file=/x\n",
                 "[pgbouncer]\nmetrics_listen=x\n", "[pgbouncer]\nauth_type=hba\nauth_hba_file=x\nauth_ident_file=y\n", "[pgbouncer]\nauth_type=hba\nauth_hba_file=!x\nauth_ident_file=!y\n",
                 "[pgbouncer]\nbudget=fleet\nfleet_size=2\npeer_id=1\n[peers]\n2=host=h\n", "[pgbouncer]\nbudget=fleet\n", "[pgbouncer]\nmetrics_listen=::1:9\n", "[pgbouncer]\nmetrics_listen=h:x\n"):
        seed("ini_fuzz", text)
    for text in ('"u" "secret"\n', '; c\n"a""b" "md5abcdef" x\n\n"c" "SCRAM-SHA-256$1:c2FsdA==$AA==:AA=="\n', 'u p\n', '"u" "p', '"u"\n'):
        seed("auth_file_fuzz", text)
    for text in ("", "host all all 127.0.0.1/32 trust\n", "local all all peer map=m\n",
                 "hostssl db,@f \"u\",sameuser 10.0.0.0 255.0.0.0 scram-sha-256\n", "hostnossl replication all ::1/128 md5\n",
                 "host all +g all reject\n", "host all all 10.1.0.0/8 password\nhost all all all ldap ldapserver=x ldapprefix=\"a\"\n",
                 "host all all 1.2.3.4 cert\n", "bad\nhost samerole all all md5\nlocal a b md5 clientcert=1\n", "host \"a\"\"b",
                 "host all all fe80::/64 md5 # c\n"):
        seed("hba_fuzz", "m root u\nm /x all\n@f a\x01" + text)
        seed("hba_fuzz", "@self\x01host @f,x @f all md5\n" + text)
    for text in ("m root postgres\n", "m \"a b\" all\n# c\nm x\n", "m x y z\n", "m \"x\n", "a b c\na d all\nb e \"all\"\n"):
        seed("ident_fuzz", text)
    for text in ("db\nhost=/tmp port=5432 dbname='a''b' user=u password=p", "*\nhost=a,b port=1,2 load_balance_hosts=random "
                 "target_session_attrs=prefer-standby connect_timeout=2", "u\npool_size=3 pool_mode=session query_timeout=5",
                 "5\nhost=h port=6432 pool_size=2", "*\nhost=h", "db\nhost=a,,b", "db\npool_mode=x", "db\nhots=x", "db\nport=0",
                 "db\nauth_query='select $1' connect_query='set x=1' client_encoding=utf8 min_pool_size=1 reserve_pool=2 "
                 "max_db_connections=5 server_lifetime=9 sslnegotiation=direct require_auth=!md5 max_protocol_version=latest",
                 "db\na = 'x", "pgbouncer\nhost=x", "db\nrequire_auth=x", "db\nsslnegotiation=y", "db\nconnect_timeout=x", "0\nhost=h",
                 "db\nmax_protocol_version=9", "db\nload_balance_hosts=x", "db\ntarget_session_attrs=x", "db\nquery_wait_timeout=3",
                 "d" * 70 + "\nhost=x", "db\nuser=" + "u" * 130, "db\nhost=a,b port=1,2,3", "u\nquery_wait_timeout=-1 pool_mode=x"):
        seed("connstring_fuzz", text)
    for text in ("SHOW POOLS;", "show stats_totals", "PAUSE db", "RESUME", "SET max_client_conn = 10", "SET x TO 'y';", "KILL \"d b\";",
                 "RELOAD", "SHOW HELP", "SHUTDOWN WAIT_FOR_CLIENTS", "show max_client_conn", "KILL_CLIENT 1", "WAIT_CLOSE db",
                 "show lists;;", "SET", "DISABLE db;", "ENABLE \"x", "SUSPEND", "RECONNECT", "-- c\nshow version", "RECONNECT db", "RECONNECT db host=h port=5432;", "reconnect host = 'a b'",
                 "RECONNECT host=x port=0", "RECONNECT a b", "RECONNECT \"host\"", "RECONNECT port=5", "RECONNECT host=", "RECONNECT " + "x" * 70, "RECONNECT host=" + "x" * 300,
                 "SHUTDOWN WAIT_FOR_SERVERS", "SHUTDOWN x", "PAUSE " + "x" * 70, "SET " + "x" * 70 + "=1", "KILL_CLIENT x"):
        seed("parse_fuzz", text)
    for text in ("-c a=b", "--geqo=off -cx=y", "-c a\\ b=c\\\\", "-x", "--", "-c =", "\t-c  a=b --c=d"):
        seed("options_fuzz", text)
    for text in ("ldapserver=h ldapprefix=\"cn=\" ldapsuffix=\",dc=x\"", "u\x01ldapurl=ldap://h/dc=x?uid?sub",
                 "u\x01ldapserver=h ldapbasedn=\"dc=x\" ldapsearchfilter=\"(|(uid=$username)(mail=$username))\" ldapport=389 ldaptls=1",
                 "u(\x01ldapbasedn=x ldapserver=y ldapsearchattribute=uid", "\x01ldapscheme=x", "\x01ldapport=0", "\x01x=y", "\x01ldapserver=\"",
                 "\x01ldapprefix=x ldapbasedn=y", "\x01ldapprefix=x", "\x01ldapserver=x", "\x01ldapbasedn=\"\" ", "\x01ldapserver=x ldapbasedn=y "
                 "ldapsearchfilter=a ldapsearchattribute=b", "\x01ldapscheme=ldaps ldapbinddn=a ldapbindpasswd=b ldapserver=s ldapbasedn=b # c"):
        seed("ldap_options_fuzz", text)
    for text in ("1.2.3.4", "255.255.255.255", "::", "::1", "fe80::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "24", "0", "128", "33", "01.2.3.4",
                 "1.2.3", "1::2::3", "12345::", "1:2:3:4:5:6:7::", "::1.2.3.4.5", "2001:db8::ff00:42:8329"):
        seed("ip_literal_fuzz", text)
        seed("address_fuzz", text)
    for text in ("[::1]", "fe80::1%lo", "/tmp/.s.PGSQL.5432", "@abstract", "/" + "x" * 120, "localhost"):
        seed("address_fuzz", text)
    for text in ("", "scram-sha-256,md5", "!password,!md5", "none", "!none", "gss,sspi", "md5,md5", "a,!b", "!"):
        seed("require_fuzz", text)
    for text in ("PGHOST=/tmp\x01PGPORT=6543\nhost=a port=1 user=u password='p q'", "\npostgresql://u:p%41@h:1/pgbouncer?sslmode=require",
                 "\npostgres://[::1]:6432/", "PGUSER=x\x01PGPASSWORD=y\nf.ini\n[pgbouncer]\nlisten_port=5\nlisten_addr=*\nunix_socket_dir=\nstats_users=s\n",
                 "\nf.ini\n[pgbouncer]\nadmin_users=a,b\nunix_socket_dir=/tmp\n", "\nf.ini\n[pgbouncer]\nadmin_users=a,b\nunix_socket_dir=/tmp1\nauth_file=f.ini\n;", "\nf.ini\n[x\n", "PGPORT=x\n", "PGSSLMODE=verify-full\x01PGSSLROOTCERT=/x\n",
                 "\nsslmode=x", "\ndbname=x", "\nfoo=1", "\npostgresql://h?x", "\npostgresql://h?a=%zz", "\nhost=x sslmode=verify-ca sslrootcert=y",
                 "\nsslmode=prefer", "\nsslmode=allow port=70000", "\npostgresql://u@h?sslmode=disable&host=@x",
                 "\nf.ini\n[pgbouncer]\nlisten_addr=::\nunix_socket_dir=\nadmin_users=z\n", "\nno such thing"):
        seed("target_fuzz", text)
    for text in ("nameserver 127.0.0.1\noptions timeout:3 attempts:2\n", "nameserver 127.0.0.1:53\nnameserver ::1\noptions retrans:500 retry:9\n",
                 "options timeout:x timeout:99999999999 attempts:0\n"):
        seed("resolv_conf_fuzz", text)
    for text in ("0::/a/b\n\x01max 100000\n150000 100000\n50000 100000\n", "12:cpu:/x\n0::/\n\x0110000 100000", "0::/x", "0::x\n", "1::/\n0::/..//a/\n"
                 "\x01inf 1\n1e308 1e-300\n-1 1\nmax"):
        seed("cgroup_fuzz", text)
    for text in ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /metrics?token=a%20b+c HTTP/1.1\r\nAuthorization: Bearer x\r\nAccept: application/openmetrics-text\r\n\r\n",
                 "HEAD /healthz HTTP/1.0\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "GET /%00 HTTP/1.1\r\n\r\n", "\x16\x03\x01", "GET  HTTP/1.1\r\n\r\n",
                 "GET /x HTTP/2\r\n\r\n", "GET /a%4x HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n", "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                 "GET / HTTP/1.1\r\nno\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "GET\r\n\r\n", "GET /" + "x" * 8300, "GET /%4", "token=&token=%", "GET /%4a?a HTTP/1.1\r\n\r\n"):
        seed("request_fuzz", text)
    tables = ("POOLS\ndatabase\tuser\tcl_active\tcl_waiting\tsv_active\tsv_idle\tsv_used\tsv_tested\tsv_login\tmaxwait\tmaxwait_us\tpool_mode\n"
              "db\tu\t1\t2\t3\t4\t5\t6\t7\t8\t9\ttransaction\n\nLATENCY\ndatabase\tuser\twhat\tp50_us\tp99_us\ndb\tu\twait\t1\t2\ndb\tu\tquery\t1500\t2e9\n\n"
              "CLIENTS\nid\tdatabase\tuser\tstate\twait\twait_us\taddr\tport\tconnect_time\ttls\tapplication_name\n1\tdb\tu\twaiting\t2\t3\t::1\t5\tnow\tTLSv1.3/x\t\x1b[1m\n\n"
              "WORKERS\nworker\tbusy\tclients\txacts\tbytes_in\n0\t50\t3\t1000\t2000\n\nHOSTS\nhost\tport\tstate\taddress\tservers\n"
              "h\t5432\tup\t127.0.0.1\t3\n\nSTATS\ndatabase\ttotal_xact_count\ttotal_query_count\ttotal_received\ttotal_sent\ndb\t5\t6\t7\tnan\n")
    seed("sheet_fuzz", tables + "\x01" + tables.replace("1000", "5000"))
    seed("sheet_fuzz", "\x01" + tables)


def scram():
    salt, nonce = b"salt", "client"
    first = f"n,,n=,r={nonce}".encode()
    initial = b"SCRAM-SHA-256\0" + struct.pack(">I", len(first)) + first
    for helped in (0, 1):
        for final in ("c=biws,r=clientserver,p=" + base64.b64encode(bytes(32)).decode(), "x=1,p=" + base64.b64encode(bytes(32)).decode(), "p=", "p=AA=="):
            seed("scram_server_fuzz", bytes([helped]) + struct.pack(">H", len(initial)) + initial + final.encode())
    for other in (b"y,,n=,r=a", b"p=tls-server-end-point,,n=,r=a", b"n,a=x,n=,r=a", b"n,,m=1,n=,r=a", b"n,,n=,r=a,x=1", b"n,,n=,r="):
        body = b"SCRAM-SHA-256\0" + struct.pack(">I", len(other)) + other
        seed("scram_server_fuzz", b"\1" + struct.pack(">H", len(body)) + body + b"p=" + base64.b64encode(bytes(32)))
    seed("scram_server_fuzz", b"\0\0\x13SCRAM-SHA-256-PLUS\0")
    for helped in (0, 1):
        for challenge in ("server,s=c2FsdA==,i=4096", "server,s=c2FsdA==,i=0", "server,s=,i=1", "server,s=c2FsdA==,i=999999999", "server,s=c2FsdA==,i=1,x=1",
                          "r=nonceserver,s=c2FsdA==,i=4096", "server,m=x,s=c2FsdA==,i=1", ",s=c2FsdA==,i=1"):
            for final in ("v=" + base64.b64encode(bytes(32)).decode(), "e=other-error", "v=AA==", "v=x"):
                lists = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"
                seed("scram_client_fuzz", bytes([helped]) + struct.pack(">HH", len(lists), len(challenge)) + lists + challenge.encode() + final.encode())
    for flags in range(32):
        seed("scram_pair_fuzz", bytes([flags, 0, 0, 0, 0, 0]))
        seed("scram_pair_fuzz", bytes([flags, 0, 1, 12, 0x11, 65, 0, 0, 0]))
    key = base64.b64encode(bytes(32)).decode()
    for text in ("", "plain", "md5" + "0123456789abcdef" * 2, f"SCRAM-SHA-256$4096:c2FsdA==${key}:{key}", f"SCRAM-SHA-256$0:c2FsdA==${key}:{key}",
                 f"SCRAM-SHA-256$4096:${key}:{key}", f"SCRAM-SHA-256$99999999999:c2FsdA==${key}:{key}", "SCRAM-SHA-256$1:c2FsdA==$AA==:AA==", "md5" + "g" * 32):
        seed("secret_fuzz", text)
    for text in ("p\u00e4ss", "\u00a0x\u00ad", "\u2168", "\u0007", "\u200b", "\uff21\u2026\u00bd", "\U0001f600", "\u0627\u0031", "\u0221", "a\u0340", "\ud7ff\ue000", "\u00aa\u00df"):
        seed("secret_fuzz", text.encode())
    seed("secret_fuzz", b"\xff\xfe\xc0\x80\xed\xa0\x80")


def binary():
    def reply(*parts):
        return b"".join(k.encode() + struct.pack(">H", len(b)) + b for k, b in parts)
    row = struct.pack(">Hi1si6s", 2, 1, b"u", 6, b"secret")
    columns = struct.pack(">H", 2) + (b"usename\0" + bytes(6) + struct.pack(">I", 25) + bytes(8)) * 2
    seed("auth_query_fuzz", reply(("1", b""), ("2", b""), ("T", columns), ("D", row), ("C", b"SELECT 1\0"), ("Z", b"I")))
    seed("auth_query_fuzz", reply(("1", b""), ("2", b""), ("T", columns), ("C", b"SELECT 0\0"), ("Z", b"I")))
    seed("auth_query_fuzz", reply(("1", b""), ("T", columns), ("D", row), ("D", row)))
    seed("auth_query_fuzz", reply(("T", columns), ("D", struct.pack(">Hi1si", 2, 1, b"u", -1)), ("Z", b"I")))
    seed("auth_query_fuzz", reply(("E", b"SERROR\0C42P01\0Mno\0\0"), ("Z", b"I")))
    seed("auth_query_fuzz", reply(("N", b"SNOTICE\0\0"), ("S", b"a\0b\0"), ("n", b""), ("I", b""), ("Z", b"E")))
    for data in (b"", b"SERROR\0C25006\0Mno\0Dd\0Hh\0Rr\0\0", b"name\0value\0", b"s\0select\0\0\1\0\0\0\x19", b"p\0s\0\0\0\0\0\0\0", b"Sname\0", b"P\0",
                 b"\0\0\0\x0aSCRAM-SHA-256\0\0", struct.pack(">II", 196610, 1) + b"_pq_.x\0", b"secret\0"):
        seed("read_fuzz", data)
    params = b"user\0u\0database\0d\0options\0-c a=b\0replication\0true\0_pq_.x\0y\0\0"
    for body, code in ((params, 3 << 16), (params, (3 << 16) + 2), (b"", 80877103), (b"", 80877104), (bytes(8), 80877102), (bytes(36), 80877102), (b"", 2 << 16),
                       (b"", 4 << 16), (bytes(300), 80877102), (b"x", 3 << 16), (b"user\0u", 3 << 16), (b"\0\0", 3 << 16), (b"replication\0database\0\0", 3 << 16)):
        seed("startup_fuzz", struct.pack(">II", 8 + len(body), code) + body)
    for word in (b"on", b"off", b"no", b"false", b"1", b"0", b"o", b"YES", b"x"):
        body = b"replication\0" + word + b"\0options\0--a=\\\\\0\0"
        seed("startup_fuzz", struct.pack(">II", 8 + len(body), 3 << 16) + body)
    seed("startup_fuzz", b"\x16\3\1")
    seed("startup_fuzz", b"GET / HTTP/1.1\r\n")
    for flags, peers, key in ((1, 6, bytes([0, 2, 0, 0, 0, 0, 0, 3])), (1, 1, bytes([0, 2, 0, 0, 0, 0, 0, 3])), (1, 7, bytes([0, 1, 0, 0, 0, 0, 0, 2]) + bytes(28)),
                              (0, 7, bytes(8)), (2, 4, bytes([0, 3, 0, 0, 0, 0, 0, 1])), (1, 2, b"short"), (1, 6, bytes([0, 2, 0, 0, 0, 0, 0, 0]))):
        seed("cancel_fuzz", bytes([flags, peers]) + key)
        seed("cancel_fuzz", bytes([flags, peers]) + struct.pack(">II", 8 + len(key), 80877102) + key)
    seed("params_fuzz", b"\x0bIntervalSty" + bytes([1, 3]) + b"ISO" + bytes([0, 3]) + b"SQL" + bytes([9, 4]) + b"a'\\b" + bytes([8, 1]) + b"x" + bytes([6, 2]) + b"on" + bytes([13, 2, 34, 34]))
    seed("params_fuzz", b"\x00" + bytes([8, 1]) + b"a" + bytes([9, 1]) + b"A" + bytes([6, 3]) + b"off" + bytes([10, 1]) + b"q" + bytes([11, 2]) + b'""')
    ops = b"".join(bytes([op | name << 5, 2]) + text for op, name, text in ((0, 0, b"s1"), (0, 1, b"s2"), (3, 0, b"s1"), (5, 0, b"s1"), (6, 0, b"s1"), (6, 1, b"s2"), (22, 1, b"s1"),
                                                                          (9, 0, b"s1"), (25, 0, b"s1"), (10, 0, b""), (8, 0, b"s2"), (13, 0, b"s3"), (2, 1, b"s1"), (14, 0, b"al"), (11, 0, b""), (12, 0, b"")) if len(text) == 2)
    seed("prepared_fuzz", ops)
    for text in (b"DEALLOCATE prepare \"A\"\"b\";", b"discard all", b"deallocate a$1 ", b"DEALLOCATE PREPARE", b"DISCARD PLANS", b'"deallocate" x', b"deallocate \"x", b"drop table x", b"deallocate a; x", b""):
        seed("prepared_fuzz", text)
    seed("prepared_fuzz", b"".join(bytes([6, 3]) + struct.pack(">H", n) + b"x" for n in range(2200)))
    seed("owed_fuzz", bytes([0, 8 | 1, 16 | 2, 24, 32, 40 | 1, 48, 56, 64, 5, 6, 3, 3 | 8, 4, 7, 5, 255, 64, 16, 6, 48, 16, 64, 16, 6, 5]))
    seed("owed_fuzz", bytes([48, 16, 64, 0, 6, 0, 64, 5] + [2 | n << 3 for n in range(30)] + [5, 4, 3, 5]))
    for flags in (0, 1, 2, 3):
        seed("ledger_fuzz", bytes([flags]) + bytes([0, 2, 16, 2, 32, 2, 0, 0, 16, 0, 32, 0, 5, 30, 6, 0, 23, 2, 7, 2, 3, 0, 19, 0, 8, 200, 5, 100, 21, 100, 9, 0, 10, 0, 12, 0, 13, 7, 14, 3, 1, 2, 3, 4, 5, 6, 7, 8, 11, 1, 0, 2]))
    # Three under a limit of two: places go round.
    seed("ledger_fuzz", bytes([2, 0, 2, 16, 2, 37, 5, 8, 60, 37, 60, 8, 60, 37, 60, 38, 0, 6, 0, 22, 0, 23, 2, 7, 2, 3, 0, 32, 0, 8, 250, 5, 90, 37, 90, 8, 250, 5, 200]))
    magic = b"pgflotilla-fleet" + struct.pack("<IIII", 1, 32, 8192, 560)
    for data in (b"\0\0\0", b"\0\0\0hello", b"\0\0\0" + magic, b"\0\0\0pgflotilla-fleet", b"\1\0\0" + magic, b"\1\0\x10" + bytes(16), b"\1\0\x20" + struct.pack("<IiI", 1, 1, 5) * 4, b"\0\0\0SQLite format 3"):
        seed("ledger_file_fuzz", data)

    def name(text):
        return b"".join(bytes([len(p)]) + p.encode() for p in text.split(".")) + b"\0"

    def record(owner, kind, data, ttl=60):
        return owner + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data
    here = b"\xc0\x0c"
    answers = [
        [record(here, 1, bytes([127, 0, 0, 1]))], [record(here, 28, bytes(15) + b"\1")], [record(here, 1, bytes([10, 0, 0, n])) for n in range(5)],
        [record(here, 5, name("other.example"), 5), record(name("other.example"), 1, bytes([127, 0, 0, 2]), 0x80000000)], [], [record(here, 1, b"\1\2")],
    ]
    for records in answers:
        for code in (0x8180, 0x8183, 0x8182, 0x8380):
            body = struct.pack(">HHHHH", code, 1, len(records), 0, 0) + b"".join(records)
            one = struct.pack(">H", len(body)) + body
            seed("dns_answer_fuzz", b"\2" + one * 2)
    soa = record(here, 6, name("ns") + name("root") + struct.pack(">IIIII", 7, 1, 1, 1, 1))
    body = struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + soa
    seed("dns_answer_fuzz", b"\3" + struct.pack(">H", len(body)) + body)
    seed("dns_answer_fuzz", b"\0\0\x0a" + bytes(10))

    alert, key_update = b"\x15\3\3\0\2\2\x28", b"\x17\3\3\0\x20" + bytes(32)
    for role in range(4):
        for data in (alert, key_update, b"GET / HTTP/1.1\r\n\r\n", b"\x16\3\1\0\5\1\0\0\1\0", b"\x14\3\3\0\1\1", b"\x17\3\3\x7f\xff"):
            seed("tls_fuzz", bytes([role, 3]) + data)
            seed("tls_fuzz", bytes([role | 128, 0]) + data)
    import ssl
    ctx = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ctx.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        hello.do_handshake()
    except ssl.SSLWantReadError:
        pass
    seed("tls_fuzz", b"\0\x20" + outgoing.read())
    for text in ("secure\ndefault\n\nauto\nauto\n", "all\nHIGH:!aNULL\nTLS_AES_128_GCM_SHA256\nnone\nprime256v1\n", "tlsv1.2,!tlsv1.3\nfast\nx\nauto\nnone\n", "x\n\n\n\n\n", "tlsv1.3\nsecure\n\nauto\nx\n",
                 "default\nnormal\n\nx\nauto\n", "!all\n\n\n\n\n", "tlsv1.0,tlsv1.1,tlsv1\nALL:@SECLEVEL=0\n\n\n\n"):
        seed("tls_fuzz", b"\4\0" + text.encode())


texts()
scram()
binary()
conversations()
if sys.argv[2:] != ["--made"]:
    captured()
print({t: n for t, n in sorted(count.items())}, sum(f.stat().st_size for f in OUT.rglob("*") if f.is_file()))
