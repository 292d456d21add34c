"""Real drivers through the pooler: drivers/README.md says what each program does, DRIVERS which programs there are."""
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "drivers"
STEPS = ["simple", "prepared", "transaction", "copy", "cancel", "big"]
POOL_MODES = ["session", "transaction", "statement"]
CONNECTIONS = 6
PATIENCE = 200  # only a hang guard


def made(*argv):
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"


def script(*argv):
    return lambda build: [*argv]


def libpq(build):
    """Compiled once."""
    program = build / "libpq"
    if not program.exists():
        made("cc", "-Wall", "-Wextra", "-Werror", "-O1", "-I/usr/include/postgresql", HERE / "libpq.c", "-lpq",
             "-o", program)
    return [program]


def jdbc(build):
    jar = "/usr/share/java/postgresql.jar"
    if not (build / "Jdbc.class").exists():
        made("javac", "-cp", jar, "-d", build, HERE / "Jdbc.java")
    # A short life: no second compiler, no large heap.
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m", "-cp", f"{build}:{jar}",
            "Jdbc"]


# One line per driver: name, how to get its command line, and what it does besides or instead of STEPS.
DRIVERS = {
    "psycopg3": (script(sys.executable, HERE / "py_psycopg3.py"), [*STEPS, "pipeline"]),
    "psycopg2": (script(sys.executable, HERE / "py_psycopg2.py"), [s for s in STEPS if s != "prepared"]),
    "asyncpg": (script(sys.executable, HERE / "py_asyncpg.py"), STEPS),
    "libpq": (libpq, [*STEPS, "pipeline"]),
    "pgjdbc": (jdbc, STEPS),
    "node-postgres": (script("node", HERE / "node/pg.mjs"), STEPS),
    "postgres.js": (script("node", HERE / "node/postgres.mjs"), STEPS),
    "DBD-Pg": (script("perl", HERE / "dbd_pg.pl"), STEPS),
    "php": (script("php", HERE / "pgsql.php"), STEPS),
}


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    return tmp_path_factory.mktemp("drivers")


@pytest.mark.parametrize("pool_mode", POOL_MODES)
@pytest.mark.parametrize("driver", DRIVERS)
def test_driver(pooler, pg, build, driver, pool_mode):
    command, steps = DRIVERS[driver]
    for table in ("item", "bulk"):
        pg.sql(f"drop table if exists {table}")
        pg.sql(f"create table {table} (conn int, i int, v text)")
    size = CONNECTIONS if pool_mode == "session" else 3
    p = pooler(pool_mode=pool_mode, default_pool_size=size, max_prepared_statements=200,
               ignore_startup_parameters="extra_float_digits")
    url = f"postgresql://alice@127.0.0.1:{p.port}/p0?sslmode=disable"
    try:
        done = subprocess.run([*map(str, command(build)), url, pool_mode], capture_output=True, cwd=build,
                              timeout=PATIENCE)
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        status, out, err = "none, it hangs", e.stdout or b"", e.stderr or b""
    said = f"exit status {status}\n{out.decode()}\n{err.decode()}"
    version, *lines = out.decode().splitlines() or [""]
    assert version.startswith("# ") and lines == [f"ok {step}" for step in steps] and status == 0, said
    assert len(pg.backends()) <= size
