"""Metrics of the relay and their Prometheus exposition.

Only the thread of the event loop may access the metrics.
"""

from collections import Counter
from dataclasses import dataclass, field

PREFIX = "share_coordinator_relay_"
DESTINATIONS = ("broker", "coordinator")


# For each metric family: attribute of `RelayMetrics`, name, label (or ""), and help text.
_FAMILIES = (
    ("accepted", "connections_accepted_total", "", "Accepted connections."),
    ("undecided", "connections_undecided", "", "Connections whose destination is not chosen yet."),
    ("open", "connections", "destination", "Open connections by destination."),
    ("decided", "connections_decided_total", "destination", "Connections by chosen destination."),
    ("refused", "connections_refused_total", "reason", "Connections that the relay refused or closed."),
    ("failed_connects", "connect_failures_total", "destination", "Failed connection attempts."),
    ("bytes_to", "sent_bytes_total", "destination", "Bytes forwarded from peers."),
    ("bytes_from", "received_bytes_total", "destination", "Bytes forwarded to peers, by their source."),
    (
        "awaiting_coordinator",
        "connections_waiting_for_coordinator",
        "",
        "Persister connections waiting for the coordinator to become reachable.",
    ),
    ("reauthentications", "reauthentications_total", "", "Re-authentications on an open connection."),
)


@dataclass
class RelayMetrics:
    """Counters since the start, and gauges."""

    accepted: int = 0
    undecided: int = 0
    open: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    decided: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    refused: Counter[str] = field(default_factory=Counter)
    failed_connects: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    bytes_to: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    bytes_from: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    awaiting_coordinator: int = 0
    reauthentications: int = 0

    def exposition(self) -> str:
        lines = []
        for attribute, name, label, meaning in _FAMILIES:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}"]
            value: int | dict[str, int] = getattr(self, attribute)
            if isinstance(value, int):
                lines.append(f"{PREFIX}{name} {value}")
            else:
                lines += [f'{PREFIX}{name}{{{label}="{each}"}} {value[each]}' for each in sorted(value)]
        return "\n".join(lines) + "\n"
