"""auth_type = pam (with libpam-wrapper, which needs no root) and LDAP (with a slapd of our own)."""
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import wire
from conftest import OURS, PASSWORD, SANITIZED, code_is, free_port, wait_until
from test_auth import login_error

PAM_LIB = next(iter(Path("/usr/lib").glob("*/libpam_wrapper.so")), None)
SLAPD = Path("/usr/sbin/slapd")


def client_in(p, user, password=PASSWORD, database="p0", who=None):
    with p.login(user, database, password) as c:
        assert c.auth_seen[0] == 3
        assert c.value("select current_user") == (who or user)


# ---------------------------------------------------------------------------------------------- PAM

@pytest.fixture
def pam(make_pooler):
    """pam(module line..., **settings): a pooler whose service "pgbouncer" is what is said here."""
    if not PAM_LIB:
        pytest.skip("libpam-wrapper is not installed")
    if SANITIZED:
        pytest.skip("a sanitizer has to come first in LD_PRELOAD")

    def start(*lines, **settings):
        p = make_pooler(auth_type="pam", **settings)
        services = p.dir / "pam.d"
        services.mkdir()
        passdb = p.dir / "passdb"
        passdb.write_text(f"alice:{PASSWORD}:pgbouncer\ns_password:{PASSWORD}:pgbouncer\nadmin:{PASSWORD}:pgbouncer\n"
                          f"bob:{PASSWORD}:other_service\nghost:{PASSWORD}:pgbouncer\n")
        matrix = PAM_LIB.parent / "pam_wrapper/pam_matrix.so"
        lines = lines or (f"auth required {matrix} passdb={passdb}", f"account required {matrix} passdb={passdb}")
        (services / "pgbouncer").write_text("\n".join(lines) + "\n")
        p.extra_env = {"LD_PRELOAD": str(PAM_LIB), "PAM_WRAPPER": "1", "PAM_WRAPPER_SERVICE_DIR": str(services)}
        p.console = lambda user="admin": p.wire().login(user, "pgbouncer", PASSWORD)
        return p.start()
    return start


def test_pam(pam):
    p = pam()
    client_in(p, "alice")
    for user, password in (("alice", "wrong"), ("bob", PASSWORD), ("nobody-here", PASSWORD)):
        error = login_error(p, user, password=password)
        assert error.text == "PAM authentication failed" and code_is(error.code, "28000")
    assert login_error(p, "alice", password="").text == "empty password returned by client"
    assert login_error(p, "alice", "nowhere", password=PASSWORD).text == "no such database: nowhere"
    names = [r["name"] for r in p.show("USERS")]
    assert "alice" in names and (not OURS or "nobody-here" not in names)
    assert PASSWORD not in p.log() and "wrong" not in p.log()


def test_pam_password_is_passed_on(pam):
    p = pam()
    client_in(p, "s_password")
    p.admin("RECONNECT")
    client_in(p, "s_password")


def test_pam_account(pam):
    p = pam("auth required pam_permit.so", "account required pam_deny.so")
    assert login_error(p, "alice", password=PASSWORD).text == "PAM authentication failed"


def test_pam_and_auth_user(pam):
    p = pam()
    p.databases["p1"] += " auth_user=bob"
    p.write_ini()
    p.admin("RELOAD")
    assert login_error(p, "alice", "p1", password=PASSWORD).text == "bouncer config error"
    client_in(p, "alice")


def test_pam_limits(pam):
    p = pam(max_user_client_connections=1)
    with p.login("alice", password=PASSWORD):
        assert login_error(p, "alice", password=PASSWORD).text == \
            "client connections exceeded (max_user_client_connections)"
    wait_until(lambda: [r["current_client_connections"] for r in p.show("USERS") if r["name"] == "alice"] == ["0"])
    client_in(p, "alice")


@pytest.fixture
def slow_pam(pam):
    """A service that thinks until `go` exists."""
    made = []

    def start(**settings):
        directory = Path(tempfile.mkdtemp(prefix="pgf-pam-", dir="/tmp"))
        made.append(directory)
        script = directory / "think"
        script.write_text(f"#!/bin/sh\nwhile test ! -e {directory}/go; do sleep 0.05; done\n")
        script.chmod(0o755)
        p = pam(f"auth required pam_exec.so quiet {script}", "account required pam_permit.so", **settings)
        return p, directory / "go"
    yield start
    for directory in made:
        (directory / "go").touch()
    time.sleep(0.2)  # for the scripts that are left
    for directory in made:
        shutil.rmtree(directory)


def logging_in(console):
    rows = [m.row for m in console.query("SHOW LISTS") if m.type == "D"]
    return int(dict(rows)["login_clients"])


@pytest.mark.ours
@pytest.mark.workers(1)
def test_slow_pam_blocks_nobody(slow_pam):
    p, go = slow_pam()
    results = []
    clients = [p.wire().start("alice") for _ in range(20)]
    for c in clients:
        c.recv()
        c.send(wire.msg("p", wire.cstr("x")))
    with p.wire(unix=p.unix) as console:  # the only worker still answers
        console.login("pgbouncer", "pgbouncer")
        wait_until(lambda: logging_in(console) == 20, "all wait for PAM")
        clients.pop().drop()  # and who leaves is gone
        wait_until(lambda: logging_in(console) == 19, "that one is gone")
    go.touch()
    for c in clients:
        results.append(c.until("ZE")[-1].type)
        c.close()
    assert results == ["Z"] * 19


@pytest.mark.ours
def test_slow_pam_and_timeouts(slow_pam):
    p, go = slow_pam(client_login_timeout=1)
    assert login_error(p, password="x").text == "client_login_timeout"


@pytest.mark.ours
def test_end_does_not_wait_for_pam(slow_pam):
    p, go = slow_pam()
    with p.wire() as c, p.wire(unix=p.unix) as console:
        c.start()
        c.recv()
        c.send(wire.msg("p", wire.cstr("x")))
        console.login("pgbouncer", "pgbouncer")
        wait_until(lambda: logging_in(console) == 1, "PAM has the password")
        p.stop()


# ---------------------------------------------------------------------------------------------- LDAP

LDIF = """dn: dc=example,dc=net
objectClass: dcObject
objectClass: organization
dc: example
o: test

dn: uid=alice,dc=example,dc=net
objectClass: inetOrgPerson
uid: alice
cn: Alice
sn: A
mail: alice@example.net
userPassword: {password}

dn: uid=s_password,dc=example,dc=net
objectClass: inetOrgPerson
uid: s_password
cn: twice
sn: B
userPassword: {password}

dn: uid=other,dc=example,dc=net
objectClass: inetOrgPerson
uid: other
cn: twice
sn: C
userPassword: {password}
"""
BASE = "dc=example,dc=net"
SECRET = "ldap-Secret 1"


@pytest.fixture(scope="module")
def slapd(tmp_path_factory):
    if not SLAPD.exists():
        pytest.skip("slapd is not installed")
    root = tmp_path_factory.mktemp("slapd")
    (root / "data").mkdir()
    schema = "".join(f"include /etc/ldap/schema/{s}.schema\n" for s in ("core", "cosine", "inetorgperson"))
    (root / "slapd.conf").write_text(
        f"{schema}pidfile {root}/pid\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n"
        f"access to attrs=userPassword by anonymous auth\naccess to * by * read\n"
        f"database mdb\nmaxsize 10485760\ndirectory {root}/data\nsuffix \"{BASE}\"\n"
        f"rootdn \"cn=root,{BASE}\"\nrootpw {SECRET.replace(' ', '')}\n")
    (root / "data.ldif").write_text(LDIF.replace("{password}", SECRET))
    subprocess.run(["/usr/sbin/slapadd", "-f", root / "slapd.conf", "-l", root / "data.ldif"], check=True)
    port = free_port()
    proc = subprocess.Popen([SLAPD, "-f", root / "slapd.conf", "-h", f"ldap://127.0.0.1:{port}", "-d", "0"])

    def ready():
        assert proc.poll() is None
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0
    wait_until(ready, "slapd listens")
    yield port
    proc.terminate()
    proc.wait()


@pytest.fixture
def ldap(make_pooler, slapd):
    """ldap(options): a pooler with auth_type=hba and one rule "host all all all ldap OPTIONS"."""
    def start(options, **settings):
        p = make_pooler(auth_type="hba", **settings)
        p.settings["auth_hba_file"] = p.dir / "hba.conf"
        (p.dir / "hba.conf").write_text(f"host pgbouncer all all trust\nhost all all all ldap {options}\n")
        return p.start()
    return start


@pytest.mark.parametrize("options", [
    'ldapserver=127.0.0.1 ldapport=%d ldapprefix="uid=" ldapsuffix=",dc=example,dc=net"',
    'ldapserver=127.0.0.1 ldapport=%d ldapbasedn="dc=example,dc=net"',
    'ldapserver=127.0.0.1 "ldapport"=%d ldapbasedn="dc=example,dc=net" ,ldapsearchfilter="(mail=$username@example.net)"',
    'ldapurl="ldap://127.0.0.1:%d/dc=example,dc=net?uid?sub"',
    'ldapurl="ldap://127.0.0.1:%d/dc=example,dc=net??sub?(|(uid=$username)(mail=$username))"',
    f'ldapserver="127.0.0.1" ldapport=%d ldapbasedn={BASE.split(",")[0]} ldapbasedn="{BASE}" '
    f'ldapbinddn="cn=root,{BASE}" ldapbindpasswd={SECRET.replace(" ", "")}',
])
def test_ldap(ldap, slapd, options):
    p = ldap(options % slapd)
    client_in(p, "alice", SECRET)
    for user, password in (("alice", "wrong"), ("nobody-here", SECRET), ("bob", SECRET), ("al*", SECRET)):
        error = login_error(p, user, password=password)
        assert error.text == "LDAP authentication failed" and code_is(error.code, "28000")
    assert login_error(p, "alice", password="").text == "empty password returned by client"
    assert SECRET not in p.log() and SECRET.replace(" ", "") not in p.log()


def test_ldap_user_must_be_one(ldap, slapd):
    p = ldap(f'ldapserver=127.0.0.1 ldapport={slapd} ldapbasedn="{BASE}" ldapsearchattribute=cn')
    assert login_error(p, "twice", password=SECRET).text == "LDAP authentication failed"
    p.wait_log('LDAP user "twice" is not unique')


def test_ldap_password_is_passed_on(ldap, slapd, pg):
    pg.sql("alter role s_password password '%s'" % SECRET)
    try:
        p = ldap(f'ldapserver=127.0.0.1 ldapport={slapd} ldapbasedn="{BASE}"', userlist={"s_password": ""})
        client_in(p, "s_password", SECRET)
    finally:
        with pg.connect() as c:
            c.execute("set password_encryption = 'scram-sha-256'")
            c.execute("alter role s_password password '%s'" % PASSWORD.replace("'", "''"))


def test_ldap_auth_type(make_pooler, slapd):
    p = make_pooler(auth_type="ldap", admin_users="pgbouncer",
                    auth_ldap_options=f'ldapurl="ldap://127.0.0.1:{slapd}/{BASE}?uid?sub"').start()
    client_in(p, "alice", SECRET)
    assert login_error(p, "alice", password="wrong").text == "LDAP authentication failed"


def test_ldap_without_options(make_pooler):
    p = make_pooler(auth_type="ldap").start()
    assert login_error(p, "alice").text == "auth_ldap_options is null"


@pytest.mark.parametrize("options, reason", [
    ("ldapserver=127.0.0.1 ldapport=1 ldapbasedn=dc=x", "could not perform initial LDAP bind"),
    ("ldapserver=127.0.0.1 ldapprefix=a ldapbasedn=dc=x", "cannot mix options for simple bind and search+bind modes"),
    ("ldapserver=127.0.0.1", "requires argument"),
    ("ldapnonsense=1", 'invalid LDAP option: "ldapnonsense"'),
    ('ldapurl="http://x/"', "could not parse LDAP URL"),
    ("ldapserver=127.0.0.1 ldapport=1 ldapprefix=uid= ldaptls=1", "could not start LDAP TLS session"),
])
def test_ldap_trouble(ldap, options, reason):
    p = ldap(options)
    assert login_error(p, "alice", password=SECRET).text == "LDAP authentication failed"
    p.wait_log(reason)


def test_ldap_needs_no_auth_query(ldap, slapd):
    p = ldap(f'ldapserver=127.0.0.1 ldapport={slapd} ldapbasedn="{BASE}"', auth_user="bob",
             auth_query="SELECT broken, $1")
    p.userlist.pop("alice")
    p.write_ini()
    p.admin("RELOAD")
    client_in(p, "alice", SECRET)
