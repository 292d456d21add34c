"""web_page: the page at / of metrics_listen, its stream of events, and both in a real browser."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

import pytest

import wire
from conftest import SANITIZED, free_port, wait_until
from fakes import relay

pytestmark = pytest.mark.ours
SHOTS = os.environ.get("WEB_PAGE_SHOTS")  # a folder for screenshots
HOSTILE = "<img src=x onerror=alert(1)>'\"&\u2028\u202eevil"


@pytest.fixture
def serving(make_pooler):
    def make(**settings):
        port = free_port()
        p = make_pooler(**{"metrics_listen": f"127.0.0.1:{port}", "web_page": 1, "pool_mode": "transaction", **settings})
        p.web = port
        return p.start()
    return make


def get(p, path, method="GET", **headers):
    c = http.client.HTTPConnection("127.0.0.1", p.web, timeout=60)
    c.request(method, path, headers=headers)
    r = c.getresponse()
    return r.status, r.headers, r.read().decode()


class Events:
    """A viewer of /events."""
    def __init__(self, p, token=None, rcvbuf=None, **choice):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(60)
        self.sock.connect(("127.0.0.1", p.web))
        c = http.client.HTTPConnection("127.0.0.1", p.web)
        c.sock = self.sock
        c.request("GET", "/events?" + urllib.parse.urlencode(choice),
                  headers={"Authorization": f"Bearer {token}"} if token else {})
        self.r = c.getresponse()
        self.status = self.r.status

    def next(self):
        line = self.r.readline()
        assert line.startswith(b"data: ") and self.r.readline() == b"\n", line
        return json.loads(line[6:])

    def until(self, check):
        for _ in range(100):
            got = self.next()
            if check(got):
                return got
        raise AssertionError(got)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.r.close()
        self.sock.close()


def pool_of(report, database="p0", user="alice"):
    return next((p for p in report["pools"]["rows"] if (p["database"], p["user"]) == (database, user)), None)


# ---------------------------------------------------------------------------------------------------------- over HTTP

def test_off_by_default(serving):
    p = serving(web_page=0)
    assert get(p, "/")[0] == get(p, "/events")[0] == 404
    assert get(p, "/metrics")[0] == 200


def test_the_page_loads_nothing_else(serving):
    p = serving()
    status, headers, html = get(p, "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
    assert html.startswith("<!doctype html>") and "src=" not in html.replace("img src=", "")
    assert get(p, "/", "HEAD")[::2] == (200, "")
    assert get(p, "/events", "HEAD")[::2] == (200, "")
    assert get(p, "/other")[0] == 404


def test_numbers_are_the_consoles(serving):
    """After a run: pools, workers, users, databases and settings as SHOW tells them."""
    p = serving(default_pool_size=3, server_idle_timeout=0, max_user_connections=50)
    sql = p.dir / "two.sql"
    sql.write_text("begin;\nselect 1;\nselect 2;\nend;\n")
    assert "processed: 800/800" in p.run("pgbench", "-n", "-f", sql, "-c", 8, "-j", 2, "-t", 100, "p0").stdout
    with p.login(user="bob", database="p1") as c, p.console("stats") as console, Events(p, order="name") as viewer:
        c.value("select 1")

        def show(what):
            out = console.query(f"SHOW {what}")
            names = [n for n, _ in next(m for m in out if m.type == "T").columns]
            return [dict(zip(names, m.row)) for m in out if m.type == "D"]
        wait_until(lambda: sum(int(r["cl_active"]) for r in show("POOLS") if r["database"] == "p0") == 0)
        settings = viewer.next()["settings"]
        assert [(s["key"], s["value"], s["default"], s["live"]) for s in settings] == \
            [(r["key"], r["value"], r["default"], r["changeable"] == "yes") for r in show("CONFIG")]
        viewer.next()  # may have been asked for before now
        got = viewer.next()
        assert "settings" not in got  # once is enough
        rows = [r for r in show("POOLS") if r["database"] != "pgbouncer"]
        assert len(rows) == 2
        for row in rows:
            pool = pool_of(got, row["database"], row["user"])
            for key in ("cl_active", "cl_waiting", "sv_active", "sv_login"):
                assert pool[key] == int(row[key]), (row, key)
            assert pool["sv_idle"] == int(row["sv_idle"]) + int(row["sv_used"]) + int(row["sv_tested"])
            assert pool["mode"] == row["pool_mode"]
        for row in show("STATS_TOTALS"):
            if pool := pool_of(got, row["database"], "alice" if row["database"] == "p0" else "bob"):
                assert (pool["xact_count"], pool["query_count"]) == (int(row["xact_count"]), int(row["query_count"]))
        assert pool_of(got)["xact_count"] == 800 and 1 <= pool_of(got)["servers"] <= pool_of(got)["size"] == 3
        for row in show("LATENCY"):
            if row["what"] == "query" and row["database"] == "p0":
                assert pool_of(got)["query"] == {k: int(row[f"{k}_us"]) for k in ("p50", "p90", "p99", "p999", "max")} | \
                    {"count": 3200}
        assert got["latency"]["transaction"]["start"]["count"] == 801
        workers = show("WORKERS")
        for name, column in (("clients", "clients"), ("waiting", "waiting"), ("active", "servers_active"),
                             ("idle", "servers_idle")):
            assert [w[name] for w in got["workers"]] == [int(r[column]) for r in workers]
        assert got["totals"]["clients"] == sum(int(r["clients"]) for r in workers)
        users = {u["name"]: u for u in got["users"]}
        for row in show("USERS"):
            if row["name"] in users:
                u = users[row["name"]]
                assert (u["servers"], u["clients"], u["max_servers"]) == \
                    (int(row["current_connections"]), int(row["current_client_connections"]), 50)
        assert {"alice", "bob"} <= set(users)
        hosts = [(h["database"], h["address"], h["open"], h["active"], h["state"], h["role"]) for h in got["hosts"]["rows"]]
        assert hosts == [(r["database"], r["address"] or "", int(r["open"]), int(r["active"]), r["state"], r["role"])
                         for r in show("HOSTS")]


def test_slow_waits_are_the_consoles(serving):
    p = serving(default_pool_size=1, log_slow_wait="0.000001")
    with p.login() as holder, p.login(application_name="<b>") as waiter, Events(p) as viewer:
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        wait_until(lambda: p.pool()["cl_waiting"] == 1)
        holder.query("commit")
        waiter.until()
        got = viewer.until(lambda r: any(w["application_name"] == "<b>" for w in r["slow_waits"]))["slow_waits"]
    shown = p.show("SLOW_WAITS")
    assert [(w["client"], w["waited"], w["in_vain"], w["database"], w["user"], w["servers"], w["size"], w["addr"],
             w["port"], w["application_name"], w["worker"]) for w in got] == \
        [(int(r["client_id"]), int(r["waited_us"]), r["outcome"] == "none", r["database"], r["user"], int(r["servers"]),
          int(r["pool_size"]), r["addr"], int(r["port"]), r["application_name"], int(r["worker"])) for r in shown]


def test_rates_and_recent_latencies(serving):
    p = serving()
    with Events(p) as viewer, p.login() as c:
        assert "queries" not in viewer.next()["totals"]  # nothing to compare with
        end = threading.Event()

        def load():
            while not end.is_set():
                c.value("select 1")
        t = threading.Thread(target=load)
        t.start()
        try:
            # Counted when it begins, timed when it is answered: that may be two reports.
            viewer.until(lambda r: r["totals"].get("queries", 0) > 0 and pool_of(r)["queries"] > 0
                         and r["latency"]["query"]["second"]["count"] > 0)
        finally:
            end.set()
            t.join()
        # The minute goes on, the second is over.
        got = viewer.until(lambda r: r["totals"]["queries"] == 0 and pool_of(r)["queries"] == 0
                           and r["latency"]["query"]["second"]["count"] == 0)
        assert got["latency"]["query"]["minute"]["count"] > 0


def test_choice(serving):
    """Order, search and pages are the server's work."""
    p = serving(databases={"*": "host=127.0.0.1 port=1"}, max_client_conn=1000)
    with p.login(database="p1") as busy:
        busy.query("begin")
        for i in range(30):
            with p.wire() as c:
                c.start("bob", f"d{i:02}")
        names = [f"d{i:02}" for i in range(30)]
        wait_until(lambda: len(p.show("POOLS")) >= 31)
        with Events(p, order="name", find="D", **{"from": 25}) as v:
            pools = v.next()["pools"]
            assert (pools["matching"], pools["from"], pools["page"]) == (30, 25, 25)
            assert [r["database"] for r in pools["rows"]] == names[25:]
        with Events(p, order="name", find="d", **{"from": "7000000000000000000000"}) as v:
            assert v.next()["pools"]["from"] == 25  # the last page
        with Events(p, order="servers", database="d07", user="bob") as v:
            pools = v.next()["pools"]
            assert pools["rows"][0]["database"] == "p1" and len(pools["rows"]) == 25
            assert pools["chosen"]["database"] == "d07"
        with Events(p, find="nobody has this") as v:
            assert v.next()["pools"]["rows"] == []
        busy.query("commit")


def test_token(serving):
    p = serving(metrics_token="the secret")
    assert get(p, "/")[0] == 200  # nothing is told there
    for wrong in ({}, {"Authorization": "Bearer the"}, {"Authorization": "the secret"}):
        status, _, body = get(p, "/events", **wrong)
        assert (status, body) == (401, "metrics_token is wanted\n")
    assert get(p, "/events?token=the+secret")[0] == 401  # it would be in logs
    with Events(p, token="the secret") as v:
        got = v.next()
        assert got["state"] == "running"
        assert "the secret" not in json.dumps(got)


def test_names_that_are_not_ours_need_a_token(serving):
    """Who makes a name of his own mean 127.0.0.1 gets a browser to ask (DNS rebinding): without a token, no."""
    p = serving()
    for host in ("evil.example:9127", "evil.example"):
        assert get(p, "/events", Host=host)[0] == 421
    for host in ("localhost:1", "[::1]:9127", f"127.0.0.1:{p.web}"):
        assert get(p, "/events", "HEAD", Host=host)[0] == 200


def test_state(serving):
    p = serving()
    with Events(p) as v:
        assert v.next()["state"] == "running"
        p.admin("PAUSE")
        assert v.until(lambda r: r["state"] == "paused")["findings"]
        p.admin("RESUME")
        v.until(lambda r: r["state"] == "running")


def test_hostile_names(serving):
    p = serving(databases={"*": "host=127.0.0.1 port=1"})
    with p.wire() as c:
        c.start("alice", HOSTILE)
        wait_until(lambda: any(r["database"] == HOSTILE for r in p.show("POOLS")))
        with Events(p, find="onerror") as v:
            line = v.r.readline().decode()
            assert "<" not in line and "\u2028" not in line
            assert pool_of(json.loads(line[6:]), HOSTILE)
    with p.wire() as c:  # no UTF-8, and what would end an event
        body = struct.pack("!I", 3 << 16) + b"user\0alice\0database\0bad\xff\n\ndata: x\0\0"
        c.send(struct.pack("!I", len(body) + 4) + body)
        with Events(p, find="bad") as v:
            v.until(lambda r: pool_of(r, "bad\\xff\n\ndata: x"))


@pytest.mark.one_engine
def test_at_most_so_many_viewers(serving):
    """The 17th is told so; one who leaves makes room; the rest of the site goes on."""
    p = serving()
    viewers = [Events(p) for _ in range(16)]
    assert all(v.status == 200 for v in viewers)
    assert get(p, "/events")[::2] == (503, "too many viewers\n")
    assert get(p, "/metrics")[0] == 200
    viewers.pop().close()

    def one_more():
        v = Events(p)
        if v.status == 200:
            viewers.append(v)
        return v.status == 200
    wait_until(one_more)
    for v in viewers:
        assert v.next()["state"] == "running"
        v.close()


@pytest.mark.one_engine
def test_slow_viewers_are_dropped(serving):
    """Who does not read is cut off, others go on meanwhile."""
    p = serving(databases={"*": "host=127.0.0.1 port=1"}, max_client_conn=1000)
    for i in range(30):  # something to tell
        with p.wire() as c:
            c.start("bob", f"{i:02}" * 20)
    slow = Events(p, rcvbuf=4096)
    with Events(p) as v:
        ours, its = (f":{port:04X} " for port in (p.web, slow.sock.getsockname()[1]))

        def established():
            v.next()
            return any(ours in a and its in b and state == "01" for a, b, state in
                       ((f[1] + " ", f[2] + " ", f[3]) for f in map(str.split, open("/proc/net/tcp").readlines())))
        assert established()
        wait_until(lambda: not established())
        v.next()
    slow.close()


@pytest.mark.one_engine
def test_one_report_serves_all_and_none_is_made_for_nobody(serving):
    p = serving()
    with Events(p) as a, Events(p) as b:
        seen = [{v.next()["at"] for _ in range(4)} for v in (a, b)]
        assert len(seen[0] & seen[1]) >= 3
        assert max(seen[0]) - min(seen[0]) >= 1500  # no quicker for two
    time.sleep(2.5)  # then what there was is no longer fresh
    before = time.time()
    with Events(p) as c:
        assert c.next()["at"] >= before * 1000 - 1  # made because c came


@pytest.mark.one_engine
@pytest.mark.skipif(SANITIZED, reason="ten thousand logins")
def test_ten_thousand_pools(serving):
    p = serving(databases={"*": "host=127.0.0.1 port=1"}, max_client_conn=20000)
    with p.login() as c:
        c.value("select 1")
        hello = struct.pack("!I", 3 << 16) + b"user\0alice\0database\0"

        def come_and_go(numbers):
            for i in numbers:
                with socket.create_connection(("127.0.0.1", p.port)) as s:
                    body = hello + f"d{i}".encode() + b"\0\0"
                    s.sendall(struct.pack("!I", len(body) + 4) + body)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(come_and_go, [range(k, 10_000, 8) for k in range(8)]))
        with Events(p, order="name", **{"from": 9975}) as v:
            got = v.until(lambda r: r["totals"]["pools"] > 10_000)
            assert len(json.dumps(got)) < 100_000
            assert len(got["pools"]["rows"]) == 25 and got["pools"]["from"] == 9975
            assert len(got["hosts"]["rows"]) <= 64 and len(got["databases"]) <= 10 and len(got["findings"]) <= 20
            assert c.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- what starves, and why

def finding(report, database="p0", user="alice"):
    return next((f["reason"] for f in report["findings"] if (f.get("database"), f.get("user")) == (database, user)), None)


class Load:
    """Some clients that work, on a pool that is too small for them."""
    def __init__(self, p, n=6, sql="select pg_sleep(0.02)", **who):
        self.p, self.sql, self.who = p, sql, who
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work) for _ in range(n)]

    def work(self):
        with self.p.login(**self.who) as c:
            while not self.stop.is_set():
                c.value(self.sql)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()


@contextlib.contextmanager
def too_small(serving, pg):
    p = serving(default_pool_size=1)
    with p.login() as holder, p.login() as waiter:
        holder.query("begin")
        waiter.send(wire.query("select 1"))
        yield p, "p0", "the pool is too small: its only server is busy (pool_size = 1)"
        holder.query("commit")
        waiter.until()


@contextlib.contextmanager
def greedy_user(serving, pg):
    p = serving(default_pool_size=5)
    p.databases["p0"] += " max_db_connections=3"
    p.write_ini()
    p.admin("RELOAD")
    with p.login() as waiter:
        greedy = [p.login(user="bob") for _ in range(3)]
        for c in greedy:
            c.query("begin")
        waiter.send(wire.query("select 1"))
        yield p, "p0", "max_db_connections = 3 is used up, user bob holds 3 of them"
        for c in greedy:
            c.query("commit")
            c.close()
        waiter.until()


@contextlib.contextmanager
def slow_host(serving, pg):
    port = free_port()
    with relay(port, pg.port, 0.3):
        p = serving(databases={"both": f"host=127.0.0.1,127.0.0.1 port={pg.port},{port} dbname=p0 load_balance_hosts=random"},
                    default_pool_size=6)
        with Load(p, 12, "select 1", database="both"):
            yield p, "both", f"host 127.0.0.1:{port} is slow"


STAGES = [too_small, greedy_user, slow_host]


@pytest.mark.parametrize("stage", STAGES)
def test_why_a_pool_starves(serving, pg, stage):
    with stage(serving, pg) as (p, database, reason), Events(p) as v:
        v.until(lambda r: reason in (finding(r, database) or ""))
    with Events(p) as v:
        v.until(lambda r: not finding(r, database))


# --------------------------------------------------------------------------------------------------------- in a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = Path(__file__).parent / "drivers/node"
in_a_browser = [pytest.mark.one_engine,
                pytest.mark.skipif(not CHROMIUM, reason="no chromium here"),
                pytest.mark.skipif(not (DRIVER / "node_modules/playwright-core").exists(), reason="no playwright-core here")]


def browsing(test):
    for mark in in_a_browser:
        test = mark(test)
    return test


class Browser:
    def __init__(self):
        self.proc = subprocess.Popen(["node", DRIVER / "browser.mjs", CHROMIUM], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)

    def __call__(self, do, **more):
        self.proc.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.proc.stdin.flush()
        answer = json.loads(self.proc.stdout.readline())
        assert "error" not in answer, (do, more, answer)
        return answer["value"]

    def js(self, js):
        return self("eval", js=js)

    def until(self, js):
        return self("until", js=js)

    def page(self, p, path="/", **how):
        self("open", url=f"http://127.0.0.1:{p.web}{path}", **how)

    def shot(self, name, **how):
        if SHOTS:
            self("shot", path=f"{SHOTS}/{name}.png", **how)

    def clean(self, p, errors=()):
        """No error, no dialog, nothing from elsewhere."""
        seen = self("seen")
        assert [e for e in seen["errors"] if not any(x in e for x in errors)] == [] == seen["dialogs"]
        home = f"http://127.0.0.1:{p.web}/"
        assert all(r.startswith((home, "data:image/svg+xml,")) for r in seen["requests"]), seen["requests"]


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.proc.stdin.close()
    b.proc.wait(60)


CELLS = """Object.fromEntries([...document.querySelectorAll('#pool-table tbody tr')].map(tr => [tr.dataset.key,
    Object.fromEntries([...tr.children].map(td => [td.dataset.col, td.dataset.value]))]))"""
ROW = """[...document.querySelectorAll('#pool-table tbody tr')].find(tr => tr.dataset.key == '["p0","alice"]')"""


@browsing
@pytest.mark.parametrize("scheme,width,height", [("light", 1280, 900), ("dark", 1280, 900), ("light", 390, 844),
                                                 ("dark", 390, 844)])
def test_in_a_browser(serving, browser, scheme, width, height):
    """Under load: what it shows is what SHOW says, in both colour schemes and on a phone."""
    phone = width < 640
    p = serving(default_pool_size=4, server_idle_timeout=0)
    with Load(p), Load(p, 2, "select 1", user="bob", database="p1"):
        browser.page(p, scheme=scheme, width=width, height=height, touch=phone)
        browser.until(f"{ROW} && {ROW}.querySelector('[data-col=queries]').dataset.value > 0")
        browser.until("document.querySelectorAll('.uplot canvas').length == 4")
        browser.until("document.querySelector('.spark .a').getAttribute('d').split('L').length > (%d)" % (12 if SHOTS else 2))
        browser.shot(f"{'phone' if phone else 'desk'}-{scheme}")
        pools = {tuple(json.loads(k)): v for k, v in browser.js(CELLS).items() if k}
        assert pools["p0", "alice"]["servers"] == "4" and pools["p0", "alice"]["mode"] == "transaction"
        assert int(pools["p0", "alice"]["cl_active"]) + int(pools["p0", "alice"]["cl_waiting"]) == 6
        assert int(pools["p1", "bob"]["cl_active"]) + int(pools["p1", "bob"]["cl_waiting"]) == 2
        assert browser.js("document.documentElement.scrollWidth <= innerWidth")  # tables scroll, the page does not
        ground = browser.js("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")
    # At rest the numbers stand still, and are the console's.
    clients = [p.login(), p.login(), p.login(user="bob", database="p1")]
    clients[0].query("begin")
    wait_until(lambda: p.pool()["cl_active"] == 2)
    show = {(r["database"], r["user"]): r for r in p.show("POOLS")}
    want = {k: {c: show[k][c] for c in ("cl_active", "cl_waiting", "sv_active")} for k in (("p0", "alice"), ("p1", "bob"))}
    wait_until(lambda: all(pool.items() >= want[k].items() for k, pool in
                           ((tuple(json.loads(k)), v) for k, v in browser.js(CELLS).items() if k) if k in want))
    # The console's own client is one more while it asks.
    worker_clients = "[...document.querySelectorAll('#worker-list li')].map(li => Number(li.dataset.clients))"
    wait_until(lambda: sum(browser.js(worker_clients)) == 3)
    assert len(p.show("WORKERS")) == 2 == len(browser.js(worker_clients))
    changed = browser.js("[...document.querySelectorAll('#setting-table tr.changed')].map(tr => tr.children[0].innerText)")
    assert set(changed) == {r["key"] for r in p.show("CONFIG") if r["value"] != r["default"]}
    assert "default_pool_size" in changed
    for c in clients:
        c.close()
    browser.clean(p)


@browsing
@pytest.mark.parametrize("stage", STAGES)
def test_the_page_says_who_starves_and_why(serving, pg, browser, stage):
    with stage(serving, pg) as (p, database, reason):
        browser.page(p)
        browser.until(f"document.getElementById('findings').innerText.includes({json.dumps(reason)})")
        browser.until("/^\\(\\d+ wait\\)/.test(document.title)")
        browser.until("document.querySelector('#findings button')")
        browser("click", at="#findings button")
        browser.until(f"document.getElementById('charts-of').innerText == '{database} / alice'")
        browser.js("scrollTo(0, 0)")
        browser.shot(f"starves-{stage.__name__}", full=False)
    browser.until("!document.title.includes('wait')")
    browser.until(f"document.querySelector('#wait-table [data-col=pool]')?.innerText == '{database} / alice'")
    browser.clean(p)


@browsing
def test_keyboard(serving, browser):
    """Everything can be reached and done without a mouse; a row that is looked at keeps the focus."""
    p = serving()
    with p.login() as c:
        c.value("select 1")
        browser.page(p)
        browser.until(ROW)
        reached = []
        for _ in range(60):
            browser("press", key="Tab")
            at = browser.js("[document.activeElement.id || document.activeElement.className || "
                            "document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
            reached.append(at[0])
            assert at[1] != "none" or at[0] in ("BODY", ""), at
            if at[0] == "changed-only":
                break
        assert reached[0] == "skip" and {"hold", "find", "order", "pool", "changed-only"} <= set(reached), reached
        browser.js("document.querySelector('.pool').focus()")
        browser("press", key="Enter")
        browser.until("!document.getElementById('charts-all').hidden")
        seconds = "document.querySelector('.spark .a').getAttribute('d').length"
        before = browser.js(seconds)
        browser.until(f"{seconds} > {before}")
        assert browser.js("document.activeElement.className") == "pool"
    browser.clean(p)


@browsing
def test_hostile_names_in_a_browser(serving, browser):
    p = serving(databases={"*": "host=127.0.0.1 port=1"})
    with p.wire() as c:
        c.start("alice", HOSTILE)
        browser.page(p)
        browser("fill", at="#find", text="ONERROR")
        browser.until("document.querySelectorAll('#pool-table .pool').length == 1")
        assert browser.js("document.querySelector('#pool-table .pool bdi').textContent") == HOSTILE
        assert browser.js("document.querySelectorAll('main img').length") == 0
    browser.clean(p)


@browsing
def test_token_in_a_browser(serving, browser):
    p = serving(metrics_token="the secret +%")
    browser.page(p)
    browser.until("!document.getElementById('login').hidden")
    browser.shot("login", full=False)
    assert browser.js("document.getElementById('main').hidden")
    browser("fill", at="#token", text="wrong")
    browser("press", key="Enter")
    browser.until("document.getElementById('login-error').innerText == 'That is not the token.'")
    browser("fill", at="#token", text="the secret +%")
    browser("press", key="Enter")
    browser.until("!document.getElementById('main').hidden")
    browser.clean(p, errors=("401",))
    browser.page(p, "/#token=" + urllib.parse.quote("the secret +%"))
    browser.until("!document.getElementById('main').hidden")
    assert browser.js("location.hash") == ""
    browser.clean(p)


@browsing
def test_it_comes_back_when_the_pooler_does(serving, browser):
    p = serving()
    browser.page(p)
    browser.until("document.querySelector('.live.on')")
    p.stop()
    browser.until("document.querySelector('.live.off')")
    p.start()
    browser.until("document.querySelector('.live.on')")
    browser.clean(p, errors=("ERR_",))
