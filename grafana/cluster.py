"""Cluster keeping: the registry, planning, the removal guard, repairs, Kubernetes, commands on the host."""

from panels import (GREEN, RED, YELLOW, age, dashboard, leading, lines, of_job, rate, since, stat, states, times)

NONE = ((GREEN, None), (RED, 1))
SOME = ((GREEN, None), (YELLOW, 1))


def cluster():
    return dashboard(
        "madako-cluster",
        "Madako: cluster keeping",
        "Machines, plans, repairs, and the reasons that block them. The leader exports these metrics.",
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
        stat("Registry answer age", {"": age(leading("madako_observation_timestamp_seconds"))},
             "Age of sabakan's last good answer about machines. Good: below the poll interval (a minute) plus some seconds.",
             unit="s", steps=((GREEN, None), (YELLOW, 120), (RED, 180)), runbooks=("MadakoRegistryUnanswered",)),
        stat("Machines", {"": leading("madako_observation_machines")},
             "Machines with an address in that answer. Good: all existing machines. A sudden drop points to a broken registry.",
             runbooks=("MadakoRemovalGuardHolds",)),
        stat("Machines without address", {"": leading("madako_observation_left_out")},
             "Machines without an IPv4 address, which Madako cannot use. Good: 0, or the known number.", steps=SOME),
        stat("Duplicate addresses", {"": leading("madako_duplicate_addresses")},
             "Addresses that several machines share in the registry. Good: 0. The log names them.", steps=SOME,
             runbooks=("MadakoDuplicateAddresses",)),
        stat("Held removals", {"": leading("madako_removal_guard_vanished")},
             "Nodes that are missing from the registry at once. Good: 0. Otherwise Madako removes them after three polls: act now.", steps=NONE,
             runbooks=("MadakoRemovalGuardHolds",)),
        stat("Repair report age", {"": age(leading("madako_reports_timestamp_seconds"))},
             "Age of sabakan's last good answer about machines to repair. Good: as for machines. It grows while auto-repair is disabled.",
             unit="s", runbooks=("MadakoReportsUnanswered",)),
        lines("Requests to the registry", {"{{outcome}}": rate("madako_registry_requests_total", by="outcome")},
              "Requests to sabakan by outcome. Good: only ok, two in each interval.", unit="reqps", stacked=True,
              runbooks=("MadakoRegistryUnanswered",)),
        times("Registry request duration", "madako_registry_request_seconds",
              "Good: below a few seconds. A request fails after 30 s."),
        lines("Polls", {"machines {{outcome}}": rate("madako_polls_total", by="outcome"),
                        "repairs {{outcome}}": rate("madako_report_polls_total", by="outcome")},
              "Polls for machines, and for machines to repair. Good: only answered.", unit="ops",
              runbooks=("MadakoRegistryUnanswered", "MadakoReportsUnanswered")),
    ]


def planning():
    return [
        states("Reasons that block planning", {"{{reason}}": leading("madako_planner_blocked", by="reason")},
               "Reasons that block planning, over time. Good: no colour. The guide's table explains each reason.",
               {0: (" ", "transparent"), 1: ("blocked", RED)}, height=9,
               runbooks=("MadakoRegistryUnanswered", "MadakoPlannerBlocked", "MadakoPlanningDisabled", "MadakoRemovalGuardHolds")),
        lines("Blocked time", {"{{reason}}": since(leading("madako_planner_blocked_since_timestamp_seconds", by="reason"))},
              "Time that the planner has been blocked, by reason. Good: 0. Some minutes after a start are normal.", unit="s", width=12,
              height=9),
        lines("Plans", {"{{action}}": rate("madako_plans_total", by="action")},
              "Plans by action. Good: mostly none. If the same action repeats, Madako cannot carry it out, or another writer reverts it.",
              unit="ops", stacked=True, runbooks=("MadakoPlanFails",)),
        times("Plan duration", "madako_plan_seconds", "Good: milliseconds; 20 ms with 10,000 machines."),
        stat("Constraints", {"": leading("cke_sabakan_integration_successful")},
             "Whether the last plan satisfies the constraints. Good: Met.",
             words={0: ("Not met", YELLOW), 1: ("Met", GREEN)}, runbooks=("MadakoPlanFails",)),
        stat("Last plan", {"": age(leading("madako_plan_timestamp_seconds"))},
             "Age of the last plan. Madako plans after each change and after each poll. Good: below some minutes.", unit="s"),
        lines("Workers", {"{{role}}": leading("cke_sabakan_workers", by="role")},
              "Workers of each role. Good: the numbers of template and constraints.", stacked=True),
        lines("Spare machines", {"unused": leading("cke_sabakan_unused_machines")},
              "Healthy machines outside the cluster. Good: enough to replace machines that may fail together. At 0 Madako cannot replace the next failed node.",
              runbooks=("MadakoPlanFails",)),
        lines("Cluster commits", {"{{outcome}}": rate("madako_commits_total", by="outcome", labels='subject="cluster"')},
              "Commits of new cluster configurations. Good: committed, and a rare conflict.", unit="ops",
              stacked=True, runbooks=("MadakoCommitConflicts",)),
    ]


def repairs():
    return [
        lines("Machines to repair", {"reported": leading("madako_reports"),
                                     "refused: {{reason}}": leading("madako_reports_refused", by="reason")},
              "Machines that the registry reports, and refused reports by the refusing rule. Good: few. "
              "`too-many`: Madako accepts none of the reports, and the operator decides.", runbooks=("MadakoReportsRefused", "MadakoRackHeld")),
        lines("Repair queue entries", {"{{status}}": leading("cke_repair_queue_items", by="status")},
              "Entries by status. Good: queued and processing come and go. A failed entry stays until the operator deletes it.",
              stacked=True, runbooks=("MadakoRepairFailed",)),
        lines("Waiting entries", {"{{reason}}": leading("madako_repair_waiting", by="reason")},
              "Entries by the reason that they wait for. Good: draining, watching and command-runs, which clear by themselves. "
              "`madako repair-queue explain` shows the reason of each entry.", stacked=True,
              runbooks=("MadakoRepairBlocked", "MadakoRepairWaits")),
        lines("Longest wait", {"{{reason}}": since(leading("madako_repair_waiting_since_timestamp_seconds", by="reason"))},
              "Longest wait of an entry, by reason. Good: below an hour.", unit="s",
              runbooks=("MadakoRepairBlocked", "MadakoRepairWaits")),
        stat("Held racks", {"": leading("madako_repair_racks_held")},
             "Racks whose machines failed together. Good: 0.", steps=NONE, runbooks=("MadakoRackHeld",)),
        stat("Repair queue state", {"": leading("cke_repair_queue_enabled")},
             "State of the repair queue. Good: enabled. If it is disabled, find out why before you enable it.",
             words={0: ("disabled", YELLOW), 1: ("enabled", GREEN)}, runbooks=("MadakoRepairWaits",)),
        times("Queue decision duration", "madako_repair_look_seconds", "Good: milliseconds."),
        lines("Repair operations", {"{{operation}}": rate("madako_repair_operations_total", by="operation")},
              "Repair operations, as in `madako history`. Good: as many finish as begin.", unit="ops", stacked=True),
        lines("Health checks", {"{{outcome}}": rate("madako_repair_health_checks_total", by="outcome")},
              "Good: healthy and unhealthy. failed: the check command itself fails, and the machine counts as unhealthy.", unit="ops",
              stacked=True, runbooks=("MadakoHealthChecksFail",)),
        times("Repair command duration", "madako_repair_command_seconds",
              "Time of a command with its retries. Good: well below the deadline of the step. The panel shows at most 30 s.", by="kind"),
    ]


def kubernetes():
    return [
        lines("Requests to the API server", {"{{call}} {{outcome}}": rate("madako_kubernetes_requests_total", by="call, outcome")},
              "Good: ok. `budget`: a disruption budget forbids an eviction for now. No data if no kubeconfig is configured.",
              unit="reqps", stacked=True, runbooks=("MadakoKubernetesUnreachable",)),
        times("API server request duration", "madako_kubernetes_request_seconds", "Good: below a second.", by="call"),
        stat("Node taints", {"": leading("madako_node_taints_known")},
             "Whether the known taints of the Kubernetes nodes are recent enough to plan with. Good: known, or not asked.",
             words={0: ("unknown", YELLOW), 1: ("known", GREEN)}, empty="not asked", runbooks=("MadakoTaintsUnknown",)),
        stat("Taint answer age", {"": age(leading("madako_node_taints_timestamp_seconds"))},
             "Age of the API server's last good answer about taints. Good: below the poll interval plus some seconds.", unit="s",
             empty="not asked", steps=((GREEN, None), (YELLOW, 180)), runbooks=("MadakoTaintsUnknown",)),
    ]


def commands():
    return [
        lines("Commands", {"{{outcome}}": rate("madako_host_commands_total", by="outcome")},
              "Commands on the host by outcome. Good: ok. `exit-code`: the command itself failed. `lost`: the outcome is unknown.",
              unit="ops", stacked=True, runbooks=("MadakoCommandLost", "MadakoCommandsFail")),
        times("Command duration", "madako_host_command_seconds", "Good: the usual time of these commands. The panel shows at most 30 s."),
        lines("Running commands", {"{{instance}}": of_job("madako_host_commands_running")},
              "Good: only on the leader, one repair command and some health checks."),
    ]
