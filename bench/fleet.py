#!/usr/bin/env python3
"""The experiment of the mission: one PgBouncer, a fleet of them, and pgflotilla, from quiet to busy.

    scripts/bench --fleet --pgbouncer /path/to/pgbouncer --pgflotilla build/release/pgflotilla [--odyssey EXE]

`pgbench -S` in transaction pooling at 8 to 256 clients against (a) one PgBouncer, (b) N PgBouncers with so_reuseport,
[peers] and budgets divided by N, (c) pgflotilla with 1 and N workers, (d) HAProxy in front of N PgBouncers, (e) Odyssey,
(f) PostgreSQL itself; then the same with the null backend. What is not found on the machine is named and left out.
Everything takes turns, every other round backwards. See bench/README.md.
"""
import argparse
import csv
import json
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import run
from run import Pooler, cpu_list, find_tools, free_port, numbers, pinned, stop, wait_for_port

USER = "bench"


# ------------------------------------------------------------------------------------------------------- the processes

def identity():
    """PostgreSQL and poolers refuse root."""
    if os.getuid():
        return {}
    entry = pwd.getpwnam("postgres")
    return dict(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])


def own(path):
    if not os.getuid():
        entry = pwd.getpwnam("postgres")
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return path


def spawn(command, cpus, log, **kw):
    with open(log, "w") as out:
        return subprocess.Popen(pinned(cpus, command), stdout=out, stderr=out, stdin=subprocess.DEVNULL, **identity(), **kw)


def psql(port, sql, dbname=USER, host="127.0.0.1"):
    """Rows as dicts."""
    done = subprocess.run(["psql", "-XAq", "-F", "\t", "-P", "footer=off", "-h", host, "-p", str(port), "-U", USER, "-d", dbname,
                           "-c", sql], capture_output=True, text=True, timeout=30, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]  # a command without rows: nothing


class Postgres:
    """A throw-away cluster with pgbench's tables."""

    def __init__(self, folder, cpus, scale):
        self.host, self.port, self.folder = "127.0.0.1", free_port(), folder
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
        if not binaries:
            raise RuntimeError("no PostgreSQL below /usr/lib/postgresql")
        data = own(Path(tempfile.mkdtemp(dir=folder)))
        subprocess.run([binaries[-1] / "initdb", "-D", data, "-U", USER, "-A", "trust", "-N"], check=True,
                       stdout=subprocess.DEVNULL, **identity())
        self.process = spawn([binaries[-1] / "postgres", "-D", data, "-p", self.port, "-c", "listen_addresses=127.0.0.1",
                              "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=600",
                              "-c", "shared_buffers=256MB"], cpus, folder / "postgres.log")
        wait_for_port(self.port, self.process, folder / "postgres.log")
        while subprocess.run([binaries[-1] / "pg_isready", "-q", "-h", self.host, "-p", str(self.port)]).returncode:
            time.sleep(0.1)
        psql(self.port, "create database bench", "postgres")
        subprocess.run(["pgbench", "-i", "-q", "-s", str(scale), "-h", self.host, "-p", str(self.port), "-U", USER, USER],
                       check=True, capture_output=True)

    def backends(self):
        return int(psql(self.port, "select count(*) as n from pg_stat_activity where backend_type = 'client backend' and "
                                   "datname = 'bench' and application_name <> 'psql'")[0]["n"])


class Running:
    """A started subject: the port to load, who does the work, and the consoles (folder, port) that say who has which clients."""

    def __init__(self, port, processes, consoles=()):
        self.port, self.processes, self.consoles = port, processes, list(consoles)

    def cpu(self):
        """Seconds of CPU by worker: by thread where a process has several, else by process."""
        seconds = {}
        for name, process in self.processes.items():
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                thread = (task / "comm").read_text().strip()
                key = f"{name} {thread}" if task.name != str(process.pid) else name
                seconds[key] = seconds.get(key, 0) + int((task / "schedstat").read_text().split()[0]) / 1e9
        return seconds

    def ask(self, sql):
        """The rows of every console; one that is too busy to answer says nothing."""
        rows = []
        for folder, port in self.consoles:
            try:
                rows += psql(port, sql, "pgbouncer", str(folder))
            except (subprocess.SubprocessError, IndexError):
                print(f"no answer to {sql} from the console in {folder}", file=sys.stderr)
        return rows

    def clients(self):
        """Clients by worker; a PgBouncer is a worker."""
        if "pgflotilla" in self.processes:
            return [int(row["clients"]) for row in self.ask("SHOW WORKERS")]
        return [int(row["items"]) for row in self.ask("SHOW LISTS") if row["list"] == "used_clients"]

    def longest_wait(self):
        """What SHOW POOLS says now, in seconds, the worst of all consoles."""
        return max((int(row["maxwait"]) + int(row["maxwait_us"]) / 1e6 for row in self.ask("SHOW POOLS")
                    if row["database"] == USER), default=0.0)

    def stop(self):
        for process in self.processes.values():
            stop(process)


# -------------------------------------------------------------------------------------------------------- the subjects

def bouncer_ini(folder, backend, port, servers, more):
    (folder / "users.txt").write_text(f'"{USER}" ""\n')
    settings = {"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": folder, "auth_type": "trust",
                "auth_file": folder / "users.txt", "admin_users": USER, "pool_mode": "transaction",
                "default_pool_size": servers, "max_client_conn": 5000, "listen_backlog": 4096,
                "max_prepared_statements": 200, "log_connections": 0, "log_disconnections": 0, "log_stats": 0, **more}
    peers = settings.pop("[peers]", "")
    ini = own(folder) / "bench.ini"
    ini.write_text(f"[databases]\nbench = host={backend.host} port={backend.port} dbname=bench\n{peers}\n[pgbouncer]\n"
                   + "".join(f"{k} = {v}\n" for k, v in settings.items()))
    return ini


def fresh(folder, name):
    path = folder / name
    path.mkdir()
    path.chmod(0o755)
    return path


class OnePgBouncer:
    name = "PgBouncer"

    def __init__(self, exe):
        self.exe = Path(exe).resolve()

    def start(self, folder, backend, cpus, args):
        port, home = free_port(), fresh(folder, "one")
        process = spawn([self.exe, bouncer_ini(home, backend, port, args.servers, {})], cpus[:1], home / "log")
        wait_for_port(port, process, home / "log")
        return Running(port, {"pgbouncer": process}, [(home, port)])


class ManyPgBouncers:
    """The fleet as people build it today; every limit divided by its size."""

    def __init__(self, exe, size):
        self.exe, self.size, self.name = Path(exe).resolve(), size, f"{size} PgBouncers"

    def members(self, folder, backend, cpus, args, ports):
        homes = [fresh(folder, f"member{i}") for i in range(1, self.size + 1)]
        peers = "[peers]\n" + "".join(f"{i} = host={home} port={port}\n" for i, (home, port) in enumerate(zip(homes, ports), 1))
        processes, consoles = {}, []
        for i, (home, port) in enumerate(zip(homes, ports), 1):
            share = args.servers // self.size + (i <= args.servers % self.size)
            ini = bouncer_ini(home, backend, port, max(1, share), {"so_reuseport": 1, "peer_id": i, "[peers]": peers})
            processes[f"pgbouncer {i}"] = process = spawn([self.exe, ini], [cpus[(i - 1) % len(cpus)]], home / "log")
            consoles.append((home, port))
            wait_for_port(port, process, home / "log")
        return processes, consoles

    def start(self, folder, backend, cpus, args):
        port = free_port()
        processes, consoles = self.members(folder, backend, cpus, args, [port] * self.size)
        return Running(port, processes, consoles)


class HaproxyBefore(ManyPgBouncers):
    """HAProxy deals TCP connections out to the same N PgBouncers, least connections first."""

    def __init__(self, haproxy, exe, size):
        super().__init__(exe, size)
        self.haproxy, self.name = haproxy, f"HAProxy + {size} PgBouncers"

    def start(self, folder, backend, cpus, args):
        ports = [free_port() for _ in range(self.size)]
        processes, consoles = self.members(folder, backend, cpus, args, ports)
        port, home = free_port(), own(fresh(folder, "haproxy"))
        (home / "haproxy.cfg").write_text(
            f"global\n nbthread {self.size}\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n"
            f" timeout server 1h\nlisten bench\n bind 127.0.0.1:{port}\n balance leastconn\n"
            + "".join(f" server m{i} 127.0.0.1:{p}\n" for i, p in enumerate(ports, 1)))
        processes["haproxy"] = process = spawn([self.haproxy, "-db", "-f", home / "haproxy.cfg"], cpus, home / "log")
        wait_for_port(port, process, home / "log")
        return Running(port, processes, consoles)


class Flotilla:
    def __init__(self, exe, workers, more):
        self.exe, self.workers, self.more = Path(exe).resolve(), workers, more
        self.name = f"pgflotilla x{workers}"

    def start(self, folder, backend, cpus, args):
        port, home = free_port(), fresh(folder, "flotilla")
        ini = bouncer_ini(home, backend, port, args.servers, {"workers": self.workers, **self.more})
        process = spawn([self.exe, ini], cpus[:max(1, self.workers)], home / "log")
        wait_for_port(port, process, home / "log")
        return Running(port, {"pgflotilla": process}, [(home, port)])


class Odyssey:
    name = "Odyssey"

    def __init__(self, exe, workers):
        self.exe, self.workers = Path(exe).resolve(), workers

    def start(self, folder, backend, cpus, args):
        port, home = free_port(), own(fresh(folder, "odyssey"))
        (home / "odyssey.conf").write_text(
            f'daemonize no\nworkers {self.workers}\nlog_to_stdout yes\nlog_stats no\nlog_session no\nlog_query no\n'
            f'client_max 5000\nlisten {{ host "127.0.0.1" port {port} backlog 4096 }}\n'
            f'storage "pg" {{ type "remote" host "{backend.host}" port {backend.port} }}\n'
            f'database default {{ user default {{ authentication "none" storage "pg" storage_db "bench" '
            f'storage_user "bench" pool "transaction" pool_size {args.servers} pool_reserve_prepared_statement yes }} }}\n')
        process = spawn([self.exe, home / "odyssey.conf"], cpus, home / "log", cwd=home)
        wait_for_port(port, process, home / "log")
        return Running(port, {"odyssey": process})


class Direct:
    name = "no pooler"

    def start(self, folder, backend, cpus, args):
        return Running(backend.port, {})


def subjects_of(args):
    """Those whose programs are here; the others are named."""
    found, missing = [], []

    def exe(given, name, env=None):
        path = given or (os.environ.get(env) if env else None) or shutil.which(name)
        return path if path and os.access(path, os.X_OK) else missing.append(name)

    bouncer = exe(args.pgbouncer, "pgbouncer", "PGBOUNCER")
    haproxy = exe(None, "haproxy")
    if bouncer:
        found += [OnePgBouncer(bouncer), ManyPgBouncers(bouncer, args.size)]
    more = dict(pair.split("=", 1) for pair in args.set)
    flotilla = exe(args.pgflotilla or next((str(p) for p in [run.ROOT / "build/release/pgflotilla"] if p.exists()), None),
                   "pgflotilla")
    if flotilla:
        found += [Flotilla(flotilla, n, more) for n in sorted({1, args.size, *args.workers})]
    if bouncer and haproxy:
        found.append(HaproxyBefore(haproxy, bouncer, args.size))
    odyssey = exe(args.odyssey, "odyssey")
    if odyssey:
        found.append(Odyssey(odyssey, args.size))
    found.append(Direct())
    return found, missing


# ----------------------------------------------------------------------------------------------------------- measuring

def quantile(values, q):
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


class Watch(threading.Thread):
    """While the load runs: clients by worker, backends, the longest wait that a console admits, each second once."""

    def __init__(self, running, backend, seconds):
        super().__init__(daemon=True)
        self.running, self.backend, self.seconds = running, backend, seconds
        self.clients, self.backends, self.wait = [], 0, 0.0

    def run(self):
        end = time.monotonic() + self.seconds
        time.sleep(self.seconds / 2)
        self.clients = self.running.clients()
        while time.monotonic() < end - 0.2:
            self.wait = max(self.wait, self.running.longest_wait())
            if isinstance(self.backend, Postgres):
                self.backends = max(self.backends, self.backend.backends())
            time.sleep(1)


def pgbench(running, clients, args, cpus, folder):
    """tps and latencies in us; every transaction is logged, or a sample of them on a fast machine."""
    logs = fresh(folder, "pgbench")
    command = ["pgbench", "-n", "-S", "-M", args.protocol, "-c", clients, "-j", min(clients, len(cpus)), "-T", args.seconds,
               "-l", "--log-prefix", logs / "log", "--sampling-rate", args.sample, "-h", "127.0.0.1", "-p", running.port,
               "-U", USER, USER]
    done = subprocess.run(pinned(cpus, command), capture_output=True, text=True, timeout=args.seconds + 120)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("tps = ")]
    if done.returncode or not words:
        raise RuntimeError(f"pgbench: {(done.stderr or done.stdout)[-500:]}")
    latency = sorted(int(line.split()[2]) for log in logs.iterdir() for line in log.read_text().splitlines())
    return float(words[0][2]), latency


def measure(subject, backend, clients, args, places, tools, scratch):
    folder = Path(tempfile.mkdtemp(dir=scratch))
    folder.chmod(0o755)
    running = subject.start(folder, backend, places["pooler"], args)
    try:
        watch = Watch(running, backend, args.seconds)
        cpu = running.cpu()
        started = time.monotonic()
        watch.start()
        if isinstance(backend, Postgres):
            tps, latency = pgbench(running, clients, args, places["load"], folder)
            count = tps * args.seconds
            figures = {"tps": tps, "p50": quantile(latency, 0.5), "p99": quantile(latency, 0.99),
                       "longest": latency[-1] if latency else 0}
        else:
            command = [tools / "load", "--port", running.port, "--clients", clients, "--seconds", args.seconds,
                       "--warmup", 0, "--threads", min(8, len(places["load"])), "--protocol", args.protocol]
            done = subprocess.run(pinned(places["load"], command), capture_output=True, text=True, timeout=args.seconds + 120)
            report = json.loads(done.stdout)
            if "error" in report or done.returncode:
                raise RuntimeError(f"load: {done.stdout[-500:]}")
            count = report["transactions"]
            figures = {"tps": report["tps"], "p50": report["p50_us"], "p99": report["p99_us"], "longest": report["max_us"]}
        took = time.monotonic() - started
        watch.join()
        spent = {worker: seconds - cpu.get(worker, 0) for worker, seconds in running.cpu().items()}
        figures |= {"cpu": sum(spent.values()) * 1e6 / max(1, count), "wait": watch.wait * 1e6,
                    "busy": sorted((round(s / took, 3) for s in spent.values()), reverse=True),
                    "clients": sorted(watch.clients, reverse=True), "backends": watch.backends}
        return figures
    finally:
        running.stop()
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


def check_budgets(subjects, postgres, args, places, scratch):
    """All poolers must open the same number of server connections when they are asked for more than they may."""
    sleep = scratch / "sleep.sql"
    sleep.write_text("select pg_sleep(0.1);\n")
    problems = []
    for subject in subjects:
        if isinstance(subject, Direct):
            continue
        folder = Path(tempfile.mkdtemp(dir=scratch))
        folder.chmod(0o755)
        running = subject.start(folder, postgres, places["pooler"], args)
        try:
            load = subprocess.Popen(["pgbench", "-n", "-f", sleep, "-c", str(args.servers * 8), "-T", "3", "-h", "127.0.0.1", "-p",
                                     str(running.port), "-U", USER, USER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            most = 0
            while load.poll() is None:
                most = max(most, postgres.backends())
                time.sleep(0.05)
            print(f"budget: {subject.name}: {most} server connections of {args.servers}")
            if most != args.servers:
                problems.append(f"{subject.name} used {most} server connections, not {args.servers}")
        finally:
            running.stop()
        deadline = time.monotonic() + 10
        while postgres.backends() and time.monotonic() < deadline:
            time.sleep(0.1)
    return problems


# ----------------------------------------------------------------------------------------------------------- reporting

COLUMNS = [("tps", "tps", 0), ("p50", "p50 us", 0), ("p99", "p99 us", 0), ("longest", "longest us", 0),
           ("wait", "maxwait us", 0), ("cpu", "CPU us/tx", 1)]


def median(samples, key):
    values = [s[key] for s in samples if s]
    return statistics.median(values) if values else None


def shares(samples, key):
    last = next((s[key] for s in reversed(samples) if s and s[key]), [])
    shown = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in last if v is not None and (key != "busy" or v >= 0.005)]
    return " ".join(shown[:16]) or "-"


def table(kind, clients, subjects, samples):
    print(f"\n## {kind}, {clients} clients\n")
    print("| | " + " | ".join(h for _, h, _ in COLUMNS) + " | cores busy, by worker | clients, by worker |")
    print("|" + " --- |" * (len(COLUMNS) + 3))
    for s in subjects:
        got = samples.get(s.name, [])
        cells = [median(got, key) for key, _, _ in COLUMNS]
        print(f"| {s.name} | " + " | ".join("-" if c is None else f"{c:.{d}f}" for c, (_, _, d) in zip(cells, COLUMNS))
              + f" | {shares(got, 'busy')} | {shares(got, 'clients')} |", flush=True)


def write(prefix, about, results):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.json").write_text(json.dumps({"about": about, "results": results}, indent=1))
    with open(f"{prefix}.csv", "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["backend", "clients", "subject", *[k for k, _, _ in COLUMNS], "n"])
        for entry in results:
            for name, samples in entry["samples"].items():
                if any(samples):
                    writer.writerow([entry["backend"], entry["clients"], name, *[median(samples, k) for k, _, _ in COLUMNS],
                                     sum(map(bool, samples))])


def plot(prefix, results, title):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib, no plot (Debian: python3-matplotlib, and PYTHON=/usr/bin/python3)", file=sys.stderr)
        return
    kinds = list(dict.fromkeys(e["backend"] for e in results))
    figure, axes = pyplot.subplots(len(kinds), 3, figsize=(15, 4.2 * len(kinds)), squeeze=False)
    for line, kind in zip(axes, kinds):
        entries = [e for e in results if e["backend"] == kind]
        for axis, (key, heading) in zip(line, [("tps", "transactions per second"), ("cpu", "pooler's CPU, us per transaction"),
                                               ("p99", "p99 latency, us")]):
            for name in entries[0]["samples"]:
                points = [(e["clients"], median(e["samples"][name], key)) for e in entries if any(e["samples"][name])]
                if points and not (key == "cpu" and name == Direct.name):
                    ours = name.startswith("pgflotilla")
                    axis.plot(*zip(*points), marker="o", label=name, linewidth=2.4 if ours else 1.3)
            axis.set(xscale="log", xlabel="clients", title=f"{kind}: {heading}")
            axis.set_xticks([e["clients"] for e in entries], [str(e["clients"]) for e in entries])
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        line[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(f"{prefix}.{kind}", dpi=110)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "?")
    return {"cores": len(os.sched_getaffinity(0)), "model": model, "kernel": os.uname().release}


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pgbouncer", metavar="EXE", help="default: $PGBOUNCER, else the one on PATH")
    p.add_argument("--pgflotilla", metavar="EXE", help="default: build/release/pgflotilla")
    p.add_argument("--odyssey", metavar="EXE", help="default: the one on PATH")
    p.add_argument("--size", type=int, default=len(os.sched_getaffinity(0)), help="N: of the fleet and of pgflotilla")
    p.add_argument("--workers", type=numbers, default=[], help="more worker counts of pgflotilla")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one more setting for pgflotilla")
    p.add_argument("--clients", type=numbers, default=[8, 32, 64, 128, 256])
    p.add_argument("--backends", type=run.words, default=["PostgreSQL", "null"])
    p.add_argument("--protocol", default="simple", help="of pgbench and load: simple, extended, prepared")
    p.add_argument("--servers", type=int, default=64, help="the budget of server connections, the same for all")
    p.add_argument("--scale", type=int, default=10, help="of pgbench -i")
    p.add_argument("--seconds", type=int, default=5)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--sample", type=float, default=1.0, help="share of the transactions that pgbench logs for p50 and p99")
    p.add_argument("--pooler-cpus", type=cpu_list)
    p.add_argument("--load-cpus", type=cpu_list)
    p.add_argument("--backend-cpus", type=cpu_list)
    p.add_argument("--tools", help="folder of load and null_backend")
    p.add_argument("--out", help="prefix of the result files; default build/bench-results/fleet-TIME")
    p.add_argument("--keep", action="store_true")
    return p.parse_args(argv)


def places_of(args):
    """Disjoint cores from four upwards: half for the poolers. Below that everybody shares everything."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2 if len(cpus) >= 4 else 0
    pooler = args.pooler_cpus or (cpus[:half] if half else cpus)
    rest = [c for c in cpus if c not in pooler] or cpus
    return {"pooler": pooler, "load": args.load_cpus or rest, "backend": args.backend_cpus or rest}


def main(argv):
    args = parse(argv)
    places, tools = places_of(args), find_tools(args.tools)
    subjects, missing = subjects_of(args)
    about = {**machine(), "places": places, "servers": args.servers, "size": args.size, "seconds": args.seconds,
             "repeat": args.repeat, "protocol": args.protocol, "missing": missing}
    print(f"{about['cores']} cores, {about['model']}, Linux {about['kernel']}; cores: {places}; {args.servers} servers, "
          f"N = {args.size}, {args.repeat} x {args.seconds} s, {args.protocol}; not found here: {', '.join(missing) or 'nothing'}")
    scratch = Path(tempfile.mkdtemp(prefix="pgf-fleet.", dir="/tmp"))
    scratch.chmod(0o755)
    prefix = Path(args.out) if args.out else run.ROOT / "build/bench-results" / time.strftime("fleet-%Y%m%d-%H%M%S")
    results, problems, backends = [], [], []
    try:
        for kind in args.backends:
            if kind == "null":
                null = argparse.Namespace(backend_unix=False, backend_threads=min(8, len(places["backend"])),
                                          tool_engine="auto", delay_us=0)
                backend = run.Backend(tools, places["backend"], null, str(scratch))
            else:
                backend = Postgres(scratch, places["backend"], args.scale)
                problems += check_budgets(subjects, backend, args, places, scratch)
            backends.append(backend)
            for clients in args.clients:
                samples = {s.name: [] for s in subjects}
                for repeat in range(args.repeat):
                    for subject in subjects if repeat % 2 == 0 else reversed(subjects):
                        try:
                            got = measure(subject, backend, clients, args, places, tools, scratch)
                            if got["backends"] > args.servers and not isinstance(subject, Direct):
                                problems.append(f"{subject.name}: {got['backends']} server connections of {args.servers}")
                            samples[subject.name].append(got)
                        except (RuntimeError, subprocess.SubprocessError, json.JSONDecodeError) as failure:
                            samples[subject.name].append(None)
                            problems.append(f"{subject.name}, {clients} clients: {failure}")
                table(kind, clients, subjects, samples)
                results.append({"backend": kind, "clients": clients, "samples": samples})
            stop(backend.process)
    finally:
        for backend in backends:
            stop(backend.process)
        shutil.rmtree(scratch, ignore_errors=True)
        if results:
            write(prefix, about, results)
            plot(prefix, results, f"{about['cores']} cores, {args.servers} server connections, N = {args.size}")
            print(f"\nwritten: {prefix}.json, .csv, .png, .svg")
    for problem in dict.fromkeys(problems):
        print(f"!! {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
