"""Numbers that must not grow: allocations and system calls per query. They count, they do not time."""
import re
import struct
import subprocess

import pytest

from conftest import SANITIZED

pytestmark = pytest.mark.ours

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static unsigned long *count;
static void *(*real)(size_t);
__attribute__((constructor)) static void start(void) {
  int fd = open(getenv("MALLOC_COUNT_FILE"), O_RDWR | O_CLOEXEC);
  real = dlsym(RTLD_NEXT, "malloc");
  if (fd >= 0) count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
void *malloc(size_t n) {
  if (!real) real = dlsym(RTLD_NEXT, "malloc");
  if (count) __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
  return real(n);
}
"""


def run_pgbench(p, clients, count, protocol):
    done = p.run("pgbench", "-n", "-S", "-M", protocol, "-c", clients, "-j", 2, "-t", count, "p1")
    assert re.search(r"processed: (\d+)", done.stdout), done.stdout + done.stderr
    return clients * count


@pytest.fixture
def bench(pg):
    if not pg.sql("select to_regclass('pgbench_accounts')", dbname="p1")[0][0]:
        subprocess.run(["pgbench", "-i", "-q", "-h", pg.dir, "-p", str(pg.port), "-U", "postgres", "p1"],
                       check=True, capture_output=True)


@pytest.mark.skipif(SANITIZED, reason="sanitizers bring their own malloc")
@pytest.mark.workers(1)
@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_no_allocation_per_query(make_pooler, bench, protocol):
    """32 clients queue for 4 servers. Logins, log lines and the console allocate; queries do not."""
    p = make_pooler(default_pool_size=4, server_tls_sslmode="disable")  # PostgreSQL may have been taught TLS
    source, library, counts = p.dir / "count.c", p.dir / "count.so", p.dir / "count"
    source.write_text(COUNTER)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    counts.write_bytes(b"\0" * 4096)
    p.extra_env = {"LD_PRELOAD": str(library), "MALLOC_COUNT_FILE": str(counts)}
    p.start()

    def count():
        return struct.unpack("Q", counts.read_bytes()[:8])[0]
    assert count() > 0, "the counter works"

    def cost(queries):
        before = count()
        run_pgbench(p, 32, queries, protocol)
        return count() - before
    cost(100)  # pools grow to what this load needs
    short, long = cost(100), cost(1100)
    # Both have the same logins; what 32,000 more queries add is theirs.
    assert (long - short) / 32000 < 0.01, (short, long)


@pytest.mark.skipif(SANITIZED, reason="too slow to be under load")
@pytest.mark.workers(1)
def test_system_calls_per_query(pooler, bench, mode):
    """io_uring under load: less than one call for two queries."""
    p = pooler(default_pool_size=20, server_tls_sslmode="disable")
    if p.engine != "io_uring":
        pytest.skip("only io_uring batches its calls")
    # A starved generator leaves the pooler nothing to batch: any one undisturbed run shows what it does under load.
    ratios = []
    for _ in range(10):
        before = int(p.show("WORKERS")[0]["syscalls"])
        queries = run_pgbench(p, 64, 300, "simple")
        ratios.append((int(p.show("WORKERS")[0]["syscalls"]) - before) / queries)
        if ratios[-1] < 0.5:
            return
    raise AssertionError(ratios)
