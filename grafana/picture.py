#!/usr/bin/env python3
"""Draws dashboards as SVG from the answers of a Prometheus: for a report, or without a Grafana.

    grafana/picture.py URL DIRECTORY [--job JOB] [--minutes N] [--until TIME] [--rate SECONDS]

Writes DIRECTORY/NAME.svg for each dashboard, with the layout, titles, units, thresholds and texts that Grafana would show. It does not
draw pointers, links and descriptions, and does not check them. Arguments and exit codes are as in ask.py.
"""

import argparse
import json
import re
import sys
import time
from html import escape
from pathlib import Path

sys.dont_write_bytecode = True

from ask import DASHBOARDS, numbers, span, span_arguments, unanswered  # noqa: E402

# Pixels of a column and a row of the grid.
WIDE, HIGH, GAP = 60, 34, 8
PALETTE = ["#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#b877d9", "#37872d", "#8ab8ff", "#fade2a", "#c4162a"]
COLORS = {"green": "#37872d", "yellow": "#c9a400", "red": "#c4162a", "text": "#5a6069", "transparent": "#181b1f"}
GROUND, PANEL, INK, FAINT = "#111217", "#181b1f", "#d8d9da", "#7b8087"
LETTER = 7
LEGEND_ROWS = 4
STATES_MOST = 16


def number(value, unit, now=0.0):
    """A value at a time, formatted approximately as Grafana does."""
    if unit == "dateTimeFromNow":
        return number(max(0.0, now - value / 1000), "s") + " ago"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        for name in ("B", "KiB", "MiB", "GiB"):
            if value < 1024 or name == "GiB":
                return f"{value:.3g} {name}"
            value /= 1024
    if unit == "s":
        for most, part, name in ((0.001, 1e-6, "µs"), (1, 1e-3, "ms"), (90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
            if abs(value) < most:
                return f"{value / part:.3g} {name}" if value else "0 s"
        return f"{value / 86400:.3g} d"
    text = f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.3g}"
    return text + {"ops": " /s", "reqps": " /s"}.get(unit, "")


def words(defaults):
    options = {}
    for mapping in defaults.get("mappings", []):
        options.update(mapping["options"])
    return options


def color(defaults, value):
    chosen = "green"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            chosen = step["color"]
    return COLORS.get(chosen, chosen)


def text(x, y, what, *, size=12, fill=INK, anchor="start", width=None):
    if width is not None and len(what) > width // (size * 0.56):
        what = what[: max(1, int(width // (size * 0.56)) - 1)] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{escape(what)}</text>'


def box(x, y, w, h, fill):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" fill="{fill}"/>'


def legend(form, labels):
    if not form:
        return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in ("job", "__name__"))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), form)


def stat(panel, series, x, y, w, h, now):
    defaults = panel["fieldConfig"]["defaults"]
    if not series:
        return [text(x + w / 2, y + h / 2 + 6, defaults.get("noValue", "no data"), size=16, fill=FAINT, anchor="middle")]
    drawn, each = [], w / min(len(series), 4)
    rows = (len(series) + 3) // 4
    for n, (name, points) in enumerate(series):
        at, down, tall = x + each * (n % 4), y + h / rows * (n // 4), h / rows
        value = points[-1][1]
        word = words(defaults).get(str(int(value)) if value == int(value) else "")
        fill = COLORS.get(word["color"], word["color"]) if word else color(defaults, value)
        shown = word["text"] if word else number(value, defaults["unit"], now)
        if panel["options"]["textMode"] == "name":
            shown, name = name, ""
        drawn.append(box(at, down, each - 3, tall - 3, fill))
        drawn.append(text(at + each / 2, down + tall / 2 + 8, shown, size=22 if rows == 1 else 14, anchor="middle", width=each))
        if len(series) > 1 and name:
            drawn.append(text(at + each / 2, down + 14, name, size=11, anchor="middle", width=each))
    return drawn


def curves(panel, series, x, y, w, h, start, end):
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    if not series:
        return [text(x + w / 2, y + h / 2, "no data", size=16, fill=FAINT, anchor="middle")]
    rows = min(len(series), LEGEND_ROWS)
    tall = h - 14 * rows - 4
    stacked = "stacking" in defaults["custom"]
    total, stacks = {}, []
    for name, points in series:
        line = []
        for at, value in points:
            total[at] = total.get(at, 0) + value if stacked else value
            line.append((at, total[at]))
        stacks.append((name, points, line))
    every = [value for _, _, line in stacks for _, value in line]
    most = max(every)
    least = min(every) if "min" not in defaults else min(defaults["min"], min(every))
    if most <= least:
        most = least + (abs(least) or 1)
    drawn = [text(x, y + 10, number(most, unit), size=10, fill=FAINT), text(x, y + tall, number(least, unit), size=10, fill=FAINT)]
    # Only the most informative series have a line in the legend.
    greatest = sorted(range(len(stacks)), key=lambda n: -max(value for _, value in stacks[n][1]))[:rows]
    for n, (name, points, line) in enumerate(stacks):
        stroke = PALETTE[n % len(PALETTE)]
        path, before = [], None
        for at, value in line:
            px = x + 48 + (w - 52) * (at - start) / (end - start)
            py = y + tall - 4 - (tall - 12) * (value - least) / (most - least)
            path.append(f"{'M' if before is None or at - before > 180 else 'L'}{px:.1f} {py:.1f}")
            before = at
        drawn.append(f'<path d="{" ".join(path)}" fill="none" stroke="{stroke}" stroke-width="1.3"/>')
        if n in greatest:
            row = greatest.index(n)
            down = y + tall + 14 * (row + 1)
            drawn.append(box(x, down - 8, 10, 3, stroke))
            more = f" (and {len(series) - rows} more)" if row == rows - 1 and len(series) > rows else ""
            drawn.append(text(x + 14, down, (name or panel["title"]) + more, size=11, width=w - 150))
            highest = max(value for _, value in points)
            drawn.append(text(x + w, down, f"{number(points[-1][1], unit)}   max {number(highest, unit)}", size=11, anchor="end"))
    return drawn


def bars(panel, series, x, y, w, h, start, end):
    if not series:
        return [text(x + w / 2, y + h / 2, "no data", size=16, fill=FAINT, anchor="middle")]
    known, drawn = words(panel["fieldConfig"]["defaults"]), []
    shown = series[:STATES_MOST]
    tall = h / len(shown)
    left = min(180, max(len(name) for name, _ in shown) * LETTER + 6)
    for n, (name, points) in enumerate(shown):
        drawn.append(text(x, y + tall * (n + 0.6), name, size=11, width=left))
        width = (w - left) * (points[1][0] - points[0][0]) / (end - start) if len(points) > 1 else 2
        for at, value in points:
            word = known.get(str(int(value)), {"color": "text"})
            px = x + left + (w - left - width) * (at - start) / (end - start)
            drawn.append(box(px, y + tall * n + 1, width + 0.6, tall - 2, COLORS.get(word["color"], word["color"])))
    return drawn


def rows(panel, found, x, y, w, h):
    options = panel["transformations"][1]["options"]
    columns = dict(sorted(options["renameByName"].items(), key=lambda column: options["indexByName"][column[0]]))
    if not found:
        return [text(x + w / 2, y + h / 2, panel["fieldConfig"]["defaults"].get("noValue", "no data"), size=16, fill=FAINT, anchor="middle")]
    widths = [2.2 if n == 0 else 1 for n in range(len(columns))]
    drawn = []
    for n, (label, heading) in enumerate(columns.items()):
        at = x + w * sum(widths[:n]) / sum(widths)
        wide = w * widths[n] / sum(widths)
        drawn.append(text(at, y + 12, heading, size=11, fill=FAINT))
        for row, labels in enumerate(found[: int(h // 18) - 1]):
            drawn.append(text(at, y + 30 + 18 * row, labels.get(label, ""), size=12, width=wide))
    return drawn


def draw(board, asked):
    """A dashboard as SVG."""
    end = asked.until
    start = end - asked.minutes * 60
    drawn, bottom = [], 0
    for panel in board["panels"]:
        place = panel["gridPos"]
        x, y, w, h = place["x"] * WIDE + GAP, place["y"] * HIGH + 44, place["w"] * WIDE - GAP, place["h"] * HIGH - GAP
        bottom = max(bottom, y + h)
        if panel["type"] == "row":
            drawn.append(text(x, y + 20, panel["title"], size=15))
            continue
        series, labels = [], []
        for target in panel["targets"]:
            for one in asked.ask(target["expr"]):
                points = list(numbers(one).items())
                # A table or a single value does not show an ended series.
                if points and (panel["type"] not in ("table", "stat") or points[-1][0] > end - 2 * asked.step()):
                    series.append((legend(target["legendFormat"], one["metric"]), points))
                    labels.append(one["metric"])
        drawn.append(box(x, y, w, h, PANEL))
        drawn.append(text(x + 8, y + 17, panel["title"], size=13, width=w - 16))
        inner = (x + 8, y + 24, w - 16, h - 32)
        if panel["type"] == "stat":
            drawn += stat(panel, series, *inner, end)
        elif panel["type"] == "timeseries":
            drawn += curves(panel, series, *inner, start, end)
        elif panel["type"] == "state-timeline":
            drawn += bars(panel, series, *inner, start, end)
        else:
            drawn += rows(panel, labels, *inner)
    title = text(GAP, 28, f"{board['title']}: the {asked.minutes} minutes until {time.strftime('%H:%M', time.gmtime(end))} UTC", size=20)
    size = f'width="{24 * WIDE + GAP}" height="{bottom + GAP}"'
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">{ground}{title}{"".join(drawn)}</svg>\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    span_arguments(parser, minutes=30)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    asked = span(given)
    given.directory.mkdir(parents=True, exist_ok=True)
    try:
        for path in sorted(DASHBOARDS.glob("*.json")):
            board = json.loads(path.read_text(encoding="utf-8"))
            svg = draw(board, asked)
            (given.directory / f"{path.stem}.svg").write_text(svg, encoding="utf-8")
    except OSError as error:
        return unanswered(asked.url, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
