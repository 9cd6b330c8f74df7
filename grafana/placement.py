"""Placement: decisions, metrics, resources, the API."""

from panels import (GREEN, YELLOW, dashboard, lines, of_instance, of_job, placing, quantile, rate, stat, states, times)

SOME = ((GREEN, None), (YELLOW, 1))
API = 'endpoint!~"/health|/version|/metrics"'


def placement():
    return dashboard(
        "madako-placement",
        "Madako: placement",
        "Which applications are where, on which metrics that was decided, and how the API does.",
        [
            ("Decisions", decisions()),
            ("Metrics that are decided on", metrics()),
            ("The API and what it reads", api()),
        ],
    )


def decisions():
    return [
        lines("Applications", {"{{outcome}}": placing("madako_placement_applications", by="outcome")},
              "Applications by what was decided on them last. Good: stays. `degraded` and `failed`: no cluster fits. "
              "`held`: a move waits for others.", stacked=True,
              runbooks=("MadakoApplicationsUnplaced", "MadakoApplicationsWait", "MadakoMovesHeld")),
        lines("Bindings", {"{{kind}}": rate("madako_placement_bindings_total", by="kind")},
              "First bindings, and moves. Good: few moves; each interrupts the application that moves.", unit="ops", stacked=True,
              runbooks=("MadakoMovesFlap",)),
        lines("Scores of chosen clusters", {"a tenth below": quantile(0.1, "madako_placement_score"),
                                            "half below": quantile(0.5, "madako_placement_score"),
                                            "nine tenths below": quantile(0.9, "madako_placement_score")},
              "The score of the cluster at each decision to bind. Good: high and even. When it falls, good clusters are full or gone.",
              least=None),
        times("How long a pass takes", "madako_placement_pass_seconds",
              "A pass over all applications, without its commits. Good: 0.1 s with 10,000 applications.",
              runbooks=("MadakoPlacementSlow",)),
        lines("Writes", {"{{what}} {{outcome}}": rate("madako_placement_writes_total", by="what, outcome")},
              "What placement wrote. Good: committed. A conflict is decided again; failed is not.", unit="ops", stacked=True,
              runbooks=("MadakoPlacementWritesFail",)),
        states("Who decides", {"{{instance}}": of_job("madako_placement_owner")},
               "Which instance decides about placement. Good: the leader. Nobody: another prefix of this etcd owns placement.",
               {0: (" ", "transparent"), 1: ("decides", GREEN)}, width=8, runbooks=("MadakoPlacementUnowned",)),
        stat("Resources in a circle", {"": placing("madako_placement_circular")},
             "Resources that own each other, and cannot be deleted. Good: 0.", steps=SOME, width=4,
             runbooks=("MadakoResourcesCircular",)),
        stat("Applications", {"": f"max({of_job('madako_objects', APPLICATION)})"}, "How many there are.", width=4),
        stat("Clusters", {"": f"max({of_job('madako_objects', CLUSTER)})"}, "How many Kubernetes clusters there are.", width=4),
        stat("Resources at fault", {"": f"max({of_job('madako_objects_faults')})"},
             "Stored resources that cannot be read. Good: 0. The log names them.", steps=SOME, width=4,
             runbooks=("MadakoResourceFaults",)),
        lines("Commits of placement", {"{{outcome}}": rate("madako_commits_total", by="outcome", labels='subject!~"cluster|removal-guard"')},
              "What placement and the repair queue brought to the store. Good: committed, and a conflict now and then.", unit="ops",
              stacked=True, runbooks=("MadakoCommitConflicts",)),
    ]


APPLICATION = 'kind="Application"'
CLUSTER = 'kind="Cluster"'


def metrics():
    return [
        lines("Metrics", {"{{kind}} {{condition}}": placing("madako_metrics", by="kind, condition") + " > 0"},
              "Metrics that something refers to, by kind of provider. Good: good. `kept`: an earlier value counts. "
              "`failed`, `undefined`: clusters with them get no new applications.", stacked=True,
              runbooks=("MadakoMetricsMissing", "MadakoMetricsOld")),
        lines("Fetches", {"{{kind}} {{outcome}}": rate("madako_metrics_fetched_total", by="kind, outcome")},
              "Answers for single metrics. Good: ok.", unit="ops", stacked=True, runbooks=("MadakoMetricsMissing",)),
        times("How long providers take", "madako_metrics_fetch_seconds",
              "Time to fetch all metrics of one provider. Good: well below placement.metrics_interval (15 s).", by="kind"),
        lines("Requests to providers", {"{{kind}} {{outcome}}": rate("madako_metrics_provider_requests_total", by="kind, outcome")},
              "HTTP requests to providers. Good: ok.", unit="reqps", stacked=True, runbooks=("MadakoMetricsProviderDown",)),
        lines("Age of the oldest value", {"{{kind}}": placing("madako_metrics_oldest_seconds", by="kind")},
              "Good: below placement.metrics_interval (15 s). A value older than placement.metric_max_age does not count.", unit="s",
              runbooks=("MadakoMetricsOld",)),
        lines("Providers that are down", {"{{kind}}": placing("madako_metrics_providers_down", by="kind")},
              "Providers that failed three times in a row. Good: 0.", runbooks=("MadakoMetricsProviderDown",)),
        times("How long one request takes", "madako_metrics_provider_request_seconds", "Good: below a second.", by="kind"),
    ]


def api():
    return [
        lines("Requests", {"{{endpoint}} {{code}}": rate("madako_http_requests_total", by="endpoint, code", labels=API, select=of_instance)},
              "Requests to the API by status. Good: no 5xx. 409 and 412 are two clients that met.", unit="reqps", stacked=True,
              runbooks=("MadakoHttpErrors",)),
        times("How long an answer takes", "madako_http_request_seconds",
              "Until it begins. Good: milliseconds.", by="endpoint", labels=API, select=of_instance, runbooks=("MadakoReadsSlow",)),
        times("How long a read waits", "madako_objects_fresh_seconds",
              "Until the instance has seen what was stored when the read began. Good: milliseconds.", select=of_instance,
              runbooks=("MadakoReadsSlow",)),
        lines("Fresh reads", {"{{outcome}}": rate("madako_objects_fresh_reads_total", by="outcome", select=of_instance),
                              "questions to the store": rate("madako_objects_questions_total", select=of_instance)},
              "Reads, and the questions for the store's revision that they share. Good: ok, and fewer questions than reads.", unit="ops"),
        lines("Watches", {"{{kind}}": f"sum by (kind) ({of_instance('madako_placement_watches')})"},
              "Open watches of clients. Good: as many as clients watch.", stacked=True),
        lines("Followers", {"{{instance}}": of_instance("madako_objects_followers"),
                            "{{instance}} broke off: {{reason}}": rate("madako_objects_gaps_total", by="instance, reason", select=of_instance)},
              "Who follows changes, and how many broke off a second. Good: none breaks off.", runbooks=("MadakoWatchGaps",)),
        lines("Resources", {"{{kind}}": f"max by (kind) ({of_instance('madako_objects')}) > 0"},
              "Resources by kind. Good: what you created.", stacked=True),
        lines("How far the view is", {"{{instance}}": of_instance("madako_objects_revision")},
              "The store's revision that each instance shows. Good: the same line for all.", least=None,
              runbooks=("MadakoReadsSlow",)),
        lines("Changes kept", {"{{instance}}": of_instance("madako_objects_changes_kept")},
              "Changes that are kept for followers that are behind."),
        lines("Keys of others", {"{{instance}}": of_instance("madako_objects_other_keys")},
              "Keys of the store that are none of placement's. Good: some for the cluster, and not ever more: each one is read."),
    ]
