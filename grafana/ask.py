#!/usr/bin/env python3
"""Sends every query of every panel to a Prometheus, as Grafana does.

    grafana/ask.py URL [--job JOB] [--minutes N] [--until TIME] [--rate SECONDS] [--expect FILE [--busy]] [--json]

URL        of the Prometheus, such as http://127.0.0.1:9090
--job      the deployment, which is the Prometheus job; default: madako
--minutes  length of the time range; default: 10
--until    Unix time of the range's end; default: now
--rate     range of rates in seconds, four times the scrape interval; default: 60
--expect   table of the expected results of each query, such as grafana/runs/two-minutes.md
--busy     the machine had other load: a query that the table marks as a matter of moments (~) only has to answer
--json     print an object for each query, on a line of its own

Prints for each query the number of its series, and whether a series changes within the range. Exit codes: 0 each query has
an answer, and meets the table of --expect; 1 some queries do not; 2 a wrong command line, or a table that does not have each query
once; 3 Prometheus is unreachable, or rejects a query.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"
# Grafana requests about as many points as a panel can show.
POINTS = 120
DEADLINE_SECONDS = 30


@dataclass
class Span:
    """The deployment and the time range of the queries."""

    url: str
    job: str
    minutes: int
    until: float
    rate: int

    def ask(self, form):
        """The series of a query of a dashboard."""
        query = form.replace("$job", self.job).replace("$instance", ".*").replace("$__rate_interval", f"{self.rate}s")
        seconds = self.minutes * 60
        asked = {"query": query, "start": self.until - seconds, "end": self.until, "step": self.step()}
        words = urllib.parse.urlencode(asked).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range", words, timeout=DEADLINE_SECONDS) as answer:
            return json.load(answer)["data"]["result"]

    def step(self):
        # A step beyond the range of a rate would skip events.
        return min(max(1, self.minutes * 60 // POINTS), self.rate)


def span_arguments(parser, minutes):
    """The arguments for the deployment and the time range."""
    parser.add_argument("url")
    parser.add_argument("--job", default="madako")
    parser.add_argument("--minutes", type=int, default=minutes)
    parser.add_argument("--until", type=float, default=None)
    # Grafana's minimum range of a rate is four scrapes; the scrape interval is at most 15 s where this is used.
    parser.add_argument("--rate", type=int, default=60)


def span(given):
    until = time.time() if given.until is None else given.until
    return Span(given.url.rstrip("/"), given.job, given.minutes, until, given.rate)


def queries():
    """((dashboard, panel, legend), query) of each query of the dashboards."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield (path.stem, panel["title"], target["legendFormat"]), target["expr"]


def numbers(series):
    """{time: value} of a series, without values that a panel cannot show (such as NaN of 0/0)."""
    return {at: float(value) for at, value in series["values"] if value not in ("NaN", "+Inf", "-Inf")}


def varies(values, times):
    """Whether a series changes, pauses, or ends before the last of these times. A late start does not count: a rate needs two
    scrapes."""
    born = min(values, default=None)
    return len(set(values.values())) > 1 or (born is not None and any(at > born and at not in values for at in times))


# Expected results: a table with a row for each query.

COLUMNS = ["Dashboard", "Panel", "Series", "Must", "Labels", "Reason"]


class Wrong(Exception):
    """An unusable table."""


@dataclass
class Demand:
    """The expected result of a query."""

    must: str
    # Labels of the series that count.
    chosen: dict
    because: str
    # The result depends on timing: on a busy machine the query may miss it.
    of_moments: bool = False

    def moves(self, busy):
        """Whether the query must move."""
        return self.must not in ("none", "answers") and not (busy and self.of_moments)

    def unmet(self, series, times, busy=False):
        """The unmet part of the demand as a text; None if the demand is met."""
        # On a busy machine a series with these labels may not exist: a counter may have no series until its first count.
        chosen = {} if busy and self.of_moments else self.chosen
        asked = [values for labels, values in series if all(labels.get(key) == value for key, value in chosen.items())]
        named = ", ".join(f"{key}={value}" for key, value in chosen.items())
        if self.must == "none":
            return "something answers" if asked else None
        if not asked:
            return f"nothing answers{' with ' + named if named else ''}"
        if not self.moves(busy):
            return None
        word, _, least = self.must.partition(" ")
        if word == "varies" and not any(varies(values, times) for values in asked):
            return f"nothing varies{' of ' + named if named else ''}"
        if word == "changes" and not any(len(set(values.values())) > 1 for values in asked):
            return f"nothing changes{' of ' + named if named else ''}"
        if word == "reaches" and not any(max(values.values()) >= float(least) > min(values.values()) for values in asked):
            return f"nothing reaches {least} from below{' of ' + named if named else ''}"
        return None


def demands(path):
    """{(dashboard, panel, legend): [Demand]} of a table. All demands of a query except the first depend on timing."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells == COLUMNS or set(line) <= set("|-"):
            continue
        if len(cells) != len(COLUMNS):
            raise Wrong(f"{path}: a row does not have {len(COLUMNS)} cells: {line}")
        key, must, chosen = tuple(cells[:3]), cells[3].removeprefix("~"), cells[4]
        of_moments = cells[3] != must
        word, _, least = must.partition(" ")
        number = least.replace(".", "", 1).isdigit()
        if not (must in ("none", "answers", "varies", "changes") or (word == "reaches" and number)):
            raise Wrong(f"{path}: not none, answers, varies, changes or reaches N: {must}")
        if of_moments and must in ("none", "answers"):
            raise Wrong(f"{path}: no matter of moments: {must}")
        if key in found and not of_moments:
            raise Wrong(f"{path}: two rows for {key}")
        if must not in ("none", "answers") and not cells[5]:
            raise Wrong(f"{path}: no reason why it {must}: {key}")
        labels = dict(pair.split("=", 1) for pair in chosen.split(", ") if "=" in pair)
        found.setdefault(key, []).append(Demand(must, labels, cells[5], of_moments))
    asked = [key for key, _ in queries()]
    for key in asked:
        if key not in found:
            raise Wrong(f"{path}: no row for {key}")
    for key in found:
        if asked.count(key) != 1:
            raise Wrong(f"{path}: no panel, or more than one, has {key}")
    return found


def unanswered(url, error):
    """Prints the error of Prometheus or of the connection; returns the exit code."""
    if isinstance(error, urllib.error.HTTPError):
        print(f"{error.url}: {error}: {error.read().decode(errors='replace')}", file=sys.stderr)
    else:
        print(f"{url}: {error}", file=sys.stderr)
    return 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    span_arguments(parser, minutes=10)
    parser.add_argument("--expect", type=Path)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.busy and not given.expect:
        parser.error("--busy needs a table: --expect FILE")
    asked = span(given)
    try:
        expected = demands(given.expect) if given.expect else {}
    except (OSError, ValueError, Wrong) as error:
        print(error, file=sys.stderr)
        return 2
    found = []
    try:
        for key, form in queries():
            series = [(one["metric"], numbers(one)) for one in asked.ask(form)]
            found.append((key, form, [(labels, values) for labels, values in series if values]))
    except OSError as error:
        return unanswered(asked.url, error)
    # The times at which any query has a value.
    times = {at for _, _, series in found for _, values in series for at in values}
    failed = False
    for (dashboard, panel, legend), form, series in found:
        how = "nothing" if not series else "varies" if any(varies(values, times) for _, values in series) else "constant"
        unmet, because = None, ""
        for demand in expected.get((dashboard, panel, legend), [Demand("answers", {}, "")]):
            missing = demand.unmet(series, times, given.busy)
            if missing and not unmet:
                unmet, because = missing, f" ({demand.because})" if demand.because else ""
        failed |= unmet is not None
        if given.json:
            told = {"dashboard": dashboard, "panel": panel, "query": form, "series": len(series), "varies": how == "varies"}
            print(json.dumps({**told, "legend": legend, "unmet": unmet}))
            continue
        more = f" -- {unmet}{because}: {form}" if unmet else ""
        print(f"{how:9}{len(series):4}  {dashboard}: {panel}{': ' + legend if legend else ''}{more}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
