"""What the relay counts, and the text that Prometheus scrapes. One event loop writes and reads it."""

from dataclasses import dataclass, field

PREFIX = "share_coordinator_relay_"
DESTINATIONS = ("broker", "coordinator")


@dataclass
class RelayMetrics:
    """Counters since the start, and what is there now."""

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

    def refuse(self, reason: str) -> None:
        """Count a connection that was closed for a reason of ours."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def exposition(self) -> str:
        """Return all of it in Prometheus' text format 0.0.4."""
        families = (
            ("connections_accepted_total", "counter", "Connections that came.", {"": self.accepted}),
            (
                "connections_undecided",
                "gauge",
                "Connections that have not said yet who they are.",
                {"": self.undecided},
            ),
            ("connections", "gauge", "Open connections by where they go.", _series("destination", self.open)),
            (
                "connections_decided_total",
                "counter",
                "Connections by where they went.",
                _series("destination", self.decided),
            ),
            (
                "connections_refused_total",
                "counter",
                "Connections that the relay closed, by reason.",
                _series("reason", self.refused),
            ),
            (
                "connect_failures_total",
                "counter",
                "Attempts to connect that failed.",
                _series("destination", self.failed_connects),
            ),
            (
                "sent_bytes_total",
                "counter",
                "Bytes from peers, by where they went.",
                _series("destination", self.bytes_to),
            ),
            (
                "received_bytes_total",
                "counter",
                "Bytes for peers, by where they came from.",
                _series("destination", self.bytes_from),
            ),
            (
                "connections_waiting_for_coordinator",
                "gauge",
                "Persisters that are held because the coordinator cannot be reached.",
                {"": self.awaiting_coordinator},
            ),
            (
                "reauthentications_total",
                "counter",
                "Persisters that authenticated again on an open connection.",
                {"": self.reauthentications},
            ),
        )
        lines = []
        for name, kind, meaning, samples in families:
            lines += [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{labels} {value}" for labels, value in samples.items()]
        return "\n".join(lines) + "\n"


def _series(label: str, values: dict[str, int]) -> dict[str, int]:
    return {f'{{{label}="{value}"}}': count for value, count in sorted(values.items())}
