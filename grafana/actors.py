"""The internals of the instances: actors and supervision, leadership, the store, HTTP, the process."""

from panels import (GREEN, RED, YELLOW, age, dashboard, lines, of_instance, of_job, rate, share, since, stat, states, times)


def actors():
    return dashboard(
        "madako-actors",
        "Madako: actors and supervision",
        "State of the instances: running actors and their load, the leader, the answers of the store.",
        [
            ("Actors", each()),
            ("Leadership and commits", leadership()),
            ("The store", store()),
            ("HTTP and the process", process()),
        ],
    )


def each():
    return [
        states("Running actors", {"{{instance}} {{actor}}": of_instance("madako_actor_up")},
               "Good: all actors run on the leader; leader and http run on every instance. A failed actor runs again within 10 s.",
               {0: ("down", YELLOW), 1: ("runs", GREEN)}, height=12, runbooks=("MadakoActorDown",)),
        lines("Failures", {"{{instance}} {{actor}}": f"increase({of_instance('madako_actor_restarts_total')}[$__rate_interval])"},
              "Restarts after a failure. Good: none.", runbooks=("MadakoActorRestarts",), width=6, height=12),
        stat("Last failure", {"{{actor}}": f"max by (actor) ({of_instance('madako_actor_failure_timestamp_seconds')}) * 1000"},
             "Time of each actor's last failure. Good: never, or long ago.", unit="dateTimeFromNow", width=6, height=12, spark=False,
             words={0: ("never", GREEN)}, runbooks=("MadakoActorRestarts",)),
        lines("Messages", {"{{actor}}": rate("madako_actor_messages_total", by="actor", select=of_instance)},
              "Handled messages. Good: above 0 all the time; an actor at 0 receives no messages.", unit="ops"),
        times("Message handling time", "madako_actor_handling_seconds",
              "Good: milliseconds. A slow actor delays others.", by="actor", select=of_instance,
              runbooks=("MadakoActorStuck",)),
        lines("Mailboxes", {"{{instance}} {{actor}}": of_instance("madako_actor_mailbox_messages")},
              "Waiting messages. Good: nearly always 0.", runbooks=("MadakoMailboxGrows",)),
        lines("Time on the current message", {"{{instance}} {{actor}}": since(of_instance("madako_actor_handling_since_timestamp_seconds"))},
              "Time that an actor has spent on its current message. Good: 0, or a short peak. Above a minute the actor is stuck.", unit="s",
              steps=((GREEN, None), (RED, 60)), width=12, runbooks=("MadakoActorStuck",)),
        lines("Meltdowns", {"{{instance}} {{supervisor}}": of_instance("madako_actor_meltdowns_total")},
              "Supervisors that gave up since the start of the process. Good: 0, or no data.", width=12, runbooks=("MadakoMeltdown",)),
    ]


def leadership():
    return [
        states("Leader", {"{{instance}}": of_job("madako_leader")},
               "Good: exactly one leader at all times.", {0: ("waits", "text"), 1: ("leads", GREEN)},
               runbooks=("MadakoNoLeader", "MadakoTwoLeaders", "MadakoLeaderChanges")),
        lines("Epoch", {"{{instance}}": of_job("madako_leader_epoch") + " > 0"},
              "The leader's epoch: each epoch is greater than the previous one. Good: a flat line.", width=6, least=None,
              runbooks=("MadakoLeaderChanges",)),
        lines("Invariant violations", {"{{invariant}}": f"sum by (invariant) ({of_job('madako_invariant_violations_total')})"},
              "Refused decisions that would have broken an invariant, since the start of the process. Good: 0, or no data. "
              "Each is a fault of Madako.", width=6, runbooks=("MadakoInvariantViolation",)),
        lines("Commits", {"{{subject}} {{outcome}}": rate("madako_commits_total", by="subject, outcome")},
              "Decisions sent to the leader, by subject and outcome. Good: committed.", unit="ops", stacked=True,
              width=12, runbooks=("MadakoCommitConflicts", "MadakoInvariantViolation")),
        times("Commit duration", "madako_commit_seconds", "Good: some milliseconds. The store takes most of this time.", width=12,
              runbooks=("MadakoStoreSlow",)),
    ]


def store():
    return [
        lines("Store requests", {"{{operation}} {{outcome}}": rate("madako_store_requests_total", by="operation, outcome", select=of_instance)},
              "Requests to the store. Good: ok.", unit="reqps", stacked=True,
              runbooks=("MadakoStoreUnreachable", "MadakoStoreErrors", "MadakoStoreRefuses", "MadakoStoreFailed")),
        times("Store request duration", "madako_store_request_seconds", "Good: below 0.1 s. A request fails after the setting timeout (2 s).",
              by="operation", select=of_instance, runbooks=("MadakoStoreSlow",)),
        stat("Failed store requests", {"": share("madako_store_requests_total", 'outcome="ok"', select=of_instance)},
             "Good: 0.", unit="percentunit", steps=((GREEN, None), (YELLOW, 0.05), (RED, 0.5)),
             runbooks=("MadakoStoreErrors",)),
        stat("Last answer of the store", {"{{instance}}": age(of_instance("madako_store_answer_timestamp_seconds"))},
             "Age of the store's last good answer. Good: below a third of the session's lease (20 s) plus some seconds: each "
             "instance renews its lease at this interval.", unit="s", steps=((GREEN, None), (YELLOW, 40), (RED, 60)), spark=False,
             runbooks=("MadakoStoreUnreachable", "MadakoStoreErrors")),
        stat("Unusable stored values", {"": f"max({of_job('madako_state_faults')})"},
             "Unusable stored values. Good: 0. The log names them.", steps=((GREEN, None), (YELLOW, 1)),
             runbooks=("MadakoStateFaults",)),
        lines("Watches", {"listed: {{cause}}": rate("madako_store_watch_lists_total", by="cause", select=of_instance),
                          "lost the stream": rate("madako_store_watch_interruptions_total", select=of_instance),
                          "resumed": rate("madako_store_watch_resumptions_total", select=of_instance)},
              "Good: 0 after the start. A watch that loses its stream resumes at its revision, or lists again.", unit="ops",
              runbooks=("MadakoStoreErrors",)),
        lines("Store connections", {"{{instance}} abandoned": rate("madako_store_connections_replaced_total", by="instance", select=of_instance),
                                    "login {{outcome}}": rate("madako_store_authentications_total", by="outcome", select=of_instance)},
              "Abandoned connections, and logins if a password is configured. Good: 0, or no data, and login ok. "
              "Otherwise an etcd endpoint does not answer, or the password is wrong.", unit="ops",
              runbooks=("MadakoStoreErrors", "MadakoStoreRefuses")),
        lines("Latest seen revision", {"{{instance}}": of_instance("madako_store_revision")},
              "The store's latest revision that each instance has seen. Good: the same line for all instances.", least=None),
    ]


def process():
    return [
        lines("HTTP requests", {"{{endpoint}} {{code}}": rate("madako_http_requests_total", by="endpoint, code", select=of_instance)},
              "HTTP requests by status. Good: no 5xx.", unit="reqps", stacked=True, runbooks=("MadakoHttpErrors",)),
        lines("HTTP connections", {"{{instance}}": of_instance("madako_http_connections")}, "Open HTTP connections. Good: as many as clients."),
        lines("CPU", {"{{instance}}": f"rate({of_instance('process_cpu_seconds_total')}[$__rate_interval])"},
              "CPU cores in use. Good: a few hundredths without load.", unit="none"),
        lines("Memory", {"{{instance}}": of_instance("process_resident_memory_bytes")},
              "Good: a flat line. A line that rises for days is a leak: report it.", unit="bytes"),
        lines("Open files", {"{{instance}}": f"{of_instance('process_open_fds')} / {of_instance('process_max_fds')}"},
              "Open files and connections as a share of the process limit. Good: far below 80 %.",
              unit="percentunit", steps=((GREEN, None), (YELLOW, 0.8)), runbooks=("MadakoOpenFiles",)),
        stat("Process start", {"{{instance}}": of_instance("process_start_time_seconds") + " * 1000"},
             "Start time of each process.", unit="dateTimeFromNow", width=8, height=8, spark=False),
    ]
