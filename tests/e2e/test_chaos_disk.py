"""A disk that is full, for 146 and 165 of the reliability catalogue: a file system of 128 kB that only the pooler sees, in a mount
namespace of the test's own."""
import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from chaos import Load, nothing_is_left
from clusters import independent
from conftest import EXE, wait_until
from ledger import TABLE

pytestmark = [pytest.mark.ours, pytest.mark.one_engine]


class Disk:
    """path: as the programs that are started with the prefix see it; seen: as we do."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        self.holder = subprocess.Popen(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                                        f"mount -t tmpfs -o size=128k,mode=777 none '{path}' && echo here && exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "here\n":
            pytest.skip(f"no file system may be mounted: {self.holder.communicate()[1].strip()}")
        self.prefix = ["nsenter", "--target", str(self.holder.pid), "--user", "--mount", "--preserve-credentials", "--",
                       "unshare", "--user", f"--map-user={os.geteuid()}", "--"]
        self.seen = Path(f"/proc/{self.holder.pid}/root{path}")

    def fill(self):
        """To the last byte."""
        with contextlib.suppress(OSError), open(self.seen / "filler", "ab", buffering=0) as f:
            while True:
                f.write(b"x" * 512)

    def free(self):
        (self.seen / "filler").unlink()

    def close(self):
        self.holder.communicate()


@pytest.fixture
def on_disk(make_pooler):
    """A pooler whose log and pidfile are on such a disk; not started."""
    disks = []

    def make(**settings):
        p = make_pooler(**settings)
        disk = Disk(p.dir / "small")
        disks.append(disk)
        p.prefix = disk.prefix
        p.settings |= {"logfile": disk.path / "log", "pidfile": disk.path / "pid"}
        p.logfile, p.pidfile = disk.seen / "log", disk.seen / "pid"
        return p, disk
    yield make
    for d in disks:
        d.close()


def test_r165_full_disk_under_load(on_disk):
    """Nobody notices, and how many lines were lost is said when there is room again."""
    with independent(["127.0.0.77"]) as (own,):
        own.sql("alter system set synchronous_commit = on")
        own.sql("select pg_reload_conf()")
        own.sql(TABLE)
        p, disk = on_disk(verbose=2)
        p.databases["db"] = f"host={own.address} port={own.port} dbname=p0"
        p.start()
        with nothing_is_left(p, own):
            with Load(p, "db") as load:
                load.goes_on()
                disk.fill()
                size = p.logfile.stat().st_size
                for _ in range(30):
                    p.login("bob").close()
                assert p.admin("RELOAD") == "RELOAD"
                load.goes_on(100)
                assert p.logfile.stat().st_size - size < 4096
                disk.free()
                wait_until(lambda: p.login("bob").close() or
                           re.search(r"WARNING \d+ lines of the log were lost$", p.log(), re.M), "the loss is said")
                load.goes_on()
        load.settle(own)
        assert not load.refused()


def test_r145_no_room_for_the_pidfile(on_disk):
    """It does not start, says why, and leaves nothing behind that keeps the next one from starting."""
    p, disk = on_disk(logfile="")
    p.settings["logfile"] = p.dir / "pooler.log"
    p.logfile = p.dir / "pooler.log"
    p.write_ini()
    disk.fill()
    done = subprocess.run([*disk.prefix, EXE, p.ini], capture_output=True, text=True, cwd=p.dir, timeout=60)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "No space left on device" in done.stderr + p.log(), done.stderr + p.log()
    disk.free()
    p.start()
    with p.login() as c:
        assert c.value("select 1") == "1"
