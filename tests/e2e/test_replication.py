"""Replication connections: one client, one server of its own, session rules in every pool mode.

Many are `ours` because PgBouncer welcomes a replication client of a warm pool before its server is opened.
"""
import os
import select
import signal
import struct
import subprocess
import tempfile
import threading
import uuid

import psycopg2
import psycopg2.extras
import pytest

import wire
from conftest import PATIENCE, pg_bin, wait_until

MODES = ["session", "transaction", "statement"]


@pytest.fixture
def slot(pg):
    """A logical slot on p0, dropped afterwards."""
    name = "s" + uuid.uuid4().hex[:12]
    pg.sql("select pg_create_logical_replication_slot(%s, 'test_decoding')", name)
    yield name
    drop_slot(pg, name)


def drop_slot(pg, name):
    wait_until(lambda: not pg.sql("select 1 from pg_replication_slots where slot_name = %s and active", name),
               "the slot is free")
    pg.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", name)


def walsenders(pg):
    return [r[0] for r in pg.sql("select pid from pg_stat_activity where backend_type = 'walsender' and client_addr is "
                                 "not null")]


def start_streaming(c, slot, lsn="0/0"):
    c.send(wire.query(f"START_REPLICATION SLOT {slot} LOGICAL {lsn}"))
    first = c.recv()
    assert first.type == "W", first


def next_change(c):
    """The next decoded line; keepalives are passed over."""
    while True:
        m = c.recv()
        assert m.type == "d", m
        if m.body[:1] == b"w":
            return m.body[25:].decode()


def status_update(lsn=0):
    return wire.msg("d", b"r" + struct.pack("!QQQqB", lsn, lsn, lsn, 0, 0))


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("pool_mode", MODES)
def test_logical_commands_and_sql(pooler, pool_mode):
    p = pooler(pool_mode=pool_mode, default_pool_size=3)
    with p.login(replication="database", application_name="abc", options="-c enable_seqscan=off -c work_mem=1MB") as c:
        assert c.params["application_name"] == "abc"
        assert c.value("show application_name") == "abc"
        assert c.value("show enable_seqscan") == "off"
        assert c.value("show work_mem") == "1MB"
        assert c.rows("IDENTIFY_SYSTEM")[0][3] == "p0"
        pid = c.value("select pg_backend_pid()")
        # Session rules: what is set stays, a transaction may stay open, and the server is always the same.
        c.query("set work_mem = '2MB'")
        assert c.query("begin")[-1].body == b"T"
        with p.login() as other:  # an ordinary client of the same pool goes its own way
            assert other.value("select pg_backend_pid()") != pid
            assert other.value("show enable_seqscan") == "on"
        c.query("commit")
        assert c.value("show work_mem") == "2MB"
        assert c.value("select pg_backend_pid()") == pid


@pytest.mark.parametrize("word", ["on", "true", "yes", "1", "TRUE", "t"])
def test_physical(pooler, word):
    p = pooler()
    with p.login(replication=word, application_name="abc", options="-c enable_seqscan=off") as c:
        assert c.rows("IDENTIFY_SYSTEM")[0][3] is None
        assert c.value("SHOW application_name") == "abc"
        assert c.value("SHOW enable_seqscan") == "off"
        out = c.query("select 1")
        assert out[0].type == "E" and out[0].code == "0A000"
        assert [r["replication"] for r in p.show("CLIENTS") if r["database"] == "p0"] == ["physical"]


@pytest.mark.parametrize("word", ["off", "false", "no", "0", "f", "maybe", "", "o"])
def test_no_replication(pooler, word):
    """Garbage is ignored, as PgBouncer does."""
    p = pooler()
    with p.login(replication=word) as c:
        assert c.value("select 1") == "1"
        assert [r["replication"] for r in p.show("CLIENTS") if r["database"] == "p0"] == ["none"]


def test_database_defaults_to_user(pooler):
    p = pooler(databases={"alice": ""})
    p.databases["alice"] = p.databases["p0"]
    p.write_ini()
    p.admin("RELOAD")
    with p.wire() as c:
        c.user = "alice"
        c.send(wire.startup_packet({"user": "alice", "replication": "true"}))
        assert c.authenticate()[-1].type == "Z"
        assert len(c.rows("IDENTIFY_SYSTEM")) == 1


def test_never_pooled(pooler, pg):
    p = pooler(min_pool_size=0)
    with p.login(replication="database") as c:
        assert c.value("select 1") == "1"
        assert len(walsenders(pg)) == 1
    wait_until(lambda: not walsenders(pg), "its server is closed")
    wait_until(lambda: not [r for r in p.show("SERVERS") if r["database"] == "p0"], "and gone from the pool")
    p.wait_log("closing because: replication client was closed")
    with p.login() as c:
        assert c.value("select backend_type from pg_stat_activity where pid = pg_backend_pid()") == "client backend"


@pytest.mark.workers(1, 2)
def test_shown(pooler):
    p = pooler()
    with p.login(replication="database", application_name="me") as c:
        client = next(r for r in p.show("CLIENTS") if r["database"] == "p0")
        server = next(r for r in p.show("SERVERS") if r["database"] == "p0")
        assert client["replication"] == server["replication"] == "logical"
        assert client["state"] == server["state"] == "active"
        assert client["link"] == server["ptr"] and server["link"] == client["ptr"]
        assert client["application_name"] == server["application_name"] == "me"
        pool = p.pool()
        assert (pool["cl_active"], pool["sv_active"], pool["sv_idle"]) == (1, 1, 0)
        assert c.value("select 1") == "1"
    assert "replication=database" in p.log()


@pytest.mark.ours
@pytest.mark.workers(1, 2)
def test_waits_within_pool_size(pooler, pg):
    p = pooler(default_pool_size=2)
    a, b = p.login(replication="database"), p.login(replication="database")
    late = [p.wire().start(replication="database") for _ in range(3)]
    wait_until(lambda: p.pool()["cl_waiting"] == 3, "they wait")
    assert p.pool()["sv_active"] == 2 and len(walsenders(pg)) == 2
    assert {r["state"] for r in p.show("CLIENTS") if r["replication"] == "logical"} == {"active", "waiting"}
    a.close()
    b.close()
    while late:  # whoever is let in first: they are on different workers
        ready = select.select([c.sock for c in late], [], [], 60)[0]
        assert ready, "nobody is let in"
        c = next(c for c in late if c.sock is ready[0])
        late.remove(c)
        assert c.authenticate()[-1].type == "Z"
        assert c.value("select 1") == "1"
        assert len(walsenders(pg)) <= 2
        c.close()
    wait_until(lambda: not walsenders(pg), "all are closed")


@pytest.mark.workers(1, 2)
def test_idle_servers_make_room(pooler):
    p = pooler(default_pool_size=2)
    a, b = p.login(), p.login()
    for c in (a, b):
        c.query("begin")
    for c in (a, b):
        c.query("commit")
    wait_until(lambda: p.pool()["sv_idle"] == 2, "two idle servers")
    with p.login(replication="database") as c:
        assert c.value("select 1") == "1"
    p.wait_log("closing because: evicted")
    assert a.value("select 1") == "1"


@pytest.mark.ours
@pytest.mark.workers(2)
def test_ordinary_clients_are_not_starved_by_waiting_ones(pooler):
    """Replication clients that wait for a place neither get idle servers nor hold up those that do."""
    p = pooler(default_pool_size=2, query_wait_timeout=0)
    holder = p.login(replication="database")
    busy = p.login()
    busy.query("begin")
    stuck = [p.wire().start(replication="database") for _ in range(4)]
    wait_until(lambda: p.pool()["cl_waiting"] == 4, "they wait")
    others = [p.login() for _ in range(6)]
    for c in others:
        c.send(wire.query("select 1"))
    busy.query("commit")
    for c in others:
        assert c.until("Z")[-1].body == b"I"
    for c in stuck:
        c.close()
    holder.close()


@pytest.mark.ours
def test_refused_login(pooler, pg):
    """Why is in the log; the failure is this client's alone."""
    pg.sql("do $$ begin create role nobody_special login; exception when duplicate_object then null; end $$")
    p = pooler(userlist={"nobody_special": ""}, server_login_retry=300)
    with p.login("nobody_special") as other:
        for _ in range(3):
            with p.wire().start("nobody_special", replication="database") as c:
                m = c.authenticate()[-1]
                assert m.type == "E" and m.text == "login failed" and m.code in ("42501", "08P01")
                assert c.at_eof()
        assert other.value("select 1") == "1"
    log = p.log()
    assert "S: login failed: FATAL: must be superuser or replication role" in log
    assert log.count("closing because: login failed (age") == 6
    with p.login("nobody_special") as c:
        assert c.value("select 1") == "1"


@pytest.mark.ours
def test_refused_login_in_a_cold_pool(pooler, pg):
    pg.sql("do $$ begin create role nobody_special login; exception when duplicate_object then null; end $$")
    p = pooler(userlist={"nobody_special": ""}, server_login_retry=300)
    with p.wire().start("nobody_special", replication="database") as c:
        assert c.authenticate()[-1].text == "login failed"
    with p.login("nobody_special") as c:  # and at once
        assert c.value("select 1") == "1"


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("pool_mode", MODES)
def test_streaming_both_ways(pooler, pg, slot, pool_mode):
    """CopyBoth: changes come, status updates go, CopyDone ends it, and the connection lives on."""
    p = pooler(pool_mode=pool_mode, query_wait_timeout=5, client_idle_timeout=1, idle_transaction_timeout=1,
               server_idle_timeout=1, server_lifetime=1)
    with p.login(replication="database") as c:
        start_streaming(c, slot)
        for i in range(3):
            pg.sql("insert into t (v) values (%s)", f"{slot} {i}")
            assert next_change(c).startswith("BEGIN")
            assert f"{slot} {i}" in next_change(c)
            assert next_change(c).startswith("COMMIT")
            c.send(status_update())
        c.send(status_update(), wire.msg("c"))
        out = c.until("Z")
        assert out[-1].body == b"I" and "c" in [m.type for m in out]
        assert c.value("select 1") == "1"


@pytest.mark.ours
def test_idle_timeouts_spare_it(pooler):
    p = pooler(client_idle_timeout=1, server_idle_timeout=1, server_lifetime=1, idle_transaction_timeout=1)
    with p.login(replication="database") as c, p.login() as plain:
        assert plain.fatal().text == "client_idle_timeout"  # by now it would have been its turn
        assert c.value("select 1") == "1"


@pytest.mark.workers(1, 2)
def test_slow_reader_is_bounded(pooler, pg, slot):
    """A client that does not read holds its walsender back; nothing is lost, nothing piles up in the pooler."""
    p = pooler()
    with p.wire(rcvbuf=16384) as c:
        c.login(replication="database")
        start_streaming(c, slot)
        with p.login() as other:
            before = p.rss()
            rows, size = 400, 256 * 1024
            pg.sql("create table if not exists big (v text)")
            with pg.connect() as conn:
                conn.execute("alter table big alter v set storage external")
                with conn.transaction():
                    for i in range(rows):
                        conn.execute("insert into big values (%s)", (f"{i} " + "x" * size,))
            # The walsender is stopped by its socket, so it waits in a write.
            wait_until(lambda: pg.sql("select 1 from pg_stat_activity where backend_type = 'walsender' and wait_event = "
                                      "'WalSenderWriteData'"), "back-pressure reaches the walsender")
            assert other.value("select 1") == "1"
            assert p.rss() - before < 16 << 20
        seen = 0
        while seen < rows:
            line = next_change(c)
            if "table public.big" in line:
                assert line.endswith("x'") and f"'{seen} x" in line[:80]
                seen += 1
    pg.sql("truncate big")


@pytest.mark.parametrize("how", ["terminate", "close", "reset"])
@pytest.mark.parametrize("streaming", [False, True])
def test_client_leaves(pooler, pg, slot, how, streaming):
    p = pooler()
    c = p.login(replication="database")
    if streaming:
        start_streaming(c, slot)
    assert len(walsenders(pg)) == 1
    if how == "terminate":
        c.send(wire.TERMINATE)
    (c.drop if how == "reset" else c.close)()
    wait_until(lambda: not walsenders(pg), "the walsender ends")
    wait_until(lambda: (x := p.pool())["cl_active"] == x["sv_active"] == x["sv_login"] == 0, "nothing is left")


@pytest.mark.ours
@pytest.mark.parametrize("streaming", [False, True])
def test_server_leaves(pooler, pg, slot, streaming):
    p = pooler()
    with p.login(replication="database") as c:
        if streaming:
            start_streaming(c, slot)
        pg.sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'walsender' and client_addr "
               "is not null")
        m = c.fatal()
        assert m.code == "57P01" or m.text == "server conn crashed?"
    wait_until(lambda: p.pool()["sv_active"] == 0, "nothing is left")
    with p.login(replication="database") as c:
        assert c.value("select 1") == "1"


def test_client_leaves_while_its_server_logs_in(make_pooler):
    """The server is let go; the next client gets one."""
    from test_protocol import FakeServer, LOGIN
    fake = FakeServer(hold=True)
    p = make_pooler()
    p.databases["fake"] = f"host=127.0.0.1 port={fake.port} dbname=x"
    p.start()
    c = p.wire().start(database="fake", replication="database")
    wait_until(lambda: len(fake.startups) == 1, "the startup packet arrives")
    assert fake.startups[0]["replication"] == "database"
    c.drop()
    wait_until(lambda: fake.ended == 1, "its server is closed")
    fake.hold = False
    with p.wire().start(database="fake", replication="true", application_name="x", timezone="Asia/Tokyo",
                        options="-c a=b\\ c -x") as c:
        assert c.authenticate()[-1].type == "Z"
        assert fake.startups[1]["replication"] == "yes"
        assert fake.startups[1]["options"] == "-c a=b\\ c -x"  # whatever it is, the server may judge
        assert fake.startups[1]["TimeZone"] == "Asia/Tokyo" and fake.startups[1]["application_name"] == "x"
    assert LOGIN


@pytest.mark.workers(1, 2)
@pytest.mark.parametrize("streaming", [False, True])
def test_cancel(pooler, pg, slot, streaming):
    p = pooler(default_pool_size=1)
    with p.login(replication="database") as c:
        if streaming:
            start_streaming(c, slot)
            wait_until(lambda: pg.sql("select 1 from pg_stat_replication where state = 'streaming'"), "it streams")
        else:
            c.send(wire.query("select pg_sleep(600)"))
            wait_until(lambda: pg.sql("select 1 from pg_stat_activity where query = 'select pg_sleep(600)' and "
                                      "state = 'active'"), "the query runs")
        wire.cancel(c.address, c.key)
        out = c.until("E")
        assert out[-1].code == "57014"
        assert c.until("Z")[-1].body == b"I"
        assert c.value("select 1") == "1"


@pytest.mark.ours
def test_pause_and_resume(pooler):
    p = pooler()
    with p.login() as warm:
        warm.query("select 1")
    p.admin("PAUSE")
    c = p.wire().start(replication="database")
    wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
    p.admin("RESUME")
    assert c.authenticate()[-1].type == "Z"
    assert c.value("select 1") == "1"
    c.close()


def test_reconnect_ends_it(pooler):
    p = pooler()
    with p.login(replication="database") as c:
        p.admin("RECONNECT")
        assert c.fatal().text == "database configuration changed"


@pytest.mark.ours
def test_kill_while_it_waits(pooler):
    p = pooler(default_pool_size=1)
    with p.login(replication="database") as holder, p.wire() as c:
        c.start(replication="database")
        wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
        row = next(r for r in p.show("CLIENTS") if r["state"] == "waiting" and r["database"] == "p0")
        p.admin(f"KILL_CLIENT {row['id']}")
        assert c.authenticate()[-1].text == "admin forced disconnect"
        assert holder.value("select 1") == "1"
        with p.wire() as d:
            d.start(replication="database")
            wait_until(lambda: p.pool()["cl_waiting"] == 1, "it waits")
            p.admin("KILL p0")
            assert d.authenticate()[-1].text == "database removed"
        assert holder.fatal().text == "database removed"


@pytest.mark.ours
def test_query_wait_timeout(pooler):
    p = pooler(default_pool_size=1)
    with p.login(replication="database") as holder, p.wire() as c:
        p.admin("SET query_wait_timeout = 1")
        c.start(replication="database")
        assert c.authenticate()[-1].text == "query_wait_timeout"
        assert holder.value("select 1") == "1"


# ---------------------------------------------------------------------------------------------- the tools

def physical_entry(pg):
    """The physical tools of PostgreSQL 15 ask for a database of this name, whatever they are told."""
    return {"replication": f"host=127.0.0.1 port={pg.port} dbname=p0"}


@pytest.fixture
def writable():
    with tempfile.TemporaryDirectory(prefix="pgf-repl-", dir="/tmp") as d:
        yield d


@pytest.mark.parametrize("pool_mode", MODES)
def test_pg_recvlogical(pooler, pg, slot, pool_mode):
    p = pooler(pool_mode=pool_mode)
    tool = subprocess.Popen(["pg_recvlogical", "--slot", slot, "--file=-", "--no-loop", "--start", "-F", "0", "-d", "p0"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=p.env())
    try:
        wait_until(lambda: pg.sql("select 1 from pg_stat_replication where state = 'streaming'") or
                   tool.poll() is not None, "it streams")
        pg.sql("insert into t (v) values (%s)", slot)
        assert tool.stdout.readline().startswith(b"BEGIN ")
        assert slot.encode() in tool.stdout.readline()
        assert tool.stdout.readline().startswith(b"COMMIT ")
        tool.send_signal(signal.SIGINT)
        assert tool.wait(PATIENCE) == 0, tool.stderr.read()
    finally:
        tool.kill()
        tool.communicate()


@pytest.mark.parametrize("pool_mode", MODES)
def test_pg_receivewal(pooler, pg, writable, pool_mode):
    p = pooler(pool_mode=pool_mode, databases=physical_entry(pg))
    tool = subprocess.Popen(["pg_receivewal", "-D", writable, "-d", "dbname=p0", "--no-loop", "--synchronous"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=p.env())
    try:
        wait_until(lambda: pg.sql("select 1 from pg_stat_replication where state = 'streaming'") or
                   tool.poll() is not None, "it streams")
        pg.sql("insert into t (v) select repeat('y', 1000) from generate_series(1, 30000)")
        last = pg.sql("select pg_walfile_name(pg_switch_wal())")[0][0]
        wait_until(lambda: last in os.listdir(writable), "the segment arrives whole")
        tool.send_signal(signal.SIGINT)
        assert tool.wait(PATIENCE) == 0, tool.stderr.read()
        ours = open(os.path.join(writable, last), "rb").read()
        theirs = (pg.data / "pg_wal" / last).read_bytes()
        assert ours[:8192] == theirs[:8192]
    finally:
        tool.kill()
        tool.communicate()


@pytest.mark.parametrize("pool_mode", MODES)
def test_pg_basebackup(pooler, pg, writable, pool_mode):
    p = pooler(pool_mode=pool_mode, databases=physical_entry(pg))
    p.run("pg_basebackup", "-d", "dbname=p0", "-c", "fast", "-D", f"{writable}/b", "-X", "stream")
    p.run(pg_bin() / "pg_verifybackup", f"{writable}/b")
    wait_until(lambda: not walsenders(pg), "its connections end")


def test_psycopg2(pooler, pg, slot):
    p = pooler(databases=physical_entry(pg))
    where = f"host=127.0.0.1 port={p.port} dbname=p0 user=alice sslmode=disable"
    with psycopg2.connect(where, connection_factory=psycopg2.extras.LogicalReplicationConnection) as conn:
        cur = conn.cursor()
        cur.start_replication(slot_name=slot, decode=True)
        pg.sql("insert into t (v) values ('psycopg2')")
        got = []

        def read():
            m = cur.read_message()
            if m:
                got.append(m.payload)
                m.cursor.send_feedback(flush_lsn=m.data_start)
            return any("psycopg2" in x for x in got) and got[-1].startswith("COMMIT")
        wait_until(read, "the change arrives")
    conn.close()
    conn = psycopg2.connect(where, connection_factory=psycopg2.extras.PhysicalReplicationConnection)
    cur = conn.cursor()
    cur.execute("IDENTIFY_SYSTEM")
    assert cur.fetchone()[0]
    conn.close()


def test_psycopg(pooler):
    p = pooler()
    with p.connect(replication="database", client_encoding=None) as c:
        assert c.execute("IDENTIFY_SYSTEM").fetchone()[3] == "p0"
        assert c.execute("select 1").fetchone() == (1,)


@pytest.mark.workers(1, 2)
def test_many_at_once(pooler, pg):
    """Twelve over a pool of four, with ordinary clients between them."""
    p = pooler(default_pool_size=4)
    failures = []

    def work(i):
        try:
            for _ in range(5):
                with p.login(**({"replication": "database"} if i % 2 else {})) as c:
                    assert c.rows(f"select {i}") == [[str(i)]]
                    assert len(walsenders(pg)) <= 4
        except BaseException as e:  # noqa: BLE001
            failures.append((i, repr(e)))
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(24)]
    [t.start() for t in threads]
    [t.join(PATIENCE) for t in threads]
    assert not failures, failures[:3]
    assert not any(t.is_alive() for t in threads), "somebody hangs"
    wait_until(lambda: not walsenders(pg), "no walsender is left")
