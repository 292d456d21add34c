"""RELOAD of everything that is a file: certificates, rules, maps, passwords and the ini, all at once or not at all."""
import itertools
import os
import pwd
import shutil
import signal
import ssl
import threading

import psycopg
import pytest

from conftest import PASSWORD, wait_until
from test_auth import login_error
from test_hba import CONSOLE, unix_error
from test_tls import certs  # noqa: F401

pytestmark = pytest.mark.ours
ME = pwd.getpwuid(os.geteuid()).pw_name


class Files:
    """A pooler whose every file has two good versions, 0 and 1, that can be told apart from outside."""

    def __init__(self, make_pooler, certs):  # noqa: F811
        self.certs = certs
        self.p = p = make_pooler(auth_type="hba", client_tls_sslmode="prefer", userlist={"alice": "password 0"})
        self.crt, self.key = p.dir / "t.crt", p.dir / "t.key"
        self.hba, self.ident, self.users = p.dir / "hba", p.dir / "ident", p.dir / "users.txt"
        p.settings |= {"auth_hba_file": self.hba, "auth_ident_file": self.ident, "client_tls_cert_file": self.crt,
                       "client_tls_key_file": self.key, "query_timeout": 100}
        self.write(0)
        p.start()

    def write(self, n):
        p = self.p
        p.userlist |= {"alice": f"password {n}"}
        p.settings["query_timeout"] = 100 + n
        p.databases["made"] = f"{p.server} dbname=p1" if n else None
        p.write_ini()
        self.hba.write_text(CONSOLE + f"host p{n} carol 127.0.0.1/32 trust\nhost all alice 127.0.0.1/32 password\n"
                            "host all bob 127.0.0.1/32 trust\nlocal all all peer map=mine\n")
        self.ident.write_text(f"mine {ME} {('stats', 'admin')[n]}\n")
        ca = self.certs[n]
        shutil.copy(ca.crt("pooler"), self.crt)
        shutil.copy(ca.key("pooler"), self.key)

    def reload(self):
        """None, or the error."""
        with self.p.console() as c:
            errors = [m for m in c.query("RELOAD") if m.type == "E"]
        return errors[0] if errors else None

    def hang_up(self):
        """SIGHUP, until it has been dealt with."""
        before = self.p.log().count("got SIGHUP")
        self.p.kill(signal.SIGHUP)
        wait_until(lambda: self.p.log().count("got SIGHUP") > before, "SIGHUP came")
        self.p.show("VERSION")  # the same thread answers

    def state(self):
        """Which version is in force, file by file; asked so often that each worker has answered."""
        p = self.p
        seen = []
        for _ in range(2 * p.workers):
            alice = {n: self.lets_in("p0", "alice", f"password {n}") for n in (0, 1)}
            carol = {n: self.lets_in(f"p{n}", "carol", "") for n in (0, 1)}
            peer = {n: unix_error_or_none(p, ("stats", "admin")[n]) is None for n in (0, 1)}
            cert = {n: self.trusted_by(self.certs[n]) for n in (0, 1)}
            config = {r["key"]: r["value"] for r in p.show("CONFIG")}["query_timeout"]
            made = "made" in {r["name"] for r in p.show("DATABASES")}
            for which in (alice, carol, peer, cert):
                assert sorted(which.values()) == [False, True], (alice, carol, peer, cert)
            seen.append((*(int(which[1]) for which in (alice, carol, peer, cert)), int(config) - 100, int(made)))
        return set(seen)

    def lets_in(self, database, user, password):
        with self.p.wire() as c:
            c.start(user, database)
            return c.authenticate(password)[-1].type == "Z"

    def trusted_by(self, ca):
        try:
            psycopg.connect(host="localhost", hostaddr="127.0.0.1", port=self.p.port, dbname="p0", user="bob",
                            sslmode="verify-full", sslrootcert=ca.crt("ca"), sslcert="/none", sslkey="/none",
                            gssencmode="disable").close()
            return True
        except psycopg.OperationalError as error:
            assert "certificate verify failed" in str(error)
            return False


def unix_error_or_none(p, user):
    with p.wire(unix=p.unix) as c:
        c.start(user, "p0")
        last = c.authenticate()[-1]
        return None if last.type == "Z" else last


ALL_OLD, ALL_NEW = {(0, 0, 0, 0, 0, 0)}, {(1, 1, 1, 1, 1, 1)}

BROKEN = {
    "certificate missing": lambda f: f.crt.unlink(),
    "certificate cut short": lambda f: f.crt.write_text(f.crt.read_text()[:200]),
    "key of another certificate": lambda f: shutil.copy(f.certs[0].key("pooler"), f.key),
    "key missing": lambda f: f.key.unlink(),
    "hba missing": lambda f: f.hba.unlink(),
    "hba line": lambda f: f.hba.write_text(f.hba.read_text() + "host all all nowhere trust\n"),
    "hba include missing": lambda f: f.hba.write_text("host @none all all reject\n" + f.hba.read_text()),
    "ident missing": lambda f: f.ident.unlink(),
    "ident line": lambda f: f.ident.write_text(f.ident.read_text() + "mine only-two\n"),
    "auth_file missing": lambda f: f.users.unlink(),
    "auth_file line": lambda f: f.users.write_text(f.users.read_text() + '"dave" "cut sh'),
    "auth_file line first": lambda f: f.users.write_text('nonsense\n' + f.users.read_text()),
    "ini key": lambda f: f.p.ini.write_text(f.p.ini.read_text() + "no_such_key = 1\n"),
    "ini value": lambda f: f.p.ini.write_text(f.p.ini.read_text() + "max_client_conn = many\n"),
    "ini include missing": lambda f: f.p.ini.write_text(f.p.ini.read_text() + "%include /nowhere/more.ini\n"),
    "ini half written": lambda f: f.p.ini.write_text(f.p.ini.read_text() + "[pgboun"),
    "ini missing": lambda f: f.p.ini.unlink(),
}


@pytest.mark.parametrize("break_", BROKEN.values(), ids=BROKEN)
def test_one_wrong_file_refuses_all_of_them(make_pooler, certs, break_):  # noqa: F811
    f = Files(make_pooler, certs)
    assert f.state() == ALL_OLD
    with f.p.login("bob") as c:
        c.query("begin")
        f.write(1)
        break_(f)
        for _ in range(2):
            error = f.reload()
            assert error and error.code == "F0000" and error.text == "RELOAD failed, see logs for additional details"
        f.hang_up()
        assert f.state() == ALL_OLD
        f.write(1)
        assert f.reload() is None
        assert f.state() == ALL_NEW
        assert c.query("commit")[0].tag == "COMMIT"


@pytest.mark.workers(1, 3)
def test_reload_storm_under_load(make_pooler, certs):  # noqa: F811
    """Two versions in turn, three administrators, SIGHUP in between, now and then a broken file. Clients in the clear and
    through TLS work and come and go; nobody is disconnected, and in the end one version is in force everywhere."""
    f = Files(make_pooler, certs)
    p = f.p
    over, bad, done = threading.Event(), [], itertools.count()
    lock = threading.Lock()  # a file is written whole before somebody asks for a RELOAD
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def stays(sslmode):
        try:
            with psycopg.connect(host="127.0.0.1", port=p.port, dbname="p0", user="bob", autocommit=True, sslmode=sslmode,
                                 sslcert="/none", sslkey="/none", sslrootcert="/none", prepare_threshold=1) as c:
                while not over.is_set():
                    n = next(done)
                    if c.execute("select %s::int", (n,)).fetchone() != (n,):
                        bad.append("a wrong answer")
        except Exception as error:
            bad.append(error)

    def comes_and_goes():
        try:
            while not over.is_set():
                with p.login("bob") as c:
                    assert c.value("select 'here'") == "here"
                next(done)
        except Exception as error:
            bad.append(error)

    def administers(k):
        try:
            for n in range(15):
                with lock:
                    f.write((n + k) % 2)
                    if n % 5 == 4:
                        list(BROKEN.values())[(n + k) % len(BROKEN)](f)
                    error = f.reload()
                    assert (error is not None) == (n % 5 == 4), (n, k, error)
                    f.hang_up()
        except Exception as error:
            bad.append(error)
    workers = [threading.Thread(target=stays, args=(m,)) for m in ("disable", "require", "require")]
    workers += [threading.Thread(target=comes_and_goes) for _ in range(2)]
    admins = [threading.Thread(target=administers, args=(k,)) for k in range(3)]
    for t in workers + admins:
        t.start()
    for t in admins:
        t.join()
    over.set()
    for t in workers:
        t.join()
    assert not bad, bad[:3]
    assert next(done) > 50
    f.write(1)
    assert f.reload() is None
    assert f.state() == ALL_NEW
    assert login_error(p, "alice", password="password 0").text == "password authentication failed"
    assert unix_error(p, "stats").fields["S"] == "FATAL"


@pytest.mark.parametrize("which", ["hba", "users"])
def test_broken_from_the_start_does_not_stop_a_reload(make_pooler, certs, which):  # noqa: F811
    """PgBouncer starts with what it can use of such a file, and so do we. The rest may be reloaded; that file's part stays as
    it is until it is in order, also when it becomes worse."""
    f = Files(make_pooler, certs)
    path = getattr(f, which)
    f.p.stop()
    f.write(0)
    good = path.read_text()
    path.write_text(good + {"hba": "host all all nowhere trust\n", "users": '"dave" "cut sh'}[which])
    f.p.spawn()
    wait_until(f.p.ready, "it is up")
    assert f.lets_in("p0", "alice", "password 0") and f.lets_in("p0", "carol", "")
    f.p.settings["query_timeout"] = 77
    text = path.read_text()
    f.p.write_ini()
    path.write_text({"hba": "nonsense\n", "users": "nonsense\n"}[which])
    assert f.reload() is None
    assert {r["key"]: r["value"] for r in f.p.show("CONFIG")}["query_timeout"] == "77"
    assert f.lets_in("p0", "alice", "password 0") and f.lets_in("p0", "carol", "")
    path.write_text(good)
    assert f.reload() is None
    path.write_text(text)  # now it was in order before, and is not any more
    assert f.reload() is not None
