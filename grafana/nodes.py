"""Operations on nodes: connections, operations, and the cluster's etcd."""

from panels import (BLUE, GREEN, RED, YELLOW, dashboard, leading, lines, of_job, rate, since, stat, states, times)

NONE = ((GREEN, None), (RED, 1))
SOME = ((GREEN, None), (YELLOW, 1))
# The text of a value that does not exist while operations on nodes are off.
OFF = "no operations"


def nodes():
    return dashboard(
        "madako-nodes",
        "Madako: nodes and etcd",
        "Connections to the nodes, operations on them, and the cluster's etcd. No data while operations on nodes are off.",
        [
            ("Nodes", connections()),
            ("Operations", operations()),
            ("etcd", etcd()),
            ("Vault", vault()),
        ],
    )


def connections():
    return [
        stat("Unreachable nodes", {"": leading("madako_nodes", labels='state="unreachable"')},
             "Nodes whose state Madako could not read in the last collection. Good: 0. `madako ops` shows the error of each node.",
             steps=SOME, empty=OFF, runbooks=("MadakoNodeUnreachable", "MadakoManyNodesUnreachable")),
        stat("Longest unreachable", {"": since(leading("madako_nodes_unreachable_since_timestamp_seconds"))},
             "Time since which the node that is unreachable for longest is so. Good: 0, or some minutes during a reboot.",
             unit="s", steps=((GREEN, None), (YELLOW, 1800)), empty=OFF, runbooks=("MadakoNodeUnreachable",)),
        stat("Pausing node actors", {"": f"sum({of_job('madako_actor_parked')})"},
             "Actors of nodes that failed too often. They start again after ten minutes. Good: 0.", steps=SOME, empty=OFF,
             runbooks=("MadakoNodeParked",)),
        lines("Nodes", {"{{state}}": leading("madako_nodes", by="state")},
              "Nodes of the cluster configuration. Good: all reachable.", stacked=True,
              runbooks=("MadakoNodeUnreachable", "MadakoManyNodesUnreachable")),
        lines("Connections", {"{{outcome}}": rate("madako_node_connections_total", by="outcome")},
              "Attempts to connect to nodes. Good: none, because connections last. `failed`: a node is down. `host-key` and `login`: an "
              "operator must act.", unit="ops", stacked=True, runbooks=("MadakoNodeRefused",)),
        times("Collection duration", "madako_operations_collect_seconds",
              "Time to read the state of all nodes and of etcd. Good: below three times the slowest node's answer. Unreachable nodes add some "
              "seconds.", runbooks=("MadakoCollectionsSlow",)),
    ]


def operations():
    return [
        states("Phase", {"{{phase}}": leading("cke_operation_phase", by="phase")},
               "The phase of the leader, over time. Good: completed. `upgrade-aborted`, `etcd-boot-aborted`: control plane nodes are missing, or an "
               "operator must decide.", {0: (" ", "transparent"), 1: ("now", BLUE)}, height=11, runbooks=("MadakoBootstrapUnclear",)),
        lines("Operations", {"{{operation}} {{outcome}}": rate("madako_operations_total", by="operation, outcome")},
              "Operations by outcome. Good: completed. Madako repeats a cancelled operation after a pause.", unit="ops", width=12, stacked=True,
              runbooks=("MadakoOperationFails",)),
        lines("Held operations", {"{{reason}}": leading("madako_operations_held", by="reason")},
              "Operations that are due and wait, by reason. Good: none. `madako ops` names their nodes and explains each reason.",
              stacked=True, runbooks=("MadakoOperationHeld", "MadakoBootstrapUnclear")),
        lines("Longest hold", {"{{reason}}": since(leading("madako_operations_held_since_timestamp_seconds", by="reason"))},
              "Time since which operations wait, by reason. Good: below an hour.", unit="s", runbooks=("MadakoOperationHeld",)),
        times("Operation command duration", "madako_operation_command_seconds",
              "Duration of the commands of operations. Good: seconds. Pulls of images and `wait-etcd-sync` take longer. The panel shows at most 10 min.",
              by="command"),
        times("Operation decision duration", "madako_operations_decide_seconds", "Good: milliseconds; 10 ms with 5,000 nodes."),
    ]


def etcd():
    return [
        stat("etcd", {"": leading("madako_etcd_healthy")},
             "Whether etcd granted a lease in the last collection, which needs a majority. Good: Healthy.",
             words={0: ("No majority", RED), 1: ("Healthy", GREEN)}, empty="no data yet", runbooks=("MadakoEtcdUnhealthy",)),
        stat("Earliest end of a certificate",
             {"{{of}}": f"({leading('madako_certificates_end_timestamp_seconds', by='of')} > 0) - time()"},
             "Time until the first certificate of a member of etcd, or of a component of Kubernetes, ends. Good: more than 30 days, at which "
             "Madako renews.", unit="s",
             steps=((RED, None), (YELLOW, 14 * 86400), (GREEN, 30 * 86400)), empty="not known",
             runbooks=("MadakoCertificateEnds", "MadakoCertificateUnreadable")),
        stat("Age of the last backup", {"": leading("madako_etcd_backup_age_seconds")},
             "Age of the last backup of etcd that counts. Good: less than two intervals of the schedule.", unit="s",
             steps=((GREEN, None),), empty="no schedule", runbooks=("MadakoEtcdBackupOld",)),
        lines("Members of etcd", {"{{state}}": leading("madako_etcd_members", by="state")},
              "Members by state. Good: all in sync. missing: control plane nodes that are not members.", stacked=True, width=12,
              runbooks=("MadakoEtcdMemberOutOfSync",)),
    ]


def vault():
    return [
        lines("Requests to Vault", {"{{call}} {{outcome}}": rate("madako_vault_requests_total", by="call, outcome")},
              "Requests by call and outcome; none where the store has no access to Vault. Good: ok. `sealed`, `unreachable`: operations that "
              "need certificates are held. `denied`: Vault refuses the role of Madako.", unit="ops", width=12, stacked=True,
              runbooks=("MadakoOperationHeld",)),
        times("Vault request duration", "madako_vault_request_seconds",
              "Good: well below a second. A request ends after 10 s.", by="call", runbooks=("MadakoOperationHeld",)),
    ]
