"""The overview: the state of the deployment, and the reasons for alerts. Red needs an operator; yellow may need an operator."""

from panels import (GREEN, RED, YELLOW, age, dashboard, leading, lines, of_job, placing, rate, share, since, stat, states, table)

FIRING = 'ALERTS{alertstate="firing", alertname=~"Madako.*", job="$job"'
# 0 while no alert fires and an instance answers; no data while no instance answers.
CALM = f'max({FIRING}, severity="critical"}} * 2 or {FIRING}, severity="warning"}} or {of_job("madako_leader")} * 0)'
CALM_WORDS = {0: ("Calm", GREEN), 1: ("Act today", YELLOW), 2: ("Act now", RED)}
NONE = ((GREEN, None), (RED, 1))
SOME = ((GREEN, None), (YELLOW, 1))


def overview():
    return dashboard(
        "madako-overview",
        "Madako: overview",
        "State of the deployment, and the reasons for alerts. If everything is green, no action is needed.",
        [
            ("Overall state", calm()),
            ("Reasons: the cluster", cluster()),
            ("Reasons: nodes and etcd", nodes()),
            ("Reasons: placement and the service", rest()),
            ("Recent activity", lately()),
        ],
    )


def calm():
    return [
        stat(
            "Overall state",
            {"": CALM},
            "The most severe firing alert. Good: Calm. Act today: a warning fires. Act now: Madako does not do part of its work. "
            "The table beside this panel names the alert and links to its runbook.",
            words=CALM_WORDS, empty="No instance answers", width=5, height=7, runbooks=("MadakoGone",),
        ),
        table(
            "Firing alerts",
            FIRING + "}",
            "All firing alerts. Good: an empty table. A click on the name opens the alert's runbook.",
            {"alertname": "Alert", "severity": "Severity", "instance": "Instance", "actor": "Actor", "reason": "Reason",
             "outcome": "Outcome", "kind": "Kind"},
            links={"alertname": ("Runbook", "${runbooks}/${__value.text}.md")}, width=13, height=7, empty="No alert fires",
        ),
        stat(
            "Leader",
            {"{{instance}}": of_job("madako_leader") + " == 1"},
            "The leading instance. Good: exactly one name. Without a leader, Madako decides nothing.",
            empty="No leader", names=True, width=6, height=3, runbooks=("MadakoNoLeader", "MadakoTwoLeaders"),
        ),
        stat(
            "Answering instances",
            {"answering": f"sum({of_job('up')})", "configured": f"count({of_job('up')})"},
            "Instances that Prometheus reaches, and instances in its configuration. Good: the same number twice, and at least two.",
            width=6, runbooks=("MadakoInstanceDown",), spark=False,
        ),
    ]


def cluster():
    blocked = leading("madako_planner_blocked")
    return [
        stat("Planning", {"": blocked},
             "Whether a reason blocks planning. Good: Plans. If not, the dashboard on cluster keeping shows the reason.",
             words={0: ("Plans", GREEN), 1: ("Blocked", RED)}, width=3,
             runbooks=("MadakoRegistryUnanswered", "MadakoPlannerBlocked")),
        stat("Constraints", {"": leading("cke_sabakan_integration_successful")},
             "Whether the last plan satisfies the constraints. Good: Met. If not, machines are missing.",
             words={0: ("Not met", YELLOW), 1: ("Met", GREEN)}, width=3, runbooks=("MadakoPlanFails",)),
        stat("Registry answer age", {"": age(leading("madako_observation_timestamp_seconds"))},
             "Age of sabakan's last good answer. Good: below two minutes. Madako does not plan on an answer older than three polls.",
             unit="s", steps=((GREEN, None), (YELLOW, 120), (RED, 180)), width=3, runbooks=("MadakoRegistryUnanswered",)),
        stat("Held removals", {"": leading("madako_removal_guard_vanished")},
             "Nodes that are missing from the registry at once. Good: 0. Otherwise Madako removes them after three polls: act now.",
             steps=NONE, width=3, runbooks=("MadakoRemovalGuardHolds",)),
        stat("Held racks", {"": leading("madako_repair_racks_held")},
             "Racks whose machines failed together. Good: 0. Otherwise check power and switches.",
             steps=NONE, width=3, runbooks=("MadakoRackHeld",)),
        stat("Broken machines", {"": leading("madako_reports")},
             "Machines that the registry reports as broken. Good: few. The dashboard on cluster keeping shows their repairs.",
             steps=((GREEN, None), (YELLOW, 5)), width=3, runbooks=("MadakoReportsRefused",)),
        stat("Failed repairs", {"": leading("cke_repair_queue_items", labels='status="failed"')},
             "Failed entries of the repair queue: every step was tried, or a command failed. Good: 0. Otherwise repair the machines by hand.",
             steps=SOME, width=3, runbooks=("MadakoRepairFailed",)),
        stat("Longest repair wait", {"": f"max({since(leading('madako_repair_waiting_since_timestamp_seconds', by='reason'))})"},
             "Longest wait of an entry of the repair queue. Good: 0, or below an hour.",
             unit="s", steps=((GREEN, None), (YELLOW, 3600)), width=3,
             runbooks=("MadakoRepairBlocked", "MadakoRepairWaits")),
    ]


def nodes():
    held = since(leading("madako_operations_held_since_timestamp_seconds", by="reason"))
    return [
        stat("Unreachable nodes", {"": leading("madako_nodes", labels='state="unreachable"')},
             "Nodes whose state Madako cannot read. Good: 0. `madako ops` shows the error of each node.", steps=SOME, width=6,
             empty="no operations", runbooks=("MadakoNodeUnreachable", "MadakoManyNodesUnreachable")),
        stat("Longest hold", {"": f"max({held})"},
             "Longest wait of an operation that is due. Good: 0, or below an hour. `madako ops` explains the reason.",
             unit="s", steps=((GREEN, None), (YELLOW, 3600)), width=6, empty="no operations", runbooks=("MadakoOperationHeld",)),
        stat("etcd", {"": leading("madako_etcd_healthy")},
             "Whether the cluster's etcd has a majority. Good: Healthy.", words={0: ("No majority", RED), 1: ("Healthy", GREEN)},
             width=6, empty="no data yet", runbooks=("MadakoEtcdUnhealthy",)),
        stat("Members not in sync", {"": f"sum({leading('madako_etcd_members', by='state', labels=NOT_IN_SYNC)})"},
             "Members of etcd that are not in sync, and control plane nodes that are not members. Good: 0.", steps=SOME, width=6,
             empty="no data yet", runbooks=("MadakoEtcdMemberOutOfSync",)),
    ]


def rest():
    return [
        stat("Unplaced applications", {"": f"sum({placing('madako_placement_applications', by='outcome', labels=UNPLACED)})"},
             "Applications that no cluster fits. Good: 0. Otherwise `madako kube app explain` shows the reasons against each cluster.",
             steps=SOME, width=3, runbooks=("MadakoApplicationsUnplaced",)),
        stat("Waiting applications", {"": f"sum({placing('madako_placement_applications', by='outcome', labels=WAITING)})"},
             "Applications that wait for a metric, a cluster or a permitted move. Good: 0, or for a short time only.",
             steps=SOME, width=3, runbooks=("MadakoApplicationsWait", "MadakoMovesHeld")),
        stat("Metrics without value", {"": f"sum({placing('madako_metrics', by='kind, condition', labels=MISSING)})"},
             "Metrics that placement needs but cannot get. Good: 0. Clusters that refer to them get no new applications.",
             steps=SOME, width=3, runbooks=("MadakoMetricsMissing",)),
        stat("Providers down", {"": f"sum({placing('madako_metrics_providers_down', by='kind')})"},
             "Metrics providers that failed three times in a row. Good: 0.", steps=SOME, width=3,
             runbooks=("MadakoMetricsProviderDown",)),
        stat("Store errors", {"": share("madako_store_requests_total", 'outcome="ok"')},
             "Share of failed requests to the store. Good: 0. Above 50 % the instances cannot work.",
             unit="percentunit", steps=((GREEN, None), (YELLOW, 0.05), (RED, 0.5)), width=3,
             runbooks=("MadakoStoreUnreachable", "MadakoStoreErrors")),
        stat("API errors", {"": share("madako_http_requests_total", 'code!~"5.."')},
             "Share of the HTTP answers that are 5xx. Good: 0.",
             unit="percentunit", steps=((GREEN, None), (YELLOW, 0.05)), width=3, runbooks=("MadakoHttpErrors",)),
        stat("Unusable values", {"": f"max({of_job('madako_state_faults')}) + max({of_job('madako_objects_faults')})"},
             "Unusable stored values and resources. Good: 0. The log names them.", steps=SOME, width=3,
             runbooks=("MadakoStateFaults", "MadakoResourceFaults")),
        stat("Actor failures", {"": f"round(sum(increase({of_job('madako_actor_restarts_total')}[30m])))"},
             "Actor failures within the last half hour. Good: 0. A single failure needs no action: the actor runs again within 10 s.",
             steps=((GREEN, None), (YELLOW, 6)), width=3, runbooks=("MadakoActorRestarts", "MadakoMeltdown")),
    ]


NOT_IN_SYNC = 'state=~"out-of-sync|missing"'
UNPLACED = 'outcome=~"degraded|failed"'
WAITING = 'outcome=~"waits-for-metric|waits-for-cluster|creates|held"'
MISSING = 'condition=~"failed|undefined"'


def lately():
    return [
        states("Overall state over time", {"": CALM},
               "The most severe alert over time. Good: always green.", CALM_WORDS, height=4),
        states("Leader over time", {"{{instance}}": of_job("madako_leader")},
               "The leading instance over time. Good: one bar, and rare changes.",
               {0: ("waits", "text"), 1: ("leads", GREEN)}, height=4, runbooks=("MadakoLeaderChanges",)),
        lines("Plans", {"{{action}}": rate("madako_plans_total", by="action")},
              "Plans by action. Good: mostly none. `failed`: no plan satisfies the constraints.",
              unit="ops", stacked=True, runbooks=("MadakoPlanFails",)),
        lines("Commits", {"{{outcome}}": rate("madako_commits_total", by="outcome")},
              "Decisions by outcome. Good: committed, and a rare conflict, after which Madako decides again.",
              unit="ops", stacked=True, runbooks=("MadakoCommitConflicts", "MadakoInvariantViolation")),
        lines("Bindings", {"{{kind}}": rate("madako_placement_bindings_total", by="kind")},
              "First bindings, and moves. Good: one first binding for each created application, and few moves.",
              unit="ops", stacked=True, runbooks=("MadakoMovesFlap",)),
    ]
