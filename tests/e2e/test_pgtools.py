"""PostgreSQL's own programs through the pooler: pgbench in all its ways, pg_dump and psql."""
import re
import signal
import subprocess

import pytest

from conftest import PATIENCE, pg_bin, wait_until

# One thread each: pgbench prepares with a call that blocks, and a thread with two clients could wait with one of them
# for a server that its other one holds.
CLIENTS = 8


@pytest.fixture(scope="module")
def bench(pg):
    """A small TPC-B, so that transactions collide."""
    subprocess.run([pg_bin() / "pgbench", "-i", "-q", "-s", "1", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice",
                    "p0"], check=True, capture_output=True, timeout=PATIENCE)


def balanced(pg, transactions):
    """Each transaction added its amount in four places: no part of one is lost, doubled or somebody else's."""
    sums = pg.sql("select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), "
                  "(select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)")
    assert len(set(sums[0])) == 1, sums
    assert pg.sql("select count(*) from pgbench_history") == [(transactions,)]


def fresh(pg):
    pg.sql("truncate pgbench_history")
    for table, balance in (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance")):
        pg.sql(f"update pgbench_{table} set {balance} = 0 where {balance} <> 0")


def processed(out):
    return int(re.search(r"number of transactions actually processed: (\d+)", out)[1])


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
def test_tpcb(pooler, pg, bench, protocol, pool_mode):
    p = pooler(pool_mode=pool_mode, max_prepared_statements=200,
               default_pool_size=CLIENTS if pool_mode == "session" else 3)
    fresh(pg)
    done = p.run(pg_bin() / "pgbench", "-n", "-M", protocol, "-c", CLIENTS, "-j", CLIENTS, "-t", 50)
    assert processed(done.stdout) == CLIENTS * 50 and "failed transactions: 0 " in done.stdout, done.stdout
    assert not done.stderr.count("error"), done.stderr
    balanced(pg, CLIENTS * 50)


# TPC-B's transaction as pgbench has it, but serializable.
SERIALIZABLE = r"""
\set aid random(1, 100000)
\set tid random(1, 10)
\set delta random(-5000, 5000)
begin isolation level serializable;
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
select abalance from pgbench_accounts where aid = :aid;
update pgbench_tellers set tbalance = tbalance + :delta where tid = :tid;
update pgbench_branches set bbalance = bbalance + :delta where bid = 1;
insert into pgbench_history (tid, bid, aid, delta, mtime) values (:tid, 1, :aid, :delta, current_timestamp);
end;
"""


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_retries_after_serialization_failures(pooler, pg, bench, protocol):
    """All clients write to the one branch: 40001 comes often, pgbench rolls back and tries again until it works."""
    p = pooler(max_prepared_statements=200, default_pool_size=4)
    fresh(pg)
    (p.dir / "serializable.sql").write_text(SERIALIZABLE)
    done = p.run(pg_bin() / "pgbench", "-n", "-M", protocol, "-c", CLIENTS, "-j", CLIENTS, "-t", 20,
                 "--max-tries=10000", "-f", p.dir / "serializable.sql")
    assert processed(done.stdout) == CLIENTS * 20 and "failed transactions: 0 " in done.stdout, done.stdout
    assert int(re.search(r"total number of retries: (\d+)", done.stdout)[1]) > 0, done.stdout
    balanced(pg, CLIENTS * 20)


@pytest.mark.parametrize("pool_mode", ["session", "transaction", "statement"])
def test_a_connection_per_transaction(pooler, pg, bench, pool_mode):
    p = pooler(pool_mode=pool_mode, default_pool_size=2)
    fresh(pg)
    script = [] if pool_mode != "statement" else ["-S"]
    done = p.run(pg_bin() / "pgbench", "-n", "-C", "-c", CLIENTS, "-j", CLIENTS, "-t", 15, *script)
    assert processed(done.stdout) == CLIENTS * 15, done.stdout
    balanced(pg, 0 if script else CLIENTS * 15)
    assert len(pg.backends()) <= 2
    wait_until(lambda: p.pool()["cl_active"] == 0, "all clients are gone")


# ------------------------------------------------------------------------------------------------ pg_dump, psql

SCHEMA = r"""
create type mood as enum ('sad', 'ok', 'happy');
create table person (id serial primary key, name text not null unique, feels mood default 'ok', extra jsonb, raw bytea);
insert into person (name, feels, extra, raw)
  select 'name ' || i || E' \t\n\\ \'', (array['sad', 'ok', 'happy'])[1 + i % 3]::mood,
         jsonb_build_object('i', i, 'list', array[i, i + 1]), decode(repeat(to_hex(i % 16) || '0', 50), 'hex')
  from generate_series(1, 3000) i;
create table visit (person int references person, day date, primary key (person, day)) partition by range (day);
create table visit_2026 partition of visit for values from ('2026-01-01') to ('2027-01-01');
insert into visit select i, date '2026-01-01' + i % 300 from generate_series(1, 3000) i;
create view happy as select name from person where feels = 'happy';
create function twice(x int) returns int language plpgsql as $body$
begin
  return x * 2; -- ; 'quotes' $ and semicolons
end $body$;
create procedure nothing() language sql begin atomic select 1; end;
create sequence counter start 42;
select nextval('counter');
create index on person (feels) where feels <> 'ok';
create rule no_delete as on delete to person do instead nothing;
comment on table person is 'people, with ü';
select lo_from_bytea(4711, decode(repeat('00ff10', 200000), 'hex'));
select lo_from_bytea(4712, 'small');
"""


def content(pg, dbname):
    """What the tables, the large objects and the functions say; comparing the dumps alone would trust pg_dump."""
    return pg.sql("select md5(string_agg(p::text, '|' order by id)), (select count(*) from visit_2026), twice(21), "
                  "(select count(*) from happy), (select last_value from counter), "
                  "(select string_agg(loid || md5(string_agg), ',' order by loid) from (select loid, "
                  "string_agg(data, '' order by pageno) from pg_largeobject group by loid) lo) from person p",
                  dbname=dbname)


def dump(p, dbname, *flags):
    out = p.run(pg_bin() / "pg_dump", "-d", dbname, *flags).stdout
    return [line for line in out.splitlines() if not line.startswith((r"\restrict", r"\unrestrict"))]


def test_dump_and_restore(pooler, pg):
    """pg_dump | psql, both through the pooler; what it takes from the pool it gives back as it was (search_path!)."""
    p = pooler(pool_mode="session", default_pool_size=3,
               databases={"source": f"host=127.0.0.1 port={pg.port} dbname=dump_source",
                          "target": f"host=127.0.0.1 port={pg.port} dbname=dump_target"})
    for name in ("dump_source", "dump_target"):
        pg.sql(f"drop database if exists {name} with (force)", dbname="postgres")
        pg.sql(f"create database {name}", dbname="postgres")
    p.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "source", input=SCHEMA)
    env = p.env()
    with subprocess.Popen([pg_bin() / "pg_dump", "-d", "source"], stdout=subprocess.PIPE, env=env) as dumper:
        restored = subprocess.run(["psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", "target"], stdin=dumper.stdout,
                                  env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert (dumper.returncode, restored.returncode) == (0, 0), restored.stderr
    there = content(pg, "dump_source")
    assert there[0][1:5] == (3000, 42, 1000, 42) and there[0][5].startswith("4711")
    assert content(pg, "dump_target") == there
    assert dump(p, "target") == dump(p, "source")
    for name in ("source", "target"):  # pg_dump empties search_path; the next session must not have that
        assert p.run("psql", "-XAtq", "-d", name, "-c", "show search_path; select count(*) from person").stdout == (
            '"$user", public\n3000\n')
    # Four connections that share one snapshot.
    p.settings["default_pool_size"] = 6
    p.write_ini()
    p.admin("RELOAD")
    p.run(pg_bin() / "pg_dump", "-d", "source", "-Fd", "-j", "3", "-f", p.dir / "dir")
    pg.sql("drop database dump_target with (force)", dbname="postgres")
    pg.sql("create database dump_target", dbname="postgres")
    p.run(pg_bin() / "pg_restore", "-d", "target", "-j", "3", p.dir / "dir")
    assert content(pg, "dump_target") == there


@pytest.mark.parametrize("pool_mode", ["session", "transaction", "statement"])
def test_psql_copy(pooler, pg, pool_mode):
    p = pooler(pool_mode=pool_mode, default_pool_size=2)
    pg.sql("drop table if exists psql_copy")
    pg.sql("create table psql_copy (i int, v text)")
    lines = [f'{i},"value ""{i}"", with, commas"' for i in range(20000)]
    (p.dir / "in.csv").write_text("\n".join(lines) + "\n")
    out = p.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", input=f"""
\\copy psql_copy from '{p.dir}/in.csv' with (format csv)
\\copy (select * from psql_copy order by i) to '{p.dir}/out.csv' with (format csv)
\\copy (select 1, 'inline') to stdout
\\copy psql_copy from stdin
-1\tfrom stdin
\\.
select v from psql_copy where i = -1;
""").stdout
    assert out == "1\tinline\nfrom stdin\n"
    assert (p.dir / "out.csv").read_text().splitlines() == lines
    # A bad line ends the COPY, not the session.
    (p.dir / "bad.csv").write_text("1,good\nno number,bad\n" + "2,late\n" * 50000)
    done = p.run("psql", "-XAtq", input=f"""
\\copy psql_copy from '{p.dir}/bad.csv' with (format csv)
select count(*) from psql_copy;
""")
    assert "invalid input syntax for type integer" in done.stderr and done.stdout == "20001\n"


@pytest.mark.parametrize("pool_mode", ["session", "transaction"])
def test_psql_meta_commands(pooler, pg, pool_mode):
    """What psql asks the catalogue, and what it does with a session: the answers are PostgreSQL's own."""
    pg.sql("drop table if exists meta_t")
    pg.sql("create table meta_t (id serial primary key, v text default 'x')")
    p = pooler(pool_mode=pool_mode, default_pool_size=2)
    script = r"""
\d
\d meta_t
\dt+ meta_t
\di
\df pg_catalog.array_agg
\dn
\du alice
\l p0
\sf information_schema._pg_truetypid(pg_attribute, pg_type)
\encoding
\set n 7
select :n as seven \gset got_
select :'got_seven';
select 1 as a, 'x' as b \gdesc
select 1 as a, 2 as b \gx
select format('select %s', i) from generate_series(1, 3) i \gexec
values (1, 2, 3), (4, 5, 6) \crosstabview
begin \; select 2 \; commit;
select 1 / 0;
\errverbose
"""

    def run(env):
        done = subprocess.run(["psql", "-Xq"], input=script, env=env, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr
    through = run(p.env())
    assert through == run(p.env() | {"PGPORT": str(pg.port)})
    assert "meta_t_id_seq" in through[1] and "22012" in through[2], through


def test_psql_ctrl_c(pooler, pg):
    """It is a cancel request, and ends the script."""
    p = pooler(default_pool_size=2)
    psql = subprocess.Popen(["psql", "-XAtq", "-c", "select pg_sleep(600) as by_psql", "-c", "select 'never'"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=p.env(), text=True)
    wait_until(lambda: pg.sql("select 1 from pg_stat_activity where state = 'active' and query = "
                              "'select pg_sleep(600) as by_psql'"), "the query runs")
    psql.send_signal(signal.SIGINT)
    out, err = psql.communicate(timeout=PATIENCE)
    assert "canceling statement due to user request" in err
    assert wait_until(lambda: p.pool()["cl_active"] == 0, "psql has left")


def test_psql_connect(pooler):
    r"""\connect is a new session with another database and user."""
    p = pooler(default_pool_size=1)
    script = "select current_database(), current_user;\n" * 2
    out = p.run("psql", "-XAtq", input=f"{script}\\connect p1 bob\n{script}\\connect - alice\n{script}").stdout
    assert out.split() == ["p0|alice"] * 2 + ["p1|bob"] * 2 + ["p1|alice"] * 2
