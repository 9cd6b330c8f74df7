"""Placement: decisions, metrics, resources, the API."""

from panels import (GREEN, YELLOW, dashboard, lines, of_instance, of_job, placing, quantile, rate, stat, states, times)

SOME = ((GREEN, None), (YELLOW, 1))
API = 'endpoint!~"/health|/version|/metrics"'


def placement():
    return dashboard(
        "madako-placement",
        "Madako: placement",
        "Bindings of applications, the metrics behind these decisions, and the state of the API.",
        [
            ("Decisions", decisions()),
            ("Metrics for decisions", metrics()),
            ("The API and its data", api()),
        ],
    )


def decisions():
    return [
        lines("Applications", {"{{outcome}}": placing("madako_placement_applications", by="outcome")},
              "Applications by their last decision. Good: stays. `degraded` and `failed`: no cluster fits. "
              "`held`: `max_moves` delays the move.", stacked=True,
              runbooks=("MadakoApplicationsUnplaced", "MadakoApplicationsWait", "MadakoMovesHeld")),
        lines("Bindings", {"{{kind}}": rate("madako_placement_bindings_total", by="kind")},
              "First bindings, and moves. Good: few moves; each move interrupts its application.", unit="ops", stacked=True,
              runbooks=("MadakoMovesFlap",)),
        lines("Scores of chosen clusters", {"10 %": quantile(0.1, "madako_placement_score"),
                                            "median": quantile(0.5, "madako_placement_score"),
                                            "90 %": quantile(0.9, "madako_placement_score")},
              "Score of the chosen cluster at each binding. Good: high and even. A drop means that good clusters are full or gone.",
              least=None),
        times("Pass duration", "madako_placement_pass_seconds",
              "A pass over all applications, without its commits. Good: 0.1 s with 10,000 applications.",
              runbooks=("MadakoPlacementSlow",)),
        lines("Writes", {"{{what}} {{outcome}}": rate("madako_placement_writes_total", by="what, outcome")},
              "Writes of placement. Good: committed. After a conflict Madako decides again; a failed write is an error.", unit="ops", stacked=True,
              runbooks=("MadakoPlacementWritesFail",)),
        states("Placement owner", {"{{instance}}": of_job("madako_placement_owner")},
               "The instance that owns placement. Good: the leader. No instance: another prefix of this etcd owns placement.",
               {0: (" ", "transparent"), 1: ("decides", GREEN)}, width=8, runbooks=("MadakoPlacementUnowned",)),
        stat("Circular resources", {"": placing("madako_placement_circular")},
             "Resources that own each other, so that none can be deleted. Good: 0.", steps=SOME, width=4,
             runbooks=("MadakoResourcesCircular",)),
        stat("Applications", {"": f"max({of_job('madako_objects', APPLICATION)})"}, "Number of applications.", width=4),
        stat("Clusters", {"": f"max({of_job('madako_objects', CLUSTER)})"}, "Number of Kubernetes clusters.", width=4),
        stat("Unreadable resources", {"": f"max({of_job('madako_objects_faults')})"},
             "Unreadable stored resources. Good: 0. The log names them.", steps=SOME, width=4,
             runbooks=("MadakoResourceFaults",)),
        lines("Commits of placement", {"{{outcome}}": rate("madako_commits_total", by="outcome", labels='subject!~"cluster|removal-guard"')},
              "Commits of placement and the repair queue. Good: committed, and a rare conflict.", unit="ops",
              stacked=True, runbooks=("MadakoCommitConflicts",)),
    ]


APPLICATION = 'kind="Application"'
CLUSTER = 'kind="Cluster"'


def metrics():
    return [
        lines("Metrics", {"{{kind}} {{condition}}": placing("madako_metrics", by="kind, condition") + " > 0"},
              "Metrics that resources refer to, by kind of provider. Good: good. `kept`: placement uses an earlier value. "
              "`failed`, `undefined`: clusters with these metrics get no new applications.", stacked=True,
              runbooks=("MadakoMetricsMissing", "MadakoMetricsOld")),
        lines("Fetches", {"{{kind}} {{outcome}}": rate("madako_metrics_fetched_total", by="kind, outcome")},
              "Fetches of single metrics by outcome. Good: ok.", unit="ops", stacked=True, runbooks=("MadakoMetricsMissing",)),
        times("Fetch duration", "madako_metrics_fetch_seconds",
              "Time to fetch all metrics of one provider. Good: well below placement.metrics_interval (15 s).", by="kind"),
        lines("Requests to providers", {"{{kind}} {{outcome}}": rate("madako_metrics_provider_requests_total", by="kind, outcome")},
              "HTTP requests to providers. Good: ok.", unit="reqps", stacked=True, runbooks=("MadakoMetricsProviderDown",)),
        lines("Age of the oldest value", {"{{kind}}": placing("madako_metrics_oldest_seconds", by="kind")},
              "Good: below placement.metrics_interval (15 s). Placement does not use a value older than placement.metric_max_age.", unit="s",
              runbooks=("MadakoMetricsOld",)),
        lines("Providers down", {"{{kind}}": placing("madako_metrics_providers_down", by="kind")},
              "Providers that failed three times in a row. Good: 0.", runbooks=("MadakoMetricsProviderDown",)),
        times("Provider request duration", "madako_metrics_provider_request_seconds", "Good: below a second.", by="kind"),
    ]


def api():
    return [
        lines("API requests", {"{{endpoint}} {{code}}": rate("madako_http_requests_total", by="endpoint, code", labels=API, select=of_instance)},
              "Requests to the API by status. Good: no 5xx. 409 and 412 are conflicts between clients.", unit="reqps", stacked=True,
              runbooks=("MadakoHttpErrors",)),
        times("API answer time", "madako_http_request_seconds",
              "Time until the answer begins. Good: milliseconds.", by="endpoint", labels=API, select=of_instance, runbooks=("MadakoReadsSlow",)),
        times("Read wait", "madako_objects_fresh_seconds",
              "Time until the instance has seen the store's revision at the start of the read. Good: milliseconds.", select=of_instance,
              runbooks=("MadakoReadsSlow",)),
        lines("Fresh reads", {"{{outcome}}": rate("madako_objects_fresh_reads_total", by="outcome", select=of_instance),
                              "revision requests": rate("madako_objects_questions_total", select=of_instance)},
              "Reads, and the shared requests for the store's revision. Good: ok, and fewer requests than reads.", unit="ops"),
        lines("Watches", {"{{kind}}": f"sum by (kind) ({of_instance('madako_placement_watches')})"},
              "Open watches of clients. Good: the number that clients need.", stacked=True),
        lines("Followers", {"{{instance}}": of_instance("madako_objects_followers"),
                            "{{instance}} ended: {{reason}}": rate("madako_objects_gaps_total", by="instance, reason", select=of_instance)},
              "Followers of changes (watches of clients, and Madako's actors), and ended followers a second. Good: none ends.", runbooks=("MadakoWatchGaps",)),
        lines("Resources", {"{{kind}}": f"max by (kind) ({of_instance('madako_objects')}) > 0"},
              "Resources by kind. Good: the created numbers.", stacked=True),
        lines("Revision of the view", {"{{instance}}": of_instance("madako_objects_revision")},
              "The store's revision of each instance's view. Good: the same line for all instances.", least=None,
              runbooks=("MadakoReadsSlow",)),
        lines("Changes kept", {"{{instance}}": of_instance("madako_objects_changes_kept")},
              "Changes kept in memory for slow followers."),
        lines("Keys outside placement", {"{{instance}}": of_instance("madako_objects_other_keys")},
              "Keys of the store outside placement. Good: a stable number. Placement reads each key, so a growing number costs time."),
    ]
