"""pgflotilla --check: says what is wrong and what would start, and touches nothing."""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import EXE, ROOT, free_port

pytestmark = pytest.mark.ours
SAMPLES = sorted((ROOT / "etc").rglob("*.ini"))


def check(ini, *flags, cwd=None):
    done = subprocess.run([EXE, "--check", *flags, ini], capture_output=True, text=True, cwd=cwd or ini.parent, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def ini(tmp_path):
    """Writes an ini; its lines are those of a good one, changed by what is given."""
    tmp_path.chmod(0o755)

    def write(databases="p0 = host=127.0.0.1\n", users='"alice" "x"\n', **settings):
        lines = {"listen_addr": "127.0.0.1", "listen_port": free_port(), "unix_socket_dir": tmp_path,
                 "auth_type": "scram-sha-256", "auth_file": tmp_path / "users.txt", "admin_users": "alice",
                 "logfile": tmp_path / "log", "pidfile": tmp_path / "pid"} | settings
        (tmp_path / "users.txt").write_text(users)
        path = tmp_path / "a.ini"
        path.write_text(f"[databases]\n{databases}[pgbouncer]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items()))
        return path
    return write


def test_good(ini):
    path = ini(workers=3, databases="p0 = host=10.1.1.1 port=5433 dbname=x user=u pool_size=7 reserve_pool_size=2\n* =\n")
    before = sorted(os.listdir(path.parent))
    status, said = check(path)
    assert status == 0, said
    assert "0 errors, 0 warnings: good to start" in said
    assert re.search(r"workers +3\n", said) and re.search(rf"listens on +127.0.0.1:\d+, unix:{path.parent}/.s.PGSQL", said)
    assert "session -> 10.1.1.1:5433/x: 7 + 2 reserve servers, all as u" in said
    assert sorted(os.listdir(path.parent)) == before, "no log, no pidfile, no socket"


def test_beside_a_running_pooler(pooler):
    p = pooler()
    status, said = check(p.ini)
    assert status == 0, said
    with p.login() as c:
        assert c.value("select 1") == "1"
    assert p.pidfile.read_text() == f"{p.proc.pid}\n"


@pytest.mark.parametrize("settings, text", [
    ({"pool_mod": "session"}, "unknown parameter: pgbouncer/pool_mod in configuration ({ini}:{line})"),
    ({"default_pool_size": "x"}, 'invalid value "x" for parameter default_pool_size in configuration ({ini}:{line})'),
    ({"auth_file": "/nowhere/users"}, "could not open auth_file /nowhere/users"),
    ({"users": '"alice" "x\n'}, "users.txt"),
    ({"client_tls_sslmode": "require"}, "client_tls"),
    ({"client_tls_sslmode": "require", "client_tls_cert_file": "/nowhere/c", "client_tls_key_file": "/nowhere/k"},
     "/nowhere/"),
    ({"auth_type": "hba", "auth_hba_file": "/nowhere/hba"}, "could not open hba config file /nowhere/hba"),
    ({"logfile": "/nowhere/log"}, "logfile: folder /nowhere: No such file or directory"),
    ({"listen_addr": "", "unix_socket_dir": ""}, "nowhere to listen on"),
    ({"metrics_listen": "9127"}, "expected ADDRESS:PORT"),
    ({"unix_socket_dir": "/" + "x" * 120}, "path too long"),
    ({"user": "nobody-of-this-name"}, "no such user: nobody-of-this-name")])
def test_wrong(ini, settings, text):
    path = ini(**settings)
    key = next(iter(settings))
    line = next((n for n, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(f"{key} =")), 0)
    status, said = check(path)
    assert status == 1 and "it would not work" in said, said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert any(text.format(ini=path, line=line) in e for e in errors), said


def test_bad_hba_line(ini, tmp_path):
    (tmp_path / "hba").write_text("host all all 127.0.0.1/32 md5\nhost all all nonsense md5\n")
    status, said = check(ini(auth_type="hba", auth_hba_file=tmp_path / "hba"))
    assert status == 1 and "a line of the hba or ident file is unusable" in said and re.search(r"hba.*2", said)


def test_a_page_without_an_address(ini):
    assert "warning: web_page: it has no address" in check(ini(web_page=1))[1]
    assert "web_page: it has" not in check(ini(web_page=1, metrics_listen="127.0.0.1:9127"))[1]


@pytest.mark.parametrize("settings, text", [
    ({}, "the limits are this process's own"),
    ({"budget": "fleet", "fleet_file": "{dir}/fleet"}, "the limits are for all processes together that use {dir}/fleet"),
    ({"budget": "fleet", "fleet_size": 3, "peer_id": 1}, "a part of each limit, of 3 processes: 34 clients, 7 servers")])
def test_budget(ini, tmp_path, settings, text):
    status, said = check(ini(**{k: str(v).format(dir=tmp_path) for k, v in settings.items()}))
    assert status == 0 and text.format(dir=tmp_path) in said, said
    assert not (tmp_path / "fleet").exists()


def test_budget_that_cannot_be(ini):
    status, said = check(ini(budget="fleet", fleet_size=21))
    assert status == 1
    assert "error: budget = fleet: default_pool_size = 20 cannot be divided among fleet_size = 21 processes" in said


def test_missing_ini(tmp_path):
    status, said = check(tmp_path / "none.ini", cwd="/")
    assert status == 1 and "none.ini" in said


def test_warnings_and_differences(ini):
    status, said = check(ini(auth_type="trust", admin_users="", workers=2, users="", metrics_listen="*:9127", web_page=1))
    assert status == 0
    for text in ("warning: auth_type = trust: nobody has to prove who he is", "warning: nobody can log in",
                 "warning: admin_users is empty", "warning: metrics_listen: names of databases and users can be read", "differs from PgBouncer: PgBouncer does not know the key workers"):
        assert text in said


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_samples(sample):
    """As published, but for the folders, which are not everybody's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: a Unix socket's path has 107 bytes at most
        check_sample(sample, Path(folder))


def check_sample(sample, tmp_path):
    text = sample.read_text()
    for folder in ("/etc/pgflotilla", "/run/pgflotilla", "/var/log/pgflotilla"):
        (tmp_path / folder[1:]).mkdir(parents=True)
        text = text.replace(folder, str(tmp_path / folder[1:]))
    etc = tmp_path / "etc/pgflotilla"
    (etc / "userlist.txt").write_text('"admin" "x"\n"pgf_auth" "y"\n')
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=localhost", "-keyout", etc / "server.key", "-out", etc / "server.crt"], check=True,
                   capture_output=True)
    shutil.copy(etc / "server.crt", etc / "root.crt")
    copy = tmp_path / "sample.ini"
    copy.write_text(text)
    status, said = check(copy)
    assert status == 0 and "0 errors, 0 warnings" in said, said
    assert "differs" not in said, "nothing of ours is in it, nothing without effect"


def test_own_ini_names_every_key(pooler):
    """etc/pgflotilla.ini: all keys, in a comment, with their defaults."""
    p = pooler()
    there = dict(re.findall(r"^;(\w+) =(?: (.*))?$", (ROOT / "etc/pgflotilla.ini").read_text(), re.M))
    shown = {r["key"]: r["default"] for r in p.show("CONFIG")}
    assert set(shown) <= set(there)
    for key, default in shown.items():
        assert there[key] == (default or ""), key


def test_there_are_samples():
    assert len(SAMPLES) == 6
