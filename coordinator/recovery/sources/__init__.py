"""The sources of records.

`base` defines the interface of a source. The prefix of the option --from selects the source.
"""

from coordinator.client import ClientSecurity
from coordinator.errors import ConfigError
from coordinator.recovery.sources.base import LogCut, LogRange, ReadPlan, Source

FORMS = "kafka:TOPIC, segments:DIR, journal:DIR or archive:DIR"

__all__ = ["FORMS", "LogCut", "LogRange", "ReadPlan", "Source", "open_source"]


def open_source(
    text: str,
    *,
    bootstrap_servers: str = "",
    security: ClientSecurity | None = None,
    request_timeout_s: float = 10.0,
) -> Source:
    """Return the source for the value of the option --from; no file or connection is opened yet.

    Raises ConfigError for an unknown source or a missing option.
    """
    kind, colon, where = text.partition(":")
    if colon and where:
        match kind:
            case "kafka":
                from coordinator.recovery.sources.topic import TopicSource

                if not bootstrap_servers:
                    raise ConfigError("--bootstrap-servers", "", f"HOST:PORT of a broker, to read {text}")
                return TopicSource(where, bootstrap_servers, security or ClientSecurity(), request_timeout_s)
            case "segments":
                from coordinator.recovery.sources.segments import SegmentSource

                return SegmentSource(where)
            case "journal":
                from coordinator.recovery.sources.journal import JournalSource

                return JournalSource(where)
            case "archive":
                from coordinator.recovery.sources.archive import ArchiveSource

                return ArchiveSource(where)
    raise ConfigError("--from", text, FORMS)
