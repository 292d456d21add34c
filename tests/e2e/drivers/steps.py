"""What the Python programs share: the sizes, the loop over steps, threads. README.md says what the steps are."""
import sys
import threading
import time

CONNECTIONS = 6
SIMPLE = 20
PREPARED = 30
COPIED = 5000
ROWS = 200_000
BIG = 8 << 20
ACTIVE = "select count(*) from pg_stat_activity where state = 'active' and query = "


def endless(n):
    return f"select pg_sleep(600) as endless_{n}"


def big_text(n):
    return (f"{n}:" + "abcdefgh" * (BIG // 8))[:BIG]


def copy_lines(n):
    return "".join(f"{n}\t{i}\tvalue {i} of {n}\n" for i in range(COPIED))


def same(got, wanted):
    if got != wanted:
        raise AssertionError(f"got {got!r:.200}, wanted {wanted!r:.200}")


def until(check):
    while not check():
        time.sleep(0.01)


def together(work, connections):
    """work(n, connection) for each, in a thread each; the first failure is raised."""
    failures = []

    def run(n, connection):
        try:
            work(n, connection)
        except Exception as e:  # noqa: BLE001
            failures.append(e)
    threads = [threading.Thread(target=run, args=(n, c), daemon=True) for n, c in enumerate(connections)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def cancels(watcher, sleepers, ask, one, canceled):
    """Two connections sleep; a cancel of one ends its query and not the other's. ask(n) raises `canceled`."""
    def sleep(n):
        try:
            ask(n)
        except canceled:
            answers[n] = "canceled"

    def active(n):
        return one(watcher, ACTIVE + f"'{endless(n)}'")[0] == 1
    answers = ["none", "none"]
    threads = [threading.Thread(target=sleep, args=(n,), daemon=True) for n in (0, 1)]
    for t in threads:
        t.start()
    until(lambda: active(0) and active(1))
    for n in (0, 1):
        sleepers[n].cancel()
        threads[n].join()
        same(answers, ["canceled", "canceled" if n else "none"])
        same(one(sleepers[n], f"select 'alive {n}'"), (f"alive {n}",))
        same(active(1), n == 0)


def report(version, steps):
    """Runs each step; the exit status is 1 if one fails."""
    print("#", version, flush=True)
    failed = False
    for step in steps:
        try:
            step()
            print("ok", step.__name__, flush=True)
        except Exception as e:  # noqa: BLE001
            failed = True
            print("FAIL", step.__name__, f"{type(e).__name__}: {e}".replace("\n", " "), flush=True)
    sys.exit(failed)
