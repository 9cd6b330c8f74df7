#!/usr/bin/env python3
"""Checks the files of this directory.

    grafana/check.py [PART ...]     all parts, or only the named parts

dashboards  each file equals the output of its source; each panel has a description, a unit, and links to existing pages
schema      Grafana's own schema contains each field of each dashboard, and each value has the right type
metrics     each metric and label of a query is in docs/METRICS.md; queries take metrics of the leader only from the leader;
            no query invents a value where there is none
runbooks    each alert has texts, a page, a line in the index and a test; each page has an alert
rules       promtool accepts the rules, and their tests pass
runs        each query of each panel must move in a run that has a table in runs/, on any machine; STILL lists the exceptions
examples    the checks find the faults in spoiled queries, and in series that do not meet a table

Exit codes: 0 no findings; 1 findings, one on each line; 2 a wrong command line; 3 a program or package that a part needs
is missing: promtool (Debian's package prometheus), or PyPI's grafana-foundation-sdk for Grafana 11.6, whose version and hash
are in grafana/requirements.txt:

    python3 -m venv target/grafana && target/grafana/bin/pip install --require-hashes -r grafana/requirements.txt
    target/grafana/bin/python grafana/check.py
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import ask  # noqa: E402
import examples  # noqa: E402
import generate  # noqa: E402
import queries  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
# Deadline of promtool; on an idle core it takes some seconds.
PATIENCE_SECONDS = 600
# Labels that Prometheus adds to scraped series.
SCRAPED = {"job", "instance"}
# Gauges that are valid on every instance. All other gauges are valid only on the leader or the placement owner: a deposed leader
# may still export its last values.
OWN = re.compile(
    r"madako_(leader|leader_epoch|placement_owner|state_faults|store_revision|store_answer_timestamp_seconds|store_failure_timestamp_seconds|actor_\w+|objects|objects_\w+"
    r"|http_connections|placement_watches|host_commands_running)|cke_leader|process_\w+"
)
# Metrics of Prometheus itself.
PROMETHEUS = {"up": SCRAPED, "ALERTS": SCRAPED | {"alertname", "alertstate", "severity"}}

# Queries that answer in every run and move in none, with the reason.
STILL = {
    ("actors", "Store connections", "login {{outcome}}"): "no store of a run asks for passwords",
    ("nodes", "Operation decision duration", "median"): "simulated time does not pass within a decision, and runs with processes have no nodes",
    ("nodes", "Operation decision duration", "99 %"): "simulated time does not pass within a decision, and runs with processes have no nodes",
    ("overview", "Answering instances", "configured"): "no run changes the number of instances",
}


class Missing(Exception):
    """A program or package that a part needs is missing."""


def texts(pattern):
    """{name: text} of files below this directory."""
    return {str(path.relative_to(HERE)): path.read_text(encoding="utf-8") for path in sorted(HERE.glob(pattern))}


def boards():
    return {name: json.loads(text) for name, text in texts("dashboards/*.json").items()}


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def all_rules():
    return [rule for name, text in texts("rules/*.yml").items() for rule in queries.rules(name, text)]


# dashboards


def dashboards():
    yield from generate.differences()
    for name, board in boards().items():
        for panel in panels(board):
            where = f"{name}, {panel['title']}"
            if not panel["description"].strip():
                yield f"{where}: no description"
            if not panel["fieldConfig"]["defaults"].get("unit"):
                yield f"{where}: no unit"
            for link in panel["links"]:
                page = link["url"].removeprefix("${runbooks}/")
                if not (RUNBOOKS / page).is_file():
                    yield f"{where}: no page {page}"


# metrics


def documented():
    """{metric: labels} of docs/METRICS.md, with the series of histograms; and the gauges that are valid only on the leader."""
    known, leaders = {}, set()
    text = (ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or len(cells) != 5:
            continue
        name, kind = cells[0].strip("`"), cells[1]
        labels = set(re.findall(r"`([^`]*)`", cells[3])) | SCRAPED
        if kind == "histogram":
            known.update({name + "_bucket": labels | {"le"}, name + "_sum": labels, name + "_count": labels})
        else:
            known[name] = labels
            if kind == "gauge" and not OWN.fullmatch(name):
                leaders.add(name)
    return known, leaders


def misnamed(where, text, known, leaders, legends=()):
    """Metrics and labels of a query that do not exist."""
    if re.search(r"\bor\s+(on\s*\(\)\s*)?vector\b", text):
        yield f"{where}: invents a value where there is none: {text}"
    try:
        read = queries.query(text)
    except ValueError as error:
        yield f"{where}: {error}: {text}"
        return
    for metric in sorted(queries.unguarded(text, leaders)):
        yield f"{where}: {metric} is valid only on the leader: {text}"
    labels = set()
    for metric, chosen in read.metrics.items():
        if metric not in known:
            yield f"{where}: no such metric: {metric}"
            return
        labels |= known[metric]
        for label in sorted(chosen - known[metric]):
            yield f"{where}: {metric} has no label {label}"
    for label in sorted(read.groups - labels):
        yield f"{where}: none of its metrics has a label {label}"
    left = read.groups if read.aggregates else labels
    for label in sorted(set(legends) - left):
        yield f"{where}: its series have no label {label}"


def metrics():
    known, leaders = documented()
    known |= PROMETHEUS
    every = all_rules()
    for rule in every:
        named = re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values()))
        yield from misnamed(f"{rule.file}, {rule.name}", rule.expr, known, leaders, named)
        read = queries.query(rule.expr)
        if rule.kind == "record":
            known[rule.name] = read.groups
        elif read.aggregates:
            known["ALERTS"] = known["ALERTS"] | read.groups
    for name, board in boards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                legends = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
                yield from misnamed(f"{name}, {panel['title']}", target["expr"], known, leaders, legends)
        for annotation in board["annotations"]["list"]:
            yield from misnamed(f"{name}, {annotation['name']}", annotation["expr"], known, leaders)


# runbooks


def runbooks():
    alerts = [rule for rule in all_rules() if rule.kind == "alert"]
    tests = "\n".join(texts("rules/tests/*.yml").values())
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    names = [rule.name for rule in alerts]
    for rule in alerts:
        if names.count(rule.name) > 1:
            yield f"{rule.file}, {rule.name}: another alert has this name"
        for key in ("summary", "description", "runbook_url"):
            if not rule.annotations.get(key):
                yield f"{rule.file}, {rule.name}: no {key}"
        if rule.severity not in ("critical", "warning"):
            yield f"{rule.file}, {rule.name}: its severity is neither critical nor warning: {rule.severity}"
        if rule.annotations.get("runbook_url") != f"docs/runbooks/{rule.name}.md":
            yield f"{rule.file}, {rule.name}: runbook_url is not docs/runbooks/{rule.name}.md"
        if not (RUNBOOKS / f"{rule.name}.md").is_file():
            yield f"{rule.file}, {rule.name}: no page docs/runbooks/{rule.name}.md"
        if f"| [{rule.name}]({rule.name}.md) | {rule.severity} |" not in index:
            yield f"docs/runbooks/README.md: no line for {rule.name} ({rule.severity})"
        if not re.search(rf'labels: .ALERTS\{{[^}}]*alertname="{rule.name}", alertstate="firing"', tests):
            yield f"{rule.file}, {rule.name}: no test in rules/tests in which it fires"
    for page in sorted(RUNBOOKS.glob("*.md")):
        if page.stem != "README" and page.stem not in names:
            yield f"docs/runbooks/{page.name}: no alert has this page"


# rules


def rules():
    tool = shutil.which("promtool")
    if not tool:
        raise Missing("promtool is not on PATH: Debian's package prometheus has it")
    for command, files in (("check", "rules/*.yml"), ("test", "rules/tests/*.yml")):
        paths = [str(path) for path in sorted(HERE.glob(files))]
        try:
            ended = subprocess.run(
                [tool, command, "rules", *paths], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
            )
        except subprocess.TimeoutExpired:
            yield f"promtool {command} rules: did not end within {PATIENCE_SECONDS} s"
            continue
        if ended.returncode != 0:
            yield f"promtool {command} rules: exit code {ended.returncode}\n{(ended.stdout + ended.stderr).strip()}"


# schema


def schema():
    try:
        import schema as grafana
    except ImportError as error:
        raise Missing(f"{error}: see grafana/requirements.txt") from error
    for name, board in boards().items():
        yield from (f"{name}: {finding}" for finding in grafana.findings(board))


# runs


def runs():
    tables = {}
    for path in sorted((HERE / "runs").glob("*.md")):
        try:
            tables[path.name] = ask.demands(path)
        except ask.Wrong as wrong:
            yield str(wrong)
            return
    for key, _ in ask.queries():
        moves = any(demand.moves(busy=True) for table in tables.values() for demand in table[key])
        if moves == (key in STILL):
            yield f"{key}: {'moves in a run, but STILL lists it' if moves else 'moves in no run'}"


PARTS = {
    "dashboards": dashboards,
    "schema": schema,
    "metrics": metrics,
    "runbooks": runbooks,
    "rules": rules,
    "runs": runs,
    "examples": examples.findings,
}


def main(words):
    unknown = [word for word in words if word not in PARTS]
    if unknown:
        print(__doc__, file=sys.stderr)
        print(f"no such part: {', '.join(unknown)}", file=sys.stderr)
        return 2
    code = 0
    for name in words or PARTS:
        try:
            findings = list(PARTS[name]())
        except Missing as missing:
            print(f"{name}: not checked: {missing}", file=sys.stderr)
            code = 3
            continue
        for finding in findings:
            print(f"{name}: {finding}", file=sys.stderr)
        if findings:
            code = code or 1
        else:
            print(f"{name}: right")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
