#!/usr/bin/python3
"""scripts/test [--preset release|dev|tsan] [pytest arguments]

Build, then the unit tests, the layers test, the end-to-end tests and the conversations, on every engine
that this kernel allows. The last line is `N passed, N failed`; the exit status is 0 only if nothing failed.
"""
import argparse
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = "pgflotilla-test"
PYTHON = "/usr/bin/python3"  # Debian's, which has the drivers
passed = failed = skipped = 0
notes = []


def say(text):
    print(f"== {text}", flush=True)


def finish():
    for note in notes:
        print(note)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    sys.exit(0 if passed and not failed else 1)


def must(what, *argv):
    global failed
    say(what)
    if subprocess.run(argv, cwd=ROOT).returncode:
        failed += 1
        notes.append(f"FAILED {what}")
        finish()


def count(report, what, status):
    """Add up a junit file (pytest's and GoogleTest's are alike); a crash without one is a failure too."""
    global passed, failed, skipped
    bad = 0
    try:
        for case in xml.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                bad += 1
                notes.append(f"FAILED {what}: {case.get('classname')}.{case.get('name')}")
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                skipped += 1
            else:
                passed += 1
    except (OSError, xml.ParseError):
        status = status or 1
    if status and not bad:
        bad = 1
        notes.append(f"FAILED {what}: exit status {status}")
    failed += bad


def sanitizer_env(root=ROOT):
    common = "halt_on_error=1:exitcode=66"
    return {"ASAN_OPTIONS": f"detect_leaks=1:{common}", "TSAN_OPTIONS": f"suppressions={root}/tests/tsan.supp:{common}",
            "LSAN_OPTIONS": f"suppressions={root}/tests/lsan.supp:print_suppressions=0",
            "UBSAN_OPTIONS": f"print_stacktrace=1:{common}"}


def unit_tests(build, reports):
    cache = (build / "CTestTestfile.cmake").read_text()
    for name in re.findall(r'add_test\(\[?=*\[?"?(\w+_test)', cache):
        exe = build / name
        say(f"unit tests: {name}")
        report = reports / f"{name}.xml"
        try:
            done = subprocess.run([exe, f"--gtest_output=xml:{report}", "--gtest_brief=1"], cwd=ROOT, timeout=600,
                                  env={**os.environ, **sanitizer_env()})
            status = done.returncode
        except (OSError, subprocess.TimeoutExpired) as e:
            print(e)
            status = 1
        count(report, name, status)


def pytest(what, where, reports, *args, root=ROOT, exe=None, user=None):
    say(what)
    env = {**os.environ, **sanitizer_env(root), "PYTHONDONTWRITEBYTECODE": "1"}
    if exe:
        env["POOLER_EXE"] = str(exe)
    as_user = {}
    if user:
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        env |= {"HOME": str(root), "USER": user.pw_name, "LOGNAME": user.pw_name}
    report = reports / (what.split()[0] + ".xml")
    status = subprocess.run([PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *args,
                             where], cwd=root, env=env, **as_user).returncode
    count(report, what, 0 if status == 5 and args else status)  # 5: a selection that left nothing


def test_user():
    """Root cannot run PostgreSQL or the pooler: an own unprivileged user, or nobody."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(USER)
    subprocess.run(["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell",
                    "/usr/sbin/nologin", USER])
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(USER)
    return pwd.getpwnam("nobody")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--preset", default="release", choices=["release", "dev", "tsan"])
    options, extra = parser.parse_known_args()
    os.environ.pop("POOLER_EXE", None)
    must(f"build {options.preset}", ROOT / "scripts/build", options.preset)
    build = ROOT / "build" / options.preset
    exe = build / "pgflotilla"

    with tempfile.TemporaryDirectory(prefix="pgf-test-", dir="/tmp") as work:
        work = Path(work)
        reports = work / "reports"
        reports.mkdir()
        user, root = None, ROOT
        if os.geteuid() == 0:
            # The checkout may lie where the test user cannot read.
            user = test_user()
            root = work / "tree"
            for folder in ("tests", "etc", "contrib"):
                shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
            if exe.exists():
                exe = Path(shutil.copy2(exe, root / "pgflotilla"))
            for path in (work, reports, root):
                os.chown(path, user.pw_uid, user.pw_gid)
            work.chmod(0o755)
        unit_tests(build, reports)
        pytest("layers test", "tests/layers_test.py", reports)
        pytest("reliability table", "tests/reliability_table.py", reports)
        if not exe.exists():
            count(work / "none", "pgflotilla was not built", 1)
            finish()
        workers = min(6, 3 * len(os.sched_getaffinity(0)))  # they wait most of the time
        pytest("e2e tests", "tests/e2e", reports, "-n", str(workers),
               *extra, root=root, exe=exe, user=user)
        pytest("conversations", "tests/conv", reports, "-n", str(workers), *extra, root=root, exe=exe, user=user)
    finish()


main()
