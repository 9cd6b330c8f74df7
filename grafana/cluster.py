"""Cluster keeping: the registry, planning, the removal guard, repairs, Kubernetes, commands on the host."""

from panels import (GREEN, RED, YELLOW, age, dashboard, leading, lines, of_job, rate, since, stat, states, times)

NONE = ((GREEN, None), (RED, 1))
SOME = ((GREEN, None), (YELLOW, 1))


def cluster():
    return dashboard(
        "madako-cluster",
        "Madako: cluster keeping",
        "What is known of the machines, what is planned, what is repaired, and what stands in the way. The leader tells it.",
        [
            ("The registry", registry()),
            ("Planning", planning()),
            ("Repairs", repairs()),
            ("Kubernetes", kubernetes()),
            ("Commands on the leader's host", commands()),
        ],
    )


def registry():
    return [
        stat("Registry answered", {"": age(leading("madako_observation_timestamp_seconds"))},
             "Age of sabakan's last good answer about machines. Good: below the interval of polls (a minute) and some seconds.",
             unit="s", steps=((GREEN, None), (YELLOW, 120), (RED, 180)), runbooks=("MadakoRegistryUnanswered",)),
        stat("Machines", {"": leading("madako_observation_machines")},
             "Machines with an address in that answer. Good: as many as there are. A sudden fall is a broken registry.",
             runbooks=("MadakoRemovalGuardHolds",)),
        stat("Machines left out", {"": leading("madako_observation_left_out")},
             "Machines that have no IPv4 address and cannot be used. Good: 0, or those that you know of.", steps=SOME),
        stat("Addresses claimed twice", {"": leading("madako_duplicate_addresses")},
             "Addresses that several machines have in the registry. Good: 0. The log names them.", steps=SOME,
             runbooks=("MadakoDuplicateAddresses",)),
        stat("Removals held back", {"": leading("madako_removal_guard_vanished")},
             "Nodes that are missing all at once. Good: 0. If not, they are removed after three polls: look now.", steps=NONE,
             runbooks=("MadakoRemovalGuardHolds",)),
        stat("Asked for repairs", {"": age(leading("madako_reports_timestamp_seconds"))},
             "Age of sabakan's last good answer about machines to repair. Good: as the other. It grows while repairs on request are switched off.",
             unit="s", runbooks=("MadakoReportsUnanswered",)),
        lines("Requests to the registry", {"{{outcome}}": rate("madako_registry_requests_total", by="outcome")},
              "Questions to sabakan by what came of them. Good: ok alone, two in each interval.", unit="reqps", stacked=True,
              runbooks=("MadakoRegistryUnanswered",)),
        times("How long the registry takes", "madako_registry_request_seconds",
              "Good: below a few seconds. After 30 s a question is given up."),
        lines("Polls", {"machines {{outcome}}": rate("madako_polls_total", by="outcome"),
                        "repairs {{outcome}}": rate("madako_report_polls_total", by="outcome")},
              "Polls for machines, and for those that want repair. Good: answered alone.", unit="ops",
              runbooks=("MadakoRegistryUnanswered", "MadakoReportsUnanswered")),
    ]


def planning():
    return [
        states("What keeps it from planning", {"{{reason}}": leading("madako_planner_blocked", by="reason")},
               "Each reason for which nothing is planned, and when it was there. Good: no colour. The guide's table says what each one means.",
               {0: (" ", "transparent"), 1: ("blocked", RED)}, height=9,
               runbooks=("MadakoRegistryUnanswered", "MadakoPlannerBlocked", "MadakoPlanningDisabled", "MadakoRemovalGuardHolds")),
        lines("For how long", {"{{reason}}": since(leading("madako_planner_blocked_since_timestamp_seconds", by="reason"))},
              "How long the planner has been blocked, by reason. Good: 0. Some minutes after a start are right.", unit="s", width=12,
              height=9),
        lines("Plans", {"{{action}}": rate("madako_plans_total", by="action")},
              "What was planned. Good: mostly none. The same action again and again: it is not carried out, or somebody undoes it.",
              unit="ops", stacked=True, runbooks=("MadakoPlanFails",)),
        times("How long a plan takes", "madako_plan_seconds", "Good: milliseconds, with 10,000 machines 20."),
        stat("Constraints", {"": leading("cke_sabakan_integration_successful")},
             "Whether the last plan satisfies the constraints. Good: Met.",
             words={0: ("Not met", YELLOW), 1: ("Met", GREEN)}, runbooks=("MadakoPlanFails",)),
        stat("Planned", {"": age(leading("madako_plan_timestamp_seconds"))},
             "Age of the last plan. A plan is made when something changes and after each poll. Good: below some minutes.", unit="s"),
        lines("Workers", {"{{role}}": leading("cke_sabakan_workers", by="role")},
              "Workers of each role. Good: what template and constraints ask for.", stacked=True),
        lines("Machines in reserve", {"unused": leading("cke_sabakan_unused_machines")},
              "Healthy machines that are not part of the cluster. Good: enough to replace what may fail together. At 0 the next failure stays.",
              runbooks=("MadakoPlanFails",)),
        lines("Changes of the cluster", {"{{outcome}}": rate("madako_commits_total", by="outcome", labels='subject="cluster"')},
              "New configurations of the cluster that were brought to the store. Good: committed, seldom a conflict.", unit="ops",
              stacked=True, runbooks=("MadakoCommitConflicts",)),
    ]


def repairs():
    return [
        lines("Machines that want repair", {"reported": leading("madako_reports"),
                                            "refused: {{reason}}": leading("madako_reports_refused", by="reason")},
              "Machines that the registry reports, and those that lead to no repair, by the rule that says so. Good: few. "
              "`too-many`: none is taken, and a person decides.", runbooks=("MadakoReportsRefused", "MadakoRackHeld")),
        lines("The repair queue", {"{{status}}": leading("cke_repair_queue_items", by="status")},
              "Entries by status. Good: queued and processing come and go. What failed stays until somebody deletes it.",
              stacked=True, runbooks=("MadakoRepairFailed",)),
        lines("What entries wait for", {"{{reason}}": leading("madako_repair_waiting", by="reason")},
              "Entries by what stands in their way. Good: draining, watching and command-runs, which pass. "
              "`madako repair-queue explain` tells it entry by entry.", stacked=True,
              runbooks=("MadakoRepairBlocked", "MadakoRepairWaits")),
        lines("The longest wait", {"{{reason}}": since(leading("madako_repair_waiting_since_timestamp_seconds", by="reason"))},
              "How long the entry waits that has waited longest, by reason. Good: below an hour.", unit="s",
              runbooks=("MadakoRepairBlocked", "MadakoRepairWaits")),
        stat("Racks held", {"": leading("madako_repair_racks_held")},
             "Racks whose machines failed together. Good: 0.", steps=NONE, runbooks=("MadakoRackHeld",)),
        stat("The queue is", {"": leading("cke_repair_queue_enabled")},
             "Whether the queue is worked on. Good: enabled. Who disabled it has a reason: ask.",
             words={0: ("disabled", YELLOW), 1: ("enabled", GREEN)}, runbooks=("MadakoRepairWaits",)),
        times("How long a decision about the queue takes", "madako_repair_look_seconds", "Good: milliseconds."),
        lines("What was done", {"{{operation}}": rate("madako_repair_operations_total", by="operation")},
              "Steps of repairs, as `madako history` tells them. Good: as many that finish as begin.", unit="ops", stacked=True),
        lines("Health checks", {"{{outcome}}": rate("madako_repair_health_checks_total", by="outcome")},
              "Good: healthy and unhealthy. Failed: the command itself fails, and the machine counts as unhealthy.", unit="ops",
              stacked=True, runbooks=("MadakoHealthChecksFail",)),
        times("How long repair commands take", "madako_repair_command_seconds",
              "With their retries. Good: well below the deadline of the step. Longer than 30 s is shown as 30 s.", by="kind"),
    ]


def kubernetes():
    return [
        lines("Requests to the API server", {"{{call}} {{outcome}}": rate("madako_kubernetes_requests_total", by="call, outcome")},
              "Good: ok. `budget`: a disruption budget forbids an eviction for now. Empty where no kubeconfig is named.",
              unit="reqps", stacked=True, runbooks=("MadakoKubernetesUnreachable",)),
        times("How long the API server takes", "madako_kubernetes_request_seconds", "Good: below a second.", by="call"),
        stat("Taints of nodes", {"": leading("madako_node_taints_known")},
             "Whether the taints of Kubernetes' nodes are known well enough to plan with. Good: known, or not asked.",
             words={0: ("unknown", YELLOW), 1: ("known", GREEN)}, empty="not asked", runbooks=("MadakoTaintsUnknown",)),
        stat("Taints answered", {"": age(leading("madako_node_taints_timestamp_seconds"))},
             "Age of the API server's last good answer about them. Good: below the interval of polls and some seconds.", unit="s",
             empty="not asked", steps=((GREEN, None), (YELLOW, 180)), runbooks=("MadakoTaintsUnknown",)),
    ]


def commands():
    return [
        lines("Commands", {"{{outcome}}": rate("madako_host_commands_total", by="outcome")},
              "Commands on the host by how they ended. Good: ok. `exit-code` is the command's own no. `lost`: nobody knows.",
              unit="ops", stacked=True, runbooks=("MadakoCommandLost", "MadakoCommandsFail")),
        times("How long they take", "madako_host_command_seconds", "Good: what you know of these commands. Longer than 30 s is shown as 30 s."),
        lines("Commands that run", {"{{instance}}": of_job("madako_host_commands_running")},
              "Good: on the leader alone, one repair command and some health checks."),
    ]
