"""contrib/: the Grafana dashboard and the alert rules name what the program really exposes, and mean something."""
import http.client
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

import wire
from conftest import free_port, wait_until
from prometheus import Prometheus
from test_metrics import samples

pytestmark = [pytest.mark.ours, pytest.mark.one_engine]
CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
BOARD = json.loads((CONTRIB / "grafana/pgflotilla.json").read_text())
ALERTS = CONTRIB / "prometheus/alerts.yml"
SELECTOR = re.compile(r'\b(up|(?:pgbouncer|pgflotilla)_\w+)(?:\{([^}]*)\})?')
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance"}  # these it adds itself
PANELS = [p for p in BOARD["panels"] if p["type"] != "row"]
# What has no data in an hour without trouble, or without a limit.
MAY_BE_EMPTY = {"Clients of max_db_client_connections"}


def targets():
    return [(p["title"], t["expr"], t["legendFormat"]) for p in PANELS for t in p["targets"]]


def filled_in(expression, job="pgflotilla"):
    return expression.replace("$__rate_interval", "1m").replace("$job", job).replace("$instance", ".*") \
        .replace("$database", ".*")


def alert_expressions():
    """What promtool has parsed; YAML is not ours to read."""
    text = ALERTS.read_text()
    return re.findall(r"expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text)


@pytest.fixture(scope="module")
def rules():
    found = [" ".join((folded or plain).split()) for folded, plain in alert_expressions()]
    assert len(found) == ALERTS.read_text().count("- alert:") > 10
    return found


@pytest.fixture
def busy(make_pooler):
    """Every kind of thing that has metrics: limits, a peer, a host that is out, a cancel, clients that have waited."""
    port = free_port()
    p = make_pooler(metrics_listen=f"127.0.0.1:{port}", peer_id=1, default_pool_size=2, max_user_connections=50,
                    max_user_client_connections=60, server_connect_timeout=2, query_wait_timeout=2,
                    databases={"x": "host=127.0.0.1 port=1"})
    p.databases["p0"] += " max_db_connections=20"
    p.peers = {1: "host=127.0.0.1 port=1", 2: "host=127.0.0.1 port=2"}
    p.metrics_port = port
    p.start()
    work(p)
    return p


def work(p):
    with p.wire() as c:
        c.start("alice", "x")
        c.authenticate()
        c.until_closed()
    with p.login() as c:
        for _ in range(5):
            c.value("select 1")
        wire.cancel(c.address, c.key)
        wire.cancel(c.address, b"\0\2\0" + bytes(4) + b"\3")  # peer 2's: from its first one on it has numbers


def page(p):
    c = http.client.HTTPConnection("127.0.0.1", p.metrics_port, timeout=60)
    c.request("GET", "/metrics")
    return samples(c.getresponse().read().decode())


def used(expression):
    """[(metric, its label names)], and the labels of by() and on()."""
    metrics = []
    for name, selector in SELECTOR.findall(expression):
        metrics.append((name, set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector))))
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
    return metrics, grouped - {""}


def complaints(where, expression, known, legend=""):
    metrics, grouped = used(expression)
    found = [] if metrics else [f"{where}: no metric in {expression}"]
    theirs = set(OF_PROMETHEUS)
    for name, labels in metrics:
        if name == "up":
            continue
        if name not in known:
            found.append(f"{where}: there is no {name}")
            continue
        found += [f"{where}: {name} has no label {label}" for label in labels - known[name] - OF_PROMETHEUS]
        theirs |= known[name]
    return found + [f"{where}: nothing has the label {label}" for label in
                    (grouped | set(re.findall(r"\{\{ *(?:\$labels\.)?(\w+)", legend))) - theirs - {"$value", "value"}]


def names_and_labels(found):
    known = {}
    for name, labels in found:
        known.setdefault(name, set()).update(k for k, _ in labels)
    return known


def test_every_name_is_real(busy, rules):
    known = names_and_labels(page(busy))
    for title, expression, legend in targets():
        assert complaints(title, expression, known, legend) == []
    for expression in rules:
        assert complaints("alerts.yml", expression, known) == []
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            expression, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            assert complaints(variable["name"], expression, known) == []
            assert label in known[used(expression)[0][0][0]] | OF_PROMETHEUS


def test_a_wrong_name_is_found(busy):
    known = names_and_labels(page(busy))
    for wrong in ("pgflotilla_weight_seconds_sum", 'pgbouncer_used_clients{database="x"}',
                  "sum by (host) (pgflotilla_wait_seconds_count)", "vector(1)"):
        assert len(complaints("here", wrong, known)) == 1, wrong
    assert complaints("here", "pgbouncer_up", known, "{{worker}}") == ["here: nothing has the label worker"]
    assert complaints("here", 'sum by (le) (rate(pgflotilla_wait_seconds_bucket{user="a"}[5m]))', known, "{{le}}") == []


def test_panels_are_sound():
    assert len({p["id"] for p in BOARD["panels"]}) == len(BOARD["panels"])
    cells = [(x, y) for p in BOARD["panels"] for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24, "panels overlap"
    assert len({t for t, _, _ in targets()}) > 30


def test_promtool_accepts_the_rules_and_the_expressions(tmp_path):
    done = subprocess.run(["promtool", "check", "rules", ALERTS], text=True, capture_output=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr
    records = [{"record": f"panel:{i}", "expr": filled_in(e)} for i, (_, e, _) in enumerate(targets())]
    own = tmp_path / "panels.yml"
    own.write_text(json.dumps({"groups": [{"name": "panels", "rules": records}]}))
    done = subprocess.run(["promtool", "check", "rules", own], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should():
    done = subprocess.run(["promtool", "test", "rules", CONTRIB / "prometheus/alerts_test.yml"], text=True,
                          capture_output=True, cwd=CONTRIB / "prometheus")
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_a_real_prometheus_answers_every_panel_and_rule(busy, rules):
    """What only shows when it runs: pairs that do not match one to one, ratios of things that never meet."""
    p = busy
    with Prometheus(p, rule_files=[ALERTS]) as monitor:
        wait_until(lambda: monitor.query("up == 1"), "Prometheus has scraped")
        for _ in range(2):  # rates need two scrapes that differ
            work(p)
            seen = time.time()
            wait_until(lambda: float((monitor.query("timestamp(up)") or [{"value": [0, 0]}])[0]["value"][1]) > seen)
        empty = {title for title, expression, _ in targets() if not monitor.query(filled_in(expression))}
        assert empty <= MAY_BE_EMPTY, empty
        for expression in rules:
            monitor.query(expression)
        states = {r["name"]: (r["health"], r.get("lastError", "")) for g in monitor.ask("/api/v1/rules")["groups"]
                  for r in g["rules"]}
        assert len(states) == len(rules) and set(states.values()) == {("ok", "")}, states
        # The database x has one host, and that is out.
        wait_until(lambda: {r["labels"]["alertname"] for r in monitor.ask("/api/v1/alerts")["alerts"]}
                   >= {"PgflotillaHostOut", "PgflotillaDatabaseHasNoHost"}, "the alerts about x are there")
