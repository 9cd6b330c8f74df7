#!/usr/bin/env python3
"""Asks a Prometheus every query of every panel, as Grafana would.

    grafana/ask.py URL [--job JOB] [--minutes N] [--json]

URL        of the Prometheus, such as http://127.0.0.1:9090
--job      the deployment, that is Prometheus' job; madako if it is not given
--minutes  how far back; 10 if it is not given
--json     an object for each query, on a line of its own

Tells of each query how many series answer it, and whether any of them changes within that time. Exit codes: 0 each query is
answered; 1 some are not; 2 a wrong command line; 3 Prometheus cannot be reached, or finds a query wrong.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"
# Grafana asks for about as many points as a panel has room for.
POINTS = 120
# The least that Grafana takes a rate over is four scrapes; Prometheus asks every 15 s at most where this is used.
RATE_SECONDS = 60
DEADLINE_SECONDS = 30


def ask(url, query, minutes):
    """The series of a query over the last minutes."""
    now = time.time()
    step = max(1, minutes * 60 // POINTS)
    words = urllib.parse.urlencode({"query": query, "start": now - minutes * 60, "end": now, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range", words.encode(), timeout=DEADLINE_SECONDS) as answer:
        return json.load(answer)["data"]["result"]


def queries(job):
    """(dashboard, panel, query) of everything that the dashboards ask."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$job", job).replace("$instance", ".*")
                yield path.stem, panel["title"], query.replace("$__rate_interval", f"{RATE_SECONDS}s")


def told(url, minutes, dashboard, panel, query):
    """What Prometheus says to one of them."""
    series = ask(url, query, minutes)
    # What is no number (0/0) is nothing that a panel could show.
    values = [[value for _, value in one["values"] if value not in ("NaN", "+Inf", "-Inf")] for one in series]
    values = [one for one in values if one]
    return {
        "dashboard": dashboard,
        "panel": panel,
        "query": query,
        "series": len(values),
        "varies": any(len(set(one)) > 1 for one in values) or len({len(one) for one in values}) > 1,
    }


def unanswered(url, error):
    """Says what a Prometheus answered instead, or that it did not; the exit code for that."""
    if isinstance(error, urllib.error.HTTPError):
        print(f"{error.url}: {error}: {error.read().decode(errors='replace')}", file=sys.stderr)
    else:
        print(f"{url}: {error}", file=sys.stderr)
    return 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("url")
    parser.add_argument("--job", default="madako")
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    silent = 0
    try:
        for dashboard, panel, query in queries(given.job):
            answer = told(given.url.rstrip("/"), given.minutes, dashboard, panel, query)
            silent += answer["series"] == 0
            if given.json:
                print(json.dumps(answer))
            else:
                how = "nothing" if not answer["series"] else "varies" if answer["varies"] else "constant"
                print(f"{how:9}{answer['series']:4}  {dashboard}: {panel}" + (f": {query}" if how == "nothing" else ""))
    except OSError as error:
        return unanswered(given.url, error)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
