"""Metrics of the relay and their Prometheus exposition.

Only the thread of the event loop may access the metrics.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PREFIX = "share_coordinator_relay_"
DESTINATIONS = ("broker", "coordinator")


@dataclass
class RelayMetrics:
    """Counters since the start, and gauges."""

    accepted: int = 0
    undecided: int = 0
    open: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    decided: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    refused: dict[str, int] = field(default_factory=dict)
    failed_connects: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    bytes_to: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    bytes_from: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESTINATIONS, 0))
    awaiting_coordinator: int = 0
    reauthentications: int = 0

    def count_refusal(self, reason: str) -> None:
        """Count a connection that the relay refused."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def exposition(self) -> str:
        """Return all metrics in Prometheus text format 0.0.4."""
        lines = []
        for name, kind, meaning, samples in self._metric_families():
            lines += [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{labels} {value}" for labels, value in samples.items()]
        return "\n".join(lines) + "\n"

    def _metric_families(self) -> Iterable[tuple[str, str, str, Mapping[str, int]]]:
        """Return (name, type, help text, values by labels) of each metric family."""
        return (
            ("connections_accepted_total", "counter", "Accepted connections.", {"": self.accepted}),
            (
                "connections_undecided",
                "gauge",
                "Connections whose destination is not chosen yet.",
                {"": self.undecided},
            ),
            (
                "connections",
                "gauge",
                "Open connections by destination.",
                _label_values("destination", self.open),
            ),
            (
                "connections_decided_total",
                "counter",
                "Connections by chosen destination.",
                _label_values("destination", self.decided),
            ),
            (
                "connections_refused_total",
                "counter",
                "Connections refused or closed by the relay, by reason.",
                _label_values("reason", self.refused),
            ),
            (
                "connect_failures_total",
                "counter",
                "Failed connection attempts by destination.",
                _label_values("destination", self.failed_connects),
            ),
            (
                "sent_bytes_total",
                "counter",
                "Bytes forwarded from peers, by destination.",
                _label_values("destination", self.bytes_to),
            ),
            (
                "received_bytes_total",
                "counter",
                "Bytes forwarded to peers, by their source.",
                _label_values("destination", self.bytes_from),
            ),
            (
                "connections_waiting_for_coordinator",
                "gauge",
                "Persister connections waiting for the coordinator to become reachable.",
                {"": self.awaiting_coordinator},
            ),
            (
                "reauthentications_total",
                "counter",
                "Re-authentications of persisters on an open connection.",
                {"": self.reauthentications},
            ),
        )


def _label_values(label: str, values: dict[str, int]) -> dict[str, int]:
    return {f'{{{label}="{value}"}}': count for value, count in sorted(values.items())}
