#!/usr/bin/env python3
"""Poolers side by side: same clients, same null backend, same cores, in turn, several times over.

    scripts/bench --against pgbouncer=/path/to/pgbouncer --pgflotilla build/release/pgflotilla --clients 1,64 --repeat 3

Every pooler is started afresh for every measurement with the same configuration (transaction pooling, everything on
127.0.0.1), pinned to its own cores, away from load generator and backend. Poolers alternate within a repeat, and every
other repeat runs backwards, so a machine that slows down slows all of them. See bench/README.md.
"""
import argparse
import base64
import csv
import hashlib
import hmac
import itertools
import json
import os
import pwd
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSWORD = "correct horse battery staple"


# ------------------------------------------------------------------------------------------------------- the processes

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pinned(cpus, command):
    return ["taskset", "-c", ",".join(map(str, cpus)), *map(str, command)]


def wait_for_port(port, process, log):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    text = Path(log).read_text(errors="replace")[-2000:] if log else ""
    raise RuntimeError(f"{process.args}: not listening on {port}\n{text}")


def stop(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_tools(given):
    for folder in filter(None, [given, os.environ.get("BENCH_TOOLS"), ROOT / "build/release/bench",
                                ROOT / "build/release", ROOT / "build/bench"]):
        folder = Path(folder)
        if (folder / "load").exists() and (folder / "null_backend").exists():
            return folder
    folder = ROOT / "build/bench"
    print(f"building the tools in {folder}", file=sys.stderr)
    subprocess.run(["cmake", "-S", ROOT / "bench", "-B", folder], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "-j2"], check=True, stdout=subprocess.DEVNULL)
    return folder


class Backend:
    def __init__(self, tools, cpus, args, folder):
        self.port = free_port()
        self.host = folder if args.backend_unix else "127.0.0.1"
        command = [tools / "null_backend", "--port", self.port, "--threads", args.backend_threads,
                   "--engine", args.tool_engine, "--delay-us", args.delay_us]
        if args.backend_unix:
            command += ["--unix", f"{folder}/.s.PGSQL.{self.port}"]
        self.process = subprocess.Popen(pinned(cpus, command), stdout=subprocess.DEVNULL)
        wait_for_port(self.port, self.process, None)


# ---------------------------------------------------------------------------------------------------------- the poolers

def md5_secret(user):
    return "md5" + hashlib.md5((PASSWORD + user).encode()).hexdigest()


def scram_secret():
    salt, rounds = b"pgflotilla bench", 4096
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, rounds)
    client = hmac.digest(salted, b"Client Key", "sha256")
    stored = base64.b64encode(hashlib.sha256(client).digest()).decode()
    server = base64.b64encode(hmac.digest(salted, b"Server Key", "sha256")).decode()
    return f"SCRAM-SHA-256${rounds}:{base64.b64encode(salt).decode()}${stored}:{server}"


class Pooler:
    """One thing to measure: an executable and what its configuration has beyond the common one."""

    def __init__(self, name, exe, extra=None):
        self.name, self.exe, self.extra = name, Path(exe).resolve(), extra or {}

    def start(self, folder, backend, cpus, user, servers, auth):
        port = free_port()
        secret = {"trust": "", "plain": PASSWORD, "md5": md5_secret("bench"), "scram": scram_secret()}[auth]
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": {"trust": "trust", "plain": "plain", "md5": "md5", "scram": "scram-sha-256"}[auth],
            "auth_file": folder / "userlist.txt",
            "pool_mode": "transaction",
            "default_pool_size": servers,
            "max_client_conn": 15000,
            "listen_backlog": 4096,
            "max_prepared_statements": 200,
            "log_connections": 0,
            "log_disconnections": 0,
            "log_stats": 0,
            **self.extra,
        }
        (folder / "userlist.txt").write_text(f'"bench" "{secret}"\n')
        (folder / "bench.ini").write_text(
            f"[databases]\nbench = host={backend.host} port={backend.port} dbname=bench\n\n[pgbouncer]\n"
            + "".join(f"{key} = {value}\n" for key, value in settings.items()))
        log = folder / "log"
        identity = {}
        if user:
            entry = pwd.getpwnam(user)
            identity = dict(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            folder.chmod(0o755)
        with open(log, "w") as out:
            process = subprocess.Popen(pinned(cpus, [self.exe, folder / "bench.ini"]), stdout=out, stderr=out,
                                       stdin=subprocess.DEVNULL, cwd=folder, **identity)
        try:
            wait_for_port(port, process, log)
        except RuntimeError:
            stop(process)
            raise
        return process, port


class Direct:
    """No pooler: the ceiling that load generator and backend set."""
    name = "direct"


# ------------------------------------------------------------------------------------------------------------ measuring

METRICS = {  # per mode: column, heading, decimals, is more better?
    "query": [("tps", "tps", 0, True), ("cpu", "CPU us/tx", 2, False), ("p50", "p50 us", 0, False),
              ("p99", "p99 us", 0, False), ("others", "load+backend us/tx", 2, None),
              ("busy", "busy %", 0, None), ("waited", "waited %", 0, None)],
    "login": [("tps", "logins/s", 0, True), ("cpu", "CPU us/login", 1, False), ("p50", "p50 us", 0, False),
              ("p99", "p99 us", 0, False), ("others", "load us/login", 1, None),
              ("busy", "busy %", 0, None), ("waited", "waited %", 0, None)],
    "idle": [("rss", "RSS B/client", 0, False), ("idle_cpu", "idle CPU ms/s", 2, False),
             ("ramp_cpu", "login+1 query CPU us", 1, False), ("rss_total", "RSS kB", 0, False)],
}


def figures(cell, report, pooler_pid):
    """The report of `load`, as the columns above."""
    usage = {u["pid"]: u for u in report["watch"]}
    pooler = usage.get(pooler_pid)
    if cell["mode"] == "idle":
        if not pooler:
            return {}
        return {
            "rss": (pooler["rss_after_kb"] - pooler["rss_start_kb"]) * 1024 / cell["clients"],
            "rss_total": pooler["rss_after_kb"],
            "idle_cpu": pooler["cpu_us"] / 1000 / report["seconds"],
            "ramp_cpu": pooler["ramp_cpu_us"] / cell["clients"],
        }
    count = max(1, report["transactions"])
    others = report["own_cpu_us"] + sum(u["cpu_us"] for pid, u in usage.items() if pid != pooler_pid)
    return {
        "tps": report["tps"], "p50": report["p50_us"], "p99": report["p99_us"], "others": others / count,
        **({"cpu": pooler["cpu_us"] / count, "busy": pooler["cpu_us"] / 1e4 / report["seconds"],
            "waited": pooler["wait_us"] / 1e4 / report["seconds"]} if pooler else {}),
    }


def measure(pooler, cell, args, tools, backend, places, scratch):
    process = None
    watch = [backend.process.pid]
    port = backend.port
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        if not isinstance(pooler, Direct):
            process, port = pooler.start(folder, backend, places["pooler"], args.user, args.servers, cell["auth"])
            watch.append(process.pid)
        command = [tools / "load", "--port", port, "--mode", cell["mode"], "--protocol", cell["protocol"],
                   "--clients", cell["clients"], "--seconds", args.seconds, "--warmup", args.warmup,
                   "--size", cell["size"], "--rows", args.rows, "--statements", args.statements,
                   "--threads", args.load_threads, "--password", PASSWORD, "--engine", args.tool_engine,
                   "--watch", ",".join(map(str, watch))]
        command += ["--transaction"] * args.transaction + ["--no-ask"] * args.no_ask
        done = subprocess.run(pinned(places["load"], command), capture_output=True, text=True,
                              timeout=args.seconds + args.warmup + 90)
        try:
            report = json.loads(done.stdout)
        except json.JSONDecodeError:
            return None, f"load: exit {done.returncode}: {done.stdout} {done.stderr}".strip()
        if "error" in report:
            return None, report["error"]
        if process and process.poll() is not None:
            return None, f"the pooler ended ({process.returncode}): {(folder / 'log').read_text()[-500:]}"
        problem = None
        if done.returncode:
            problem = f"{report['errors']} errors, {report['wrong']} wrong answers: {report['first_problem']}"
        return figures(cell, report, process.pid if process else 0), problem
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        return None, str(failure)
    finally:
        if process:
            stop(process)
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


def cells_of(args):
    """Every combination that was asked for; logins have no protocol, and so on."""
    seen = []
    for mode, protocol, auth, size, clients in itertools.product(args.mode, args.protocol, args.auth, args.size,
                                                                 args.clients):
        cell = {"mode": mode, "clients": clients, "auth": auth,
                "protocol": protocol if mode == "query" else "simple", "size": size if mode == "query" else 0}
        if cell not in seen:
            seen.append(cell)
    return seen


def title_of(cell):
    parts = [cell["mode"], f"{cell['clients']} clients"]
    if cell["mode"] == "query":
        parts.append(cell["protocol"])
    if cell["auth"] != "trust":
        parts.append(cell["auth"])
    if cell["size"]:
        parts.append(f"{cell['size']} B rows")
    return ", ".join(parts)


# ------------------------------------------------------------------------------------------------------------ reporting

def summary(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "n": len(values)}


def print_table(cell, names, samples, problems):
    """min/median/max of every metric; the ratio is to the first pooler, from 1 upwards where we are better."""
    print(f"\n## {title_of(cell)}")
    rows = [["pooler"] + [heading for _, heading, _, _ in METRICS[cell["mode"]]]]
    for name in names:
        row = [name]
        for key, _, decimals, better in METRICS[cell["mode"]]:
            values = [s[key] for s in samples.get(name, []) if s and key in s]
            if not values:
                row.append("-")
                continue
            s = summary(values)
            text = f"{s['median']:.{decimals}f}"
            if s["n"] > 1:
                text = f"{s['min']:.{decimals}f} / {text} / {s['max']:.{decimals}f}"
            base = [x[key] for x in samples.get(names[0], []) if x and key in x]
            if name != names[0] and base and better is not None and statistics.median(base) and s["median"]:
                ratio = s["median"] / statistics.median(base)
                text += f" (x{ratio if better else 1 / ratio:.2f})"
            row.append(text)
        rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for i, row in enumerate(rows):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
        if i == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for name in names:
        for problem in dict.fromkeys(problems.get(name, [])):
            print(f"!! {name}: {problem}")
    sys.stdout.flush()


def write_results(prefix, args, results):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "kernel": os.uname().release}
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine["model"] = match.group(1) if match else "?"
    plain = {key: value if isinstance(value, (int, float, str, bool, list, type(None))) else str(value)
             for key, value in vars(args).items()}
    everything = {"machine": machine, "arguments": plain, "results": results}
    Path(f"{prefix}.json").write_text(json.dumps(everything, indent=1))
    with open(f"{prefix}.csv", "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["mode", "protocol", "auth", "size", "clients", "pooler", "metric",
                         "min", "median", "max", "n"])
        for entry in results:
            for name, samples in entry["samples"].items():
                for key, *_ in METRICS[entry["mode"]]:
                    values = [s[key] for s in samples if s and key in s]
                    if values:
                        s = summary(values)
                        writer.writerow([entry["mode"], entry["protocol"], entry["auth"], entry["size"],
                                         entry["clients"], name, key, s["min"], s["median"], s["max"], s["n"]])


def plot(path, results):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib, no plot", file=sys.stderr)
        return
    groups = {}
    for entry in results:
        if entry["mode"] != "idle":
            groups.setdefault((entry["mode"], entry["protocol"], entry["auth"], entry["size"]), []).append(entry)
    if not groups:
        return
    figure, axes = pyplot.subplots(len(groups), 3, figsize=(15, 4 * len(groups)), squeeze=False)
    for line, ((mode, protocol, auth, size), entries) in zip(axes, groups.items()):
        for axis, (key, heading) in zip(line, [("tps", "per second"), ("cpu", "CPU us each"), ("p99", "p99 us")]):
            for name in entries[0]["samples"]:
                points = [(e["clients"], statistics.median(s[key] for s in e["samples"][name] if s))
                          for e in entries if any(s and key in s for s in e["samples"].get(name, []))]
                if points:
                    axis.plot(*zip(*points), marker="o", label=name)
            axis.set(xscale="log", xlabel="clients", title=f"{mode} {protocol} {auth} {size or ''}: {heading}")
            axis.set_ylim(bottom=0)
            axis.legend()
            axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


# ----------------------------------------------------------------------------------------------------------------- main

def words(text):
    return [w for w in text.split(",") if w]


def numbers(text):
    return [int(w) for w in words(text)]


def cpu_list(text):
    cpus = []
    for part in words(text):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def places_of(args):
    """Who runs where. The pooler never shares a core if there are two."""
    cpus = sorted(os.sched_getaffinity(0))
    wanted = max(args.workers)
    pooler = args.pooler_cpus or cpus[:max(1, min(wanted, len(cpus) - 1))]
    rest = [c for c in cpus if c not in pooler] or cpus
    backend = args.backend_cpus or rest[:max(1, len(rest) // 2)]
    load = args.load_cpus or (rest if len(rest) == 1 else [c for c in rest if c not in backend])
    return {"pooler": pooler, "backend": backend, "load": load}


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--against", action="append", default=[], metavar="NAME=EXE", help="a pooler to compare with")
    p.add_argument("--pgflotilla", metavar="EXE")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one more setting for pgflotilla")
    p.add_argument("--workers", type=numbers, default=[1], help="of pgflotilla, comma-separated")
    p.add_argument("--engines", type=words, default=["io_uring", "epoll"], help="of pgflotilla")
    p.add_argument("--direct", action="store_true", help="also without any pooler")
    p.add_argument("--clients", type=numbers, default=[1, 8, 64, 256, 1024])
    p.add_argument("--mode", type=words, default=["query"], help="query, login, idle")
    p.add_argument("--protocol", type=words, default=["simple"], help="simple, extended, prepared")
    p.add_argument("--auth", type=words, default=["trust"], help="trust, plain, md5, scram")
    p.add_argument("--size", type=numbers, default=[0], help="bytes per row; 0: only the token")
    p.add_argument("--rows", type=int, default=1, help="rows per answer")
    p.add_argument("--statements", type=int, default=1, help="prepared statements per client")
    p.add_argument("--transaction", action="store_true", help="wrap every question in BEGIN and COMMIT")
    p.add_argument("--no-ask", action="store_true", help="idle clients ask nothing before they are idle")
    p.add_argument("--servers", type=int, default=20, help="server connections (default_pool_size)")
    p.add_argument("--delay-us", type=int, default=0, help="of the backend's answers")
    p.add_argument("--backend-unix", action="store_true", help="poolers reach the backend by a Unix socket")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--warmup", type=float, default=0.3)
    p.add_argument("--pooler-cpus", type=cpu_list)
    p.add_argument("--load-cpus", type=cpu_list)
    p.add_argument("--backend-cpus", type=cpu_list)
    p.add_argument("--load-threads", type=int)
    p.add_argument("--backend-threads", type=int)
    p.add_argument("--tool-engine", default="auto", help="of load and null_backend: auto, io_uring, epoll")
    p.add_argument("--user", default="postgres" if os.getuid() == 0 else "", help="whom poolers run as, when root")
    p.add_argument("--tools", help="folder of load and null_backend")
    p.add_argument("--out", help="prefix of the result files; default build/bench-results/TIME")
    p.add_argument("--plot", metavar="PNG")
    p.add_argument("--nice", type=int, default=0, help="for all that is measured, e.g. -10 beside a busy build (root)")
    p.add_argument("--keep", action="store_true", help="keep the poolers' folders (configuration, log)")
    p.add_argument("--smoke", action="store_true", help="a second of everything, with whatever poolers are found")
    return p.parse_args(argv)


def poolers_of(args):
    poolers = []
    for spec in args.against:
        name, _, exe = spec.rpartition("=")
        poolers.append(Pooler(name or Path(exe).name, exe))
    if args.pgflotilla:
        extra = dict(pair.split("=", 1) for pair in args.set)
        for workers, engine in itertools.product(args.workers, args.engines):
            name = f"pgflotilla {engine}" + (f" x{workers}" if len(args.workers) > 1 or workers > 1 else "")
            poolers.append(Pooler(name, args.pgflotilla, {"workers": workers, "io_engine": engine, **extra}))
    for pooler in poolers:
        if not os.access(pooler.exe, os.X_OK):
            sys.exit(f"{pooler.name}: no executable {pooler.exe}")
    if args.direct or not poolers:
        poolers.append(Direct())
    return poolers


def smoke_defaults(args):
    args.seconds, args.repeat, args.direct = 1, 1, True
    if not args.against:
        found = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer")
        args.against = [f"pgbouncer={found}"] if found else []
    if not args.pgflotilla:
        found = [ROOT / "build" / preset / "pgflotilla" for preset in ("release", "dev")]
        args.pgflotilla = next((str(exe) for exe in found if exe.exists()), None)


def main(argv):
    args = parse(argv)
    if args.smoke:
        smoke_defaults(args)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tools = find_tools(args.tools)
    places = places_of(args)
    args.load_threads = args.load_threads or min(8, len(places["load"]))
    args.backend_threads = args.backend_threads or min(8, len(places["backend"]))
    poolers = poolers_of(args)
    names = [p.name for p in poolers]
    cells = cells_of(args)
    if args.smoke:
        common = {"auth": "trust", "size": 0}
        cells = [{"mode": "query", "protocol": p, "clients": 64, **common} for p in ("simple", "extended", "prepared")]
        cells += [{"mode": "query", "protocol": "simple", "clients": 8, "auth": "trust", "size": 32768},
                  {"mode": "login", "protocol": "simple", "clients": 8, "auth": "scram", "size": 0},
                  {"mode": "idle", "protocol": "simple", "clients": 500, **common}]
    if args.nice:
        os.nice(args.nice)
    print(f"cores: pooler {places['pooler']}, load {places['load']} ({args.load_threads} threads), "
          f"backend {places['backend']} ({args.backend_threads}); {args.servers} servers, "
          f"{args.repeat} x {args.seconds:g} s; cells are min / median / max (xN: times better than {names[0]})")

    results, bad = [], False
    scratch = tempfile.mkdtemp(prefix="pgf-bench.", dir="/tmp")
    os.chmod(scratch, 0o755)
    backend = Backend(tools, places["backend"], args, scratch)
    try:
        for cell in cells:
            samples, problems = {name: [] for name in names}, {}
            for repeat in range(args.repeat):
                for pooler in poolers if repeat % 2 == 0 else reversed(poolers):
                    if isinstance(pooler, Direct) and (cell["auth"] != "trust" or cell["mode"] == "idle"):
                        continue
                    figure, problem = measure(pooler, cell, args, tools, backend, places, scratch)
                    samples[pooler.name].append(figure)
                    if problem:
                        problems.setdefault(pooler.name, []).append(problem)
                        bad = True
            print_table(cell, names, samples, problems)
            results.append({**cell, "samples": samples, "problems": problems})
    finally:
        stop(backend.process)
        if args.keep:
            print(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
        if results:
            prefix = Path(args.out) if args.out else ROOT / "build/bench-results" / time.strftime("%Y%m%d-%H%M%S")
            write_results(prefix, args, results)
            print(f"\nwritten: {prefix}.json, {prefix}.csv")
    if args.plot:
        plot(args.plot, results)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
