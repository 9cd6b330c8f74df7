#!/usr/bin/env python3
"""Writes grafana/dashboards from the sources beside this file.

    grafana/generate.py           writes them
    grafana/generate.py --check   only compares; exit code 1 if a file differs from its source, 2 on a wrong command line

Needs only Python 3.9. The same sources give the same bytes.
"""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True

from actors import actors
from cluster import cluster
from nodes import nodes
from overview import overview
from placement import placement

DIRECTORY = Path(__file__).resolve().parent / "dashboards"
DASHBOARDS = {"overview": overview, "cluster": cluster, "nodes": nodes, "placement": placement, "actors": actors}


def written():
    """{path: text} of every file."""
    return {
        DIRECTORY / f"{name}.json": json.dumps(make(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, make in DASHBOARDS.items()
    }


def differences():
    """A line for each file that differs from its source."""
    wanted = written()
    there = {path: path.read_text(encoding="utf-8") for path in sorted(DIRECTORY.glob("*.json"))}
    found = [f"{path.name}: does not exist" for path in wanted if path not in there]
    found += [f"{path.name}: has no source" for path in there if path not in wanted]
    found += [f"{path.name}: differs from its source" for path in wanted if there.get(path, wanted[path]) != wanted[path]]
    return found


def main(words):
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not words:
        DIRECTORY.mkdir(exist_ok=True)
        for path, text in written().items():
            path.write_text(text, encoding="utf-8")
    found = differences()
    for line in found:
        print(f"dashboards: {line} (grafana/generate.py writes them)", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
