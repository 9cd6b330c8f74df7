"""Examples for `ask.py` and `check.py`: valid input passes, and the checks find each spoiled input."""

import ask
import queries

# Times with values, and series over them: {time: value}.
TIMES = {0, 1, 2, 3}
CONSTANT = {0: 5.0, 1: 5.0, 2: 5.0, 3: 5.0}
# As each rate, which needs two scrapes.
BORN_LATE = {1: 5.0, 2: 5.0, 3: 5.0}
ENDS = {0: 5.0, 1: 5.0}
PAUSES = {0: 5.0, 1: 5.0, 3: 5.0}
CHANGES = {1: 5.0, 2: 6.0, 3: 5.0}

# A demand, a series, and the expected finding.
SERIES = [
    ("varies", CONSTANT, "nothing varies"),
    ("varies", BORN_LATE, "nothing varies"),
    ("varies", ENDS, None),
    ("varies", PAUSES, None),
    ("varies", CHANGES, None),
    ("changes", ENDS, "nothing changes"),
    ("changes", BORN_LATE, "nothing changes"),
    ("changes", CHANGES, None),
    ("reaches 6", CHANGES, None),
    ("reaches 5", CHANGES, "nothing reaches 5 from below"),
    ("reaches 7", CHANGES, "nothing reaches 7 from below"),
    ("answers", CONSTANT, None),
    ("none", CONSTANT, "something answers"),
]

KNOWN = {"leads", "led"}
BESIDE = "and on (job, instance) madako_leader == 1"

# A query, and its metrics without a guard.
GUARDS = [
    (f'max by (job) (leads{{a="or ) {BESIDE}"}})', {"leads"}),
    (f"max by (job) (leads {BESIDE})", set()),
    (f"max by (job) (last_over_time((leads > 0 {BESIDE})[3m:30s])) == 0", set()),
    (f"time() - max by (job) ((leads * 2) {BESIDE} and on (job, instance) time() - led < 900)", set()),
    (f"max by (job) (leads {BESIDE}) + max by (job) (led)", {"led"}),
    (f"max by (job) (leads {BESIDE} or led)", {"led"}),
    (f"max by (job) (leads or led {BESIDE})", {"leads"}),
    (f"max by (job) (leads) {BESIDE}", {"leads"}),
    (f"leads {BESIDE} unless leads offset 30m", set()),
    (f"max by (job) (leads {BESIDE}) / max by (job) (leads)", {"leads"}),
    (f'max by (job) (leads{{a="x", b=~"y|z"}} {BESIDE})', set()),
    ("max by (job) (other)", set()),
]


def findings():
    for must, values, missing in SERIES:
        demand = ask.Demand(must, {}, "")
        found = demand.unmet([({}, values)], TIMES)
        if found != missing:
            yield f"{must}, {values}: {found}, and not {missing}"
    if ask.Demand("varies", {"a": "b"}, "").unmet([({"a": "b"}, CONSTANT), ({}, CHANGES)], TIMES) != "nothing varies of a=b":
        yield "another series counts"
    of_moments = ask.Demand("changes", {}, "", of_moments=True)
    if of_moments.unmet([({}, CONSTANT)], TIMES, busy=True) or not of_moments.unmet([({}, CONSTANT)], TIMES):
        yield "a demand that depends on timing is not checked on an idle machine, or is checked on a busy machine"
    if ask.Demand("changes", {"a": "b"}, "", of_moments=True).unmet([({}, CONSTANT)], TIMES, busy=True):
        yield "a demand that depends on timing needs its labels on a busy machine"
    if not of_moments.unmet([], TIMES, busy=True):
        yield "a query without an answer passes on a busy machine"
    if not ask.Demand("changes", {}, "").unmet([({}, CONSTANT)], TIMES, busy=True):
        yield "a demand that does not depend on timing is not checked on a busy machine"
    for text, bare in GUARDS:
        found = queries.unguarded(text, KNOWN)
        if found != bare:
            yield f"{text}: not guarded are {sorted(found)}, and should be {sorted(bare)}"
