"""syslog, syslog_ident, syslog_facility: what arrives at /dev/log, a socket of the test's own in a namespace of its own."""
import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading

import pytest

from conftest import wait_until

pytestmark = pytest.mark.ours
# A /dev with nothing in it but a few devices and `log`. No capability is left when the program begins.
NAMESPACE = ["unshare", "--user", "--mount", "--map-current-user", "--keep-caps", "sh", "-ec"]
SCRIPT = """
mkdir "$1/dev"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=755 tmpfs /dev
for device in null zero full random urandom; do touch /dev/$device; mount --bind "$1/dev/$device" /dev/$device; done
ln -s "$1/syslog" /dev/log
shift
exec setpriv --inh-caps=-all --ambient-caps=-all "$@"
"""
FACILITIES = {"auth": 4, "authpriv": 10, "daemon": 3, "user": 1, **{f"local{n}": 16 + n for n in range(8)}}


def namespaces():
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return "no unshare or setpriv here"
    tried = subprocess.run([*NAMESPACE, "mount -t tmpfs tmpfs /mnt", "sh"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no namespaces for ordinary users here: {tried.stderr.strip()}"


class Syslogd:
    """/dev/log: every datagram as (facility, severity, text), or none of them read if it is stuck."""

    def __init__(self, path, stuck=False):
        self.got = []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        if not stuck:
            threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while data := self.sock.recv(65536):
                pri, text = re.fullmatch(r"<(\d+)>(.*)", data.decode().rstrip("\0"), re.S).groups()
                self.got.append((int(pri) >> 3, int(pri) & 7, text))

    def texts(self, part=""):
        return [text for _, _, text in self.got if part in text]

    def close(self):
        self.sock.close()


@pytest.fixture
def logged(make_pooler):
    """logged(**settings) -> a running pooler and its syslogd."""
    why = namespaces()
    if why:
        pytest.skip(why)
    made = []

    def start(*flags, stuck=False, **settings):
        p = make_pooler(**settings)
        made.append(Syslogd(p.dir / "syslog", stuck))
        real = p.exe
        starter = p.dir / "start"
        quoted = SCRIPT.replace("'", "'\\''")
        starter.write_text(f"#!/bin/sh\nexec {' '.join(NAMESPACE)} '{quoted}' sh {p.dir} {real} \"$@\"\n")
        starter.chmod(0o755)
        p.exe = starter
        p.start(*flags)
        p.exe = real
        return p, made[-1]
    yield start
    for d in made:
        d.close()


def test_syslog_gets_what_the_file_gets(logged):
    p, d = logged(syslog=1)
    with p.login() as c:
        assert c.value("select 1") == "1"
    with p.console() as c:
        c.query("no such command")
    pid = p.proc.pid
    p.stop()  # nothing more is written
    wait_until(lambda: len(d.got) >= len(p.log().splitlines()), "all has come")
    file = [line.split("] ", 1)[1] for line in p.log().splitlines()]
    assert len(file) == len(d.got) > 5
    levels = {"FATAL": 2, "ERROR": 3, "WARNING": 4, "LOG": 6}
    for line, (facility, severity, text) in zip(file, d.got):
        level, message = line.split(" ", 1)
        # RFC 3164: time, name[pid]: message; no level and no second time in the message.
        assert re.fullmatch(rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d pgbouncer\[{pid}\]: {re.escape(message)}", text), text
        assert (facility, severity) == (FACILITIES["daemon"], levels[level]), line
    assert {"ERROR", "WARNING", "LOG"} <= {line.split(" ", 1)[0] for line in file}


def test_json(logged):
    """The same objects as in the file, behind syslog's own head."""
    p, d = logged(syslog=1, log_format="json")
    p.login().close()
    p.wait_log("client unexpected eof")
    p.stop()
    wait_until(lambda: len(d.got) >= len(p.log().splitlines()), "all has come")
    sent = [json.loads(re.fullmatch(r"\w{3} [ \d]\d [\d:]{8} pgbouncer\[\d+\]: (\{.*\})", text)[1]) for _, _, text in d.got]
    assert sent == [json.loads(line) for line in p.log().splitlines()] and len(sent) > 5


@pytest.mark.parametrize("facility", FACILITIES)
def test_facility_and_name(logged, facility):
    _, d = logged(syslog=1, syslog_facility=facility, syslog_ident="front-2")
    wait_until(lambda: d.texts("process up"), "it says that it is up")
    assert {f for f, _, _ in d.got} == {FACILITIES[facility]}
    assert all(" front-2[" in text for text in d.texts())


def test_syslog_without_a_log_file(logged):
    """The daemon's other way: no logfile, -q, and still every line is somewhere."""
    p, d = logged("-q", syslog=1, logfile=None)
    p.login().close()
    wait_until(lambda: d.texts("login attempt: db=p0 user=alice"), "the login is told")
    assert p.stderr.read_text() == "" and p.log() == ""


def test_levels_and_reload(logged):
    """DEBUG never goes there; RELOAD and SET switch it on, off, and over to another name and facility."""
    p, d = logged(syslog=0, verbose=2)
    p.login().close()
    p.wait_log("login attempt: db=p0")
    assert d.got == []
    p.settings |= {"syslog": 1, "syslog_ident": "one"}
    p.write_ini()
    p.admin("RELOAD")
    p.login().close()
    wait_until(lambda: d.texts(" one["), "on")
    p.settings |= {"syslog_ident": "two", "syslog_facility": "local3"}
    p.write_ini()
    p.admin("RELOAD")
    p.login("bob").close()
    wait_until(lambda: d.texts("user=bob"), "told of bob")
    assert all(f == FACILITIES["local3"] and " two[" in text for f, _, text in d.got if "user=bob" in text)
    p.admin("SET syslog = 0")
    before = len(d.got)
    p.login("carol").close()
    p.wait_log("user=carol")
    assert len(d.got) == before and not d.texts("user=carol")
    assert " DEBUG " in p.log() or " NOISE " in p.log()
    assert {severity for _, severity, _ in d.got} <= {2, 3, 4, 6}


def test_message_with_several_lines_and_format_characters(logged):
    p, d = logged(syslog=1)
    with p.wire() as c:
        c.start("%s%n%x", "a\n<0>forged: line")
        c.authenticate()
    (text,) = wait_until(lambda: d.texts("login attempt"), "it has come")[:1]
    assert "%s%n%x" in text and all(f == 3 for f, _, _ in d.got)


def test_syslogd_that_is_restarted(logged):
    """What is said while nobody listens is lost; who comes back hears again."""
    p, d = logged(syslog=1)
    wait_until(lambda: d.texts("process up"), "up")
    d.close()
    (p.dir / "syslog").unlink()
    p.login("bob").close()
    again = Syslogd(p.dir / "syslog")
    try:
        def heard():
            p.login("carol").close()
            return again.texts("user=carol")
        wait_until(heard, "the new one is told")
    finally:
        again.close()


def test_syslogd_that_is_stuck(logged):
    """It reads nothing, and its queue is full: lines are lost, nobody waits for it."""
    p, _ = logged(syslog=1, stuck=True)
    for _ in range(300):
        p.login().close()
    with p.login("bob") as c:
        assert c.value("select 1") == "1"
    p.wait_log("user=bob")
