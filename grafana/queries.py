"""Reads metrics and labels from the PromQL of this directory, and reads rule files.

Reads only the parts of PromQL and YAML that this directory uses; anything else is an error, so that no part stays unread. promtool and
Prometheus check whether a query is valid.
"""

import json
import re
from dataclasses import dataclass, field

KEYWORDS = {"and", "or", "unless", "bool", "offset", "by", "on", "without", "ignoring", "inf", "nan"}
_GROUPING = re.compile(r"\b(by|on)\s*\(([^()]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{((?:[^{}\"]|\"[^\"]*\")*)\})?")
_MATCHER = re.compile(r"\s*([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*\"[^\"]*\"\s*(?:,|$)")


@dataclass
class Query:
    """The metrics and labels of a query."""

    text: str
    # {metric: labels of its selectors}.
    metrics: dict = field(default_factory=dict)
    # Labels of `by` and `on`; the labels of the last `by` are those of the result.
    groups: set = field(default_factory=set)
    aggregates: bool = False


def query(text):
    """Reads a query; ValueError if it cannot."""
    found = Query(text)
    rest = re.sub(r"\[[^\]]*\]", "", text)
    for kind, labels in _GROUPING.findall(rest):
        found.groups.update(label.strip() for label in labels.split(","))
        found.aggregates |= kind == "by"
    rest = _GROUPING.sub(" ", rest)
    rest = re.sub(r"\boffset\s+\w+", " ", rest)
    at = 0
    while match := _SELECTOR.search(rest, at):
        at = match.end()
        name, labels = match.groups()
        if match.start() and (rest[match.start() - 1].isdigit() or rest[match.start() - 1] == "."):
            continue
        if labels is None and (name.lower() in KEYWORDS or rest[at:].lstrip().startswith("(")):
            continue
        named = found.metrics.setdefault(name, set())
        left = labels or ""
        while left:
            matcher = _MATCHER.match(left)
            if not matcher:
                raise ValueError(f"cannot read the labels {{{labels}}} of {name}")
            named.add(matcher[1])
            left = left[matcher.end() :]
    if not found.metrics:
        raise ValueError("names no metric")
    return found


# A guard: the other side of its `and` is taken only from the leader or the placement owner.
GUARD = re.compile(r"and on \(job, instance\) madako_(leader|placement_owner) == 1")
_AGGREGATES = re.compile(r"\b(?:avg|bottomk|count|count_values|group|max|min|quantile|stddev|stdvar|sum|topk)\s*$")
# Replaces a guard while `_side` reads the text.
_GUARDED = "@guarded"
_TOKEN = re.compile(r"@?\w+|\S")


def unguarded(text, metrics):
    """The metrics that the query uses without a guard. A guard of another metric, or outside an aggregation that drops its labels, does
    not restrict the instance of this metric."""
    rest = GUARD.sub(f" {_GUARDED} ", re.sub(r"\"[^\"]*\"", "", text))
    rest = re.sub(r"\{[^{}]*\}", "", _GROUPING.sub(" ", rest))
    names = re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rest)
    return {name[0] for name in names if name[0] in metrics and not _is_guarded(rest, name.start())}


def _is_guarded(text, at):
    """Whether a guard applies at this place, in the same parentheses or around them."""
    while True:
        begin = at
        depth = 0
        while begin > 0 and (depth or text[begin - 1] != "("):
            begin -= 1
            depth += {")": 1, "(": -1}.get(text[begin], 0)
        if _GUARDED in _side(text, begin, at):
            return True
        # The text has no outer parentheses, or an aggregation drops the labels that an outer guard needs.
        if begin == 0 or _AGGREGATES.search(text[: begin - 1]):
            return False
        at = begin - 1


def _side(text, begin, at):
    """The words in the parentheses that begin here, between the nearest `or` or comma on both sides of this place; without nested
    parentheses."""
    side, depth = [], 0
    for token in _TOKEN.finditer(text, begin):
        word = token[0]
        if not depth and (word == ")" or word in (",", "or") and token.start() > at):
            break
        if not depth and word in (",", "or"):
            side = []
            continue
        depth += {"(": 1, ")": -1}.get(word, 0)
        if not depth:
            side.append(word)
    return side


@dataclass
class Rule:
    """An alert or a recorded query."""

    file: str
    kind: str
    name: str
    expr: str = ""
    # For alerts only: severity and texts.
    severity: str = ""
    annotations: dict = field(default_factory=dict)


_LINE = re.compile(r"^( *)(- )?([a-z_]+):(?: (.*))?$")


def rules(file, text):
    """The rules of a file in the layout of this directory; ValueError, with the line's number, for anything else."""
    found, block = [], None
    for number, line in enumerate(text.splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        if block is not None and (not line.strip() or indent > block):
            found[-1].expr += line.strip() + " "
            continue
        block = None
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if not match:
            raise ValueError(f"{file}:{number}: cannot be read: {line.strip()}")
        key, value = match[3], match[4] or ""
        if key in ("groups", "rules", "labels", "annotations", "for") or (key == "name" and match[2]):
            continue
        if key in ("alert", "record") and match[2]:
            found.append(Rule(file, key, value))
        elif key == "expr" and found:
            if value == "|":
                block = indent
            else:
                found[-1].expr = value
        elif key == "severity" and found:
            found[-1].severity = value
        elif key in ("summary", "description", "runbook_url") and found:
            # The quoted YAML texts of this directory are valid JSON.
            found[-1].annotations[key] = json.loads(value) if value.startswith('"') else value
        else:
            raise ValueError(f"{file}:{number}: an unknown key: {key}")
    return found
