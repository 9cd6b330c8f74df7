"""The parts of dashboards: queries, panels, and their layout.

A dashboard is a list of sections. A section is a title and a list of panels, which flow from left to right in a grid of 24
columns. Everything is plain data of Grafana's JSON, in a fixed order, so that the same source gives the same bytes.
"""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
# The schema version of Grafana 11.6; later versions migrate it when they read a dashboard.
SCHEMA = 41

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


# Queries. `$job` is one deployment: one prefix of one store.


def of_job(metric, labels=""):
    """The series of a metric of the chosen deployment."""
    return f'{metric}{{job="$job"{", " + labels if labels else ""}}}'


def of_instance(metric, labels=""):
    """The series of a metric of the chosen instances."""
    more = ", " + labels if labels else ""
    return f'{metric}{{job="$job", instance=~"$instance"{more}}}'


def leading(metric, by="", labels=""):
    """A metric of the leader. A former leader still exports its last values; they are left out."""
    return f"max by ({by or 'job'}) ({of_job(metric, labels)} and on (job, instance) madako_leader == 1)"


def placing(metric, by="", labels=""):
    """A metric of the instance that owns placement."""
    return f"max by ({by or 'job'}) ({of_job(metric, labels)} and on (job, instance) madako_placement_owner == 1)"


def rate(metric, by="", labels="", select=of_job):
    """Events a second, by labels."""
    return f"sum by ({by or 'job'}) (rate({select(metric, labels)}[$__rate_interval]))"


def share(metric, good, select=of_job, more=""):
    """The share of failures. An operation that never failed has no series of failures, so the query counts successes."""
    labels = f"{good}, {more}" if more else good
    return f"1 - {rate(metric, labels=labels, select=select)} / {rate(metric, labels=more, select=select)}"


def quantile(part, histogram, by="", labels="", select=of_job):
    """The `part` quantile of a histogram of times or scores."""
    group = f"{by}, le" if by else "le"
    return f"histogram_quantile({part}, sum by ({group}) (rate({select(histogram + '_bucket', labels)}[$__rate_interval])))"


def age(timestamp):
    """Seconds since a timestamp."""
    return f"time() - {timestamp}"


def since(timestamp):
    """Seconds since a timestamp; 0 if the timestamp is 0 (not set)."""
    return f"(time() - {timestamp}) * ({timestamp} > bool 0)"


# Panels. Each takes its queries as {legend: query}; a legend may name labels ({{reason}}).


def _target(number, legend, query, instant, form):
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query,
        "format": form,
        "instant": instant,
        "legendFormat": legend,
        "range": not instant,
        "refId": chr(ord("A") + number),
    }


def _steps(steps):
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}


def _words(words):
    """{value: (text, color)} as Grafana's mapping."""
    options = {
        str(value): {"color": color, "index": n, "text": text} for n, (value, (text, color)) in enumerate(words.items())
    }
    return [{"options": options, "type": "value"}]


def _page(title, tooltip, url):
    """A link to a page of Madako's documents."""
    return {
        "asDropdown": False,
        "icon": "doc",
        "includeVars": False,
        "keepTime": False,
        "tags": [],
        "targetBlank": True,
        "title": title,
        "tooltip": tooltip,
        "type": "link",
        "url": url,
    }


def _panel(kind, title, queries, says, *, width, height, runbooks, instant=False, form="time_series"):
    return {
        "datasource": DATASOURCE,
        "description": says,
        "fieldConfig": {"defaults": {}, "overrides": []},
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "id": 0,
        "links": [_page(f"Runbook: {name}", "Opens the runbook of this alert", f"${{runbooks}}/{name}.md") for name in runbooks],
        "options": {},
        "targets": [_target(n, legend, query, instant, form) for n, (legend, query) in enumerate(queries.items())],
        "title": title,
        "type": kind,
    }


def _nobody(queries):
    """The text of a value that only one instance exports, while there is no such instance."""
    asked = " ".join(queries.values())
    return "No leader" if "madako_leader == 1" in asked else "No placement owner" if "madako_placement_owner == 1" in asked else None


def stat(title, queries, says, *, unit="none", steps=((GREEN, None),), words=None, empty=None, names=False, width=4, height=4,
         runbooks=(), spark=True):
    """One value, or one for each series, on a background that is green while the value is good."""
    panel = _panel("stat", title, queries, says, width=width, height=height, runbooks=runbooks)
    defaults = panel["fieldConfig"]["defaults"]
    defaults.update({"color": {"mode": "thresholds"}, "thresholds": _steps(steps), "unit": unit})
    if words:
        defaults["mappings"] = _words(words)
    if empty or _nobody(queries):
        defaults["noValue"] = empty or _nobody(queries)
    several = len(queries) > 1 or any("{{" in legend for legend in queries)
    panel["options"] = {
        "colorMode": "background",
        "graphMode": "area" if spark and not names and not words else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if names else ("value_and_name" if several else "value"),
    }
    return panel


def lines(title, queries, says, *, unit="none", stacked=False, steps=None, width=8, height=8, runbooks=(), least=0, most=None):
    """Curves over time, with their latest and maximum values in the legend."""
    panel = _panel("timeseries", title, queries, says, width=width, height=height, runbooks=runbooks)
    custom = {
        "drawStyle": "line",
        "fillOpacity": 30 if stacked else 8,
        "lineWidth": 1,
        "showPoints": "never",
        # A change of leader leaves a gap of some seconds, which the curve spans; it does not span gaps above three minutes.
        "spanNulls": 180000,
    }
    if stacked:
        custom["stacking"] = {"group": "A", "mode": "normal"}
    if steps:
        custom["thresholdsStyle"] = {"mode": "line"}
    defaults = {"color": {"mode": "palette-classic"}, "custom": custom, "unit": unit}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    if steps:
        defaults["thresholds"] = _steps(steps)
    panel["fieldConfig"]["defaults"] = defaults
    panel["options"] = {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def times(title, histogram, says, *, by="", labels="", select=of_job, unit="s", width=8, runbooks=()):
    """The median and the 99th percentile of a histogram."""
    name = f"{{{{{by}}}}} " if by else ""
    queries = {
        f"{name}median": quantile(0.5, histogram, by, labels, select),
        f"{name}99 %": quantile(0.99, histogram, by, labels, select),
    }
    return lines(title, queries, says, unit=unit, width=width, runbooks=runbooks)


def states(title, queries, says, words, *, width=12, height=8, runbooks=()):
    """States over time, as coloured bars."""
    panel = _panel("state-timeline", title, queries, says, width=width, height=height, runbooks=runbooks)
    panel["fieldConfig"]["defaults"] = {
        "color": {"mode": "thresholds"},
        "custom": {"fillOpacity": 70, "lineWidth": 0},
        "mappings": _words(words),
        "thresholds": _steps([("text", None)]),
        "unit": "none",
    }
    panel["options"] = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel


def table(title, query, says, columns, *, links=None, width=12, height=8, runbooks=(), empty=None):
    """The current series as rows, their labels as columns: {label: heading}, in this order."""
    panel = _panel("table", title, {"": query}, says, width=width, height=height, runbooks=runbooks, instant=True, form="table")
    defaults = {"custom": {"align": "left", "inspect": False}, "unit": "none"}
    if empty:
        defaults["noValue"] = empty
    panel["fieldConfig"]["defaults"] = defaults
    for label, (text, url) in (links or {}).items():
        link = {"targetBlank": True, "title": text, "url": url}
        panel["fieldConfig"]["overrides"].append(
            {"matcher": {"id": "byName", "options": columns[label]}, "properties": [{"id": "links", "value": [link]}]}
        )
    panel["options"] = {"cellHeight": "sm", "showHeader": True}
    panel["transformations"] = [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {label: n for n, label in enumerate(columns)},
                "renameByName": columns,
            },
        },
    ]
    return panel


# Dashboards.


def _row(title, at):
    return {"collapsed": False, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": at}, "id": 0, "panels": [], "title": title, "type": "row"}


def _flow(sections):
    """Places the panels from left to right; the next line begins below the highest panel of this line. A panel with the width of the
    previous panel goes below it if it fits within the line."""
    placed, top = [], 0
    for title, panels in sections:
        placed.append(_row(title, top))
        top, left, height, above = top + 1, 0, 0, None
        for panel in panels:
            place = panel["gridPos"]
            if above and above["w"] == place["w"] and above["y"] + above["h"] + place["h"] <= top + height:
                place.update({"x": above["x"], "y": above["y"] + above["h"]})
            else:
                if left + place["w"] > COLUMNS:
                    top, left, height = top + height, 0, 0
                place.update({"x": left, "y": top})
                left, height = left + place["w"], max(height, place["h"])
            above = place
            placed.append(panel)
        top += height
    for number, panel in enumerate(placed, start=1):
        panel["id"] = number
    return placed


def _variable(name, label, says, **more):
    return {"description": says, "label": label, "name": name, "skipUrlSync": False, **more}


def _question(query):
    return {"query": query, "refId": "StandardVariableQuery"}


VARIABLES = [
    _variable("datasource", "Prometheus", "Data source of the metrics", type="datasource", query="prometheus", hide=0),
    _variable(
        "job",
        "Deployment",
        "Prometheus' job: one prefix of one store",
        type="query",
        datasource=DATASOURCE,
        query=_question("label_values(madako_leader, job)"),
        refresh=2,
        sort=1,
        hide=0,
    ),
    _variable(
        "instance",
        "Instance",
        "Filters the panels of single instances; panels of the leader ignore it",
        type="query",
        datasource=DATASOURCE,
        query=_question('label_values(madako_leader{job="$job"}, instance)'),
        refresh=2,
        sort=1,
        includeAll=True,
        allValue=".*",
        multi=True,
        hide=0,
        current={"selected": True, "text": "All", "value": "$__all"},
    ),
    _variable(
        "runbooks",
        "Runbooks",
        "Address under which you serve docs/runbooks of Madako's sources",
        type="textbox",
        query="docs/runbooks",
        hide=2,
        current={"selected": True, "text": "docs/runbooks", "value": "docs/runbooks"},
    ),
]

# Links to the other dashboards, which keep the chosen variables and times, and to the runbooks.
LINKS = [
    {
        **_page("", "", ""),
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "tags": ["madako"],
        "targetBlank": False,
        "type": "dashboards",
    },
    _page("Runbooks", "Opens the list of all runbooks", "${runbooks}/README.md"),
]


def dashboard(uid, title, says, sections, *, spell="now-1h"):
    """A dashboard as Grafana's JSON."""
    return {
        "annotations": {
            "list": [
                {
                    "datasource": DATASOURCE,
                    "enable": True,
                    "expr": 'changes(madako_leader_epoch{job="$job"}[$__interval]) > 0 and madako_leader == 1',
                    "hide": False,
                    "iconColor": "purple",
                    "name": "Another leader",
                }
            ]
        },
        "description": says,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": LINKS,
        "panels": _flow(sections),
        "preload": False,
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": ["madako"],
        "templating": {"list": VARIABLES},
        "time": {"from": spell, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": title,
        "uid": uid,
        "weekStart": "",
    }
