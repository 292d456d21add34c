"""Who may include whom: the pgf_library lines of CMakeLists.txt are the law, src/ must obey it."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
# These decide on bytes and times that are handed to them: no system calls, no clock, no thread.
SANS_IO = ["base", "crypto", "wire", "auth", "config", "pool"]
IO_HEADERS = re.compile(r"sys/.*|unistd\.h|fcntl\.h|poll\.h|netdb\.h|netinet/.*|arpa/.*|signal\.h|csignal|pthread\.h|"
                        r"thread|future|dirent\.h|time\.h|liburing\.h|ares\.h|openssl/ssl\.h")
# The log writes to its file, and is asked by everybody.
IO_ALLOWED = {"base/log.cc"}
# One file each knows the library.
ONLY_IN = {r"liburing\.h": r"net/", r"openssl/ssl\.h": r"net/tls", r"openssl/.*": r"(crypto|net/tls)",
           r"ares\.h": r"net/", r"security/.*": r"external/pam", r"ldap\.h": r"external/ldap",
           r"systemd/.*": r"main/systemd"}


def direct_deps():
    deps = {}
    for kind, name, rest in re.findall(r"^pgf_(library|program)\((\w+)([^)]*)\)",
                                       (ROOT / "CMakeLists.txt").read_text(), re.M):
        words = rest.split()
        folder = words[words.index("DIR") + 1] if "DIR" in words else name
        listed = []
        if "DEPS" in words:
            for word in words[words.index("DEPS") + 1:]:
                if word.isupper():
                    break
                listed.append(word)
        deps[folder] = listed
    return deps


def closure(deps):
    def reach(folder, seen):
        for dep in deps[folder]:
            if dep not in seen:
                seen.add(dep)
                reach(dep, seen)
        return seen
    return {folder: reach(folder, set()) for folder in deps}


DEPS = closure(direct_deps())


def sources():
    return sorted(p for p in SRC.rglob("*") if p.suffix in (".h", ".cc"))


def includes(path):
    """(line number, '"' or '<', name) of each include."""
    for n, line in enumerate(path.read_text().splitlines(), 1):
        m = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if m:
            yield n, m.group(1), m.group(2)


def test_cmake_lines_were_read():
    assert {"base", "wire", "session", "worker", "main"} <= set(DEPS)
    assert DEPS["base"] == set()


def test_no_cycle():
    assert [f for f in DEPS if f in DEPS[f]] == []


def test_every_folder_is_a_library():
    assert {p.relative_to(SRC).parts[0] for p in sources()} <= set(DEPS)


@pytest.mark.parametrize("folder", DEPS)
def test_direction(folder):
    wrong = []
    for path in sources():
        if path.relative_to(SRC).parts[0] != folder:
            continue
        for n, kind, name in includes(path):
            if kind == '"':
                target = name.split("/")[0]
                if "/" not in name:
                    wrong.append(f"{path}:{n}: write \"folder/{name}\"")
                elif not (SRC / name).exists():
                    wrong.append(f"{path}:{n}: no file src/{name}")
                elif target != folder and target not in DEPS[folder]:
                    wrong.append(f"{path}:{n}: {folder} may not include {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", SANS_IO)
def test_sans_io(folder):
    wrong = []
    for path in sources():
        where = path.relative_to(SRC).as_posix()
        if not where.startswith(folder + "/") or where in IO_ALLOWED or re.search(r"_(test|fuzz|bench)\.cc$", where):
            continue
        wrong += [f"{path}:{n}: <{name}>" for n, kind, name in includes(path)
                  if kind == "<" and IO_HEADERS.fullmatch(name)]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_their_files():
    wrong = []
    for path in sources():
        where = path.relative_to(SRC).as_posix()
        if re.search(r"_(test|fuzz|bench)\.cc$", where):
            continue
        for n, _, name in includes(path):
            for pattern, home in ONLY_IN.items():
                if re.fullmatch(pattern, name) and not re.match(home, where):
                    wrong.append(f"{path}:{n}: <{name}> belongs into {home}")
    assert not wrong, "\n".join(wrong)
