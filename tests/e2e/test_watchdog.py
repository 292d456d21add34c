"""A worker that does not come back to its loop: catalogue 161. A library loaded before all others blocks one."""
import re
import signal
import subprocess
import urllib.request

import pytest

from conftest import SANITIZED, free_port, wait_until
from test_lifecycle import Manager

pytestmark = [pytest.mark.ours, pytest.mark.skipif(SANITIZED, reason="their libraries have to be the first")]

# Workers set tcp_keepcnt on each new client. Whoever takes the file away first waits until somebody else does so
# with the other one.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
  int (*real)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
  if (level == IPPROTO_TCP && name == TCP_KEEPCNT && rename(getenv("BLOCK"), getenv("BLOCKED")) == 0)
    while (access(getenv("BLOCKED"), F_OK) == 0) usleep(1000);
  return real(fd, level, name, value, length);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", folder / "shim.so", folder / "shim.c"], check=True)
    return folder / "shim.so"


@pytest.fixture
def blockable(make_pooler, shim):
    def make(**settings):
        p = make_pooler(tcp_keepcnt=7, **settings)
        p.block, p.blocked = p.dir / "block", p.dir / "blocked"
        p.extra_env |= {"LD_PRELOAD": str(shim), "BLOCK": str(p.block), "BLOCKED": str(p.blocked)}
        return p.start()
    return make


@pytest.mark.workers(3)
def test_r161_one_stuck_worker(blockable):
    port = free_port()
    p = blockable(watchdog_report="0.4", watchdog_abort=0, metrics_listen=f"127.0.0.1:{port}")
    with p.login() as before:
        p.block.touch()
        with p.wire() as victim:
            wait_until(p.blocked.exists, "a worker is stuck")
            p.wait_log("has not come back to its loop")
            p.wait_log("stands at #2")
            wait_until(lambda: "shim.so" in p.log(), "the stack names the place")
            # The kernel gives some of these to the stuck worker's socket.
            clients = [p.login() for _ in range(24)]
            for c in clients:
                assert c.value("select 1") == "1"
                c.close()
            p.blocked.unlink()
            p.wait_log("is back in its loop after")
            victim.start()
            assert victim.authenticate()[-1].type == "Z"
        assert before.value("select 1") == "1"
        for _ in range(6):
            with p.login() as c:
                assert c.value("select 1") == "1"
    assert {r["database"] for r in p.show("POOLS")} >= {"p0"}, "the console reaches all workers"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        stalls = re.findall(r"^pgflotilla_worker_stalls_total\{.*\} (\d+)$", page.read().decode(), re.M)
    assert len(stalls) == 3 and sum(map(int, stalls)) == p.log().count("is back in its loop after") > 0


@pytest.mark.workers(2)
def test_stuck_for_good(blockable):
    p = blockable(watchdog_report="0.3", watchdog_abort=1)
    p.block.touch()
    with p.wire():
        p.expect_exit = p.wait_exit()
        assert p.expect_exit == 1
    assert "a worker is stuck for longer than watchdog_abort" in p.log()


@pytest.mark.one_engine
def test_sign_of_life(make_pooler):
    p = make_pooler()
    manager = Manager(p.dir / "notify")
    p.extra_env |= {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "1000000"}
    p.start()
    for _ in range(3):
        manager.until("WATCHDOG=1")
    p.kill(signal.SIGTERM)
    assert p.wait_exit() == 0
