#!/usr/bin/python3
"""The table of docs/reliability.md: number, severity, status, tests, remark.

    tests/reliability_table.py            writes it
    pytest tests/reliability_table.py     is it up to date, and is every number tested or argued about?

Found by their names: tests `test_rNUMBER_…` (`test_rSECTION_NUMBER_…` in test_protocol.py) and conversations `== NUMBER: …`. What
cannot be found, tests with other names and remarks, stands in reliability.txt.
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
NUMBERS = range(1, 168)  # of the catalogue
BEGIN, END = "<!-- tests/reliability_table.py writes this -->\n", "<!-- to here -->\n"


def found():
    """number -> {place: [names]}"""
    places = defaultdict(lambda: defaultdict(list))
    for path in sorted((TESTS / "e2e").glob("test_*.py")):
        for name in re.findall(r"^def (test_r\d+_\w+)", path.read_text(), re.M):
            numbers = re.match(r"test_r(\d+)_(?:(\d+)_)?", name)
            places[int(numbers[2] or numbers[1])][path.stem.removeprefix("test_")].append(name)
    for path in sorted((TESTS / "conv").glob("*.conv")):
        for numbers in re.findall(r"^== ([\d, ]+): ", path.read_text(), re.M):
            for number in numbers.split(","):
                places[int(number)][f"conv/{path.name}"].append("")
    return places


def listed():
    """number -> (severity, other tests, remark)"""
    rows = {}
    for line in (TESTS / "reliability.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            head, others, remark = (part.strip() for part in line.split(" | "))
            number, severity = head.split()
            assert int(number) not in rows and severity in "HML", line
            rows[int(number)] = (severity, others.strip("- "), remark.strip("- "))
    return rows


def cell(places):
    """The tests of a number, in short."""
    out = []
    for place, names in places.items():
        if place.startswith("conv/"):
            out.append(place + (f" ({len(names)})" if len(names) > 1 else ""))
        elif len(names) > 1:
            out.append(f"{place}::{re.match(r'test_r[0-9]+_', names[0])[0]}* ({len(names)})")
        else:
            out.append(f"{place}::{names[0]}")
    return out


def table():
    lines = ["| number | severity | status | tests (file::name) | remark |", "| --- | --- | --- | --- | --- |"]
    tests, rows = found(), listed()
    for number in sorted(rows):
        severity, others, remark = rows[number]
        known = cell(tests.get(number, {})) + ([others] if others else [])
        lines.append(f"| {number} | {severity} | {'tested' if known else 'argued'} | {'; '.join(known)} | {remark} |")
    return "\n".join(lines) + "\n"


def document():
    text = (ROOT / "docs/reliability.md").read_text()
    head, rest = text.split(BEGIN)
    return text, head + BEGIN + table() + END + rest.split(END)[1]


def test_every_number_is_tested_or_argued_about():
    rows, tests = listed(), found()
    assert set(rows) == set(NUMBERS)
    assert set(tests) <= set(NUMBERS), "a test has a number that is not in the catalogue"
    for number, (_, others, remark) in rows.items():
        assert tests.get(number) or others or remark, f"{number} has no test and no reason"


def test_other_tests_exist():
    """What reliability.txt names: file::test_name, with * at its end; a unit test by its file."""
    names = {p.stem.removeprefix("test_"): re.findall(r"^def (test_\w+)", p.read_text(), re.M)
             for p in (TESTS / "e2e").glob("test_*.py")}
    for number, (_, others, _) in listed().items():
        for other in filter(None, (o.strip() for o in others.split(";"))):
            if match := re.match(r"(\w+)::(.*)", other):
                for name in match[2].split(", "):
                    pattern = re.compile(name.replace("*", r"\w*") + "$")
                    assert any(pattern.match(n) for n in names.get(match[1], [])), f"{number}: no test {match[1]}::{name}"
            else:
                path = other.split(" ")[0].split(": ")[0].rstrip(":")
                assert any((ROOT / top / path).exists() for top in ("src", "tests", "tests/e2e", ".")), f"{number}: no {path}"


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="tests only")
def test_the_table_is_up_to_date():
    is_there, should_be = document()
    assert is_there == should_be, "run tests/reliability_table.py"


if __name__ == "__main__":
    (ROOT / "docs/reliability.md").write_text(document()[1])
    sys.exit(0)
