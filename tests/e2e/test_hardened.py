"""The program as it was built: what cmake/harden.cmake asks for is in it."""
import re
import subprocess

import pytest

from conftest import EXE, OURS, SANITIZED

pytestmark = [pytest.mark.ours, pytest.mark.skipif(not OURS or SANITIZED, reason="sanitizers have their own ways")]


def readelf(*options):
    return subprocess.run(["readelf", "-W", *options, EXE], check=True, capture_output=True, text=True).stdout


def segments():
    """Type -> flags of the program's segments."""
    return dict(re.findall(r"^\s+(\w+)\s+0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x\w+ ([RWE ]{3})", readelf("-l"), re.M))


def symbols():
    return set(re.findall(r"UND (\w+)", readelf("--dyn-syms")))


def test_position_independent():
    assert re.search(r"Type:\s+DYN", readelf("-h"))
    assert re.search(r"FLAGS_1.*\bPIE\b", readelf("-d"))


def test_relocations_are_read_only():
    assert segments()["GNU_RELRO"].strip() == "R"
    dynamic = readelf("-d")
    assert re.search(r"FLAGS\b.*BIND_NOW|FLAGS_1.*\bNOW\b", dynamic), dynamic


def test_nothing_is_writable_and_executable():
    assert segments()["GNU_STACK"].strip() == "RW"
    for flags in re.findall(r"^\s+LOAD\s+0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x\w+ ([RWE ]{3})", readelf("-l"), re.M):
        assert not ("W" in flags and "E" in flags)
    assert "TEXTREL" not in readelf("-d")


def test_stack_is_guarded():
    assert "__stack_chk_fail" in symbols()


def test_library_calls_are_checked():
    checked = {s for s in symbols() if s.endswith("_chk")} - {"__stack_chk_fail"}
    assert checked, symbols()


def test_containers_are_checked():
    """_GLIBCXX_ASSERTIONS: an index out of range ends the program instead of reading on."""
    assert any("glibcxx_assert_fail" in s for s in symbols())


def test_indirect_jumps_are_marked():
    """-fcf-protection. The linker says so of the whole only if the C library's own parts are marked, too."""
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "--disassemble=main", EXE], check=True,
                          capture_output=True, text=True).stdout
    if "x86-64" not in code:
        pytest.skip("x86 only")
    assert re.search(r"<main>:\n\s*[0-9a-f]+:\s+endbr64", code), code[:400]
