"""Settings of ownership: the distribution of shards among several coordinators with one state topic.

If Kafka's consumers have a setting for group membership, its name and default are used.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from coordinator.config.fields import INT32_MAX, Milliseconds, SettingInfo
from coordinator.errors import ConfigError


class OwnershipSettings(BaseModel):
    """The settings of `Config` for ownership."""

    ownership: Annotated[
        Literal["static", "group"],
        SettingInfo(
            "ownership",
            "static: this process owns all shards. group: with log=kafka, the coordinators of "
            "group.id share the shards and take over from each other.",
        ),
    ] = "static"
    group_id: Annotated[
        str,
        Field(min_length=1, max_length=249),
        SettingInfo(
            "group.id",
            "With ownership=group: the Kafka group of the coordinators of one state topic.",
            "the name of a group",
        ),
    ] = "share-coordinator"
    group_instance_id: Annotated[
        str,
        Field(max_length=249),
        SettingInfo(
            "group.instance.id",
            "With ownership=group: a unique name that stays the same after a restart, such as the "
            "pod's. A restarted coordinator then gets its shards back at once, not after "
            "session.timeout.ms.",
            "a name",
        ),
    ] = ""
    broker_id: Annotated[
        int,
        Field(ge=-1, le=INT32_MAX),
        SettingInfo(
            "broker.id",
            "With ownership=group: the id of the broker on the same host, -1 for none. The "
            "coordinator prefers shards whose state partitions that broker leads.",
        ),
    ] = -1
    forwarding: Annotated[
        Literal["auto", "always", "never"],
        SettingInfo(
            "forwarding",
            "With ownership=group: whether requests for shards of other coordinators are forwarded. "
            "auto: while the cluster has the topic __share_group_state, whose leaders brokers then "
            "use without FindCoordinator. Otherwise the response is NOT_COORDINATOR.",
        ),
    ] = "auto"
    session_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "session.timeout.ms",
            "With ownership=group: a coordinator without a heartbeat for this time loses its shards. "
            "At least the brokers' group.min.session.timeout.ms (6000). Kafka's default for consumers "
            "is 45000.",
        ),
    ] = 10_000
    heartbeat_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "heartbeat.interval.ms",
            "With ownership=group: the interval of heartbeats. Kafka's default for consumers is 3000.",
        ),
    ] = 1_000
    rebalance_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "rebalance.timeout.ms",
            "With ownership=group: a coordinator that joins a rebalance later is left out. The others "
            "serve meanwhile.",
        ),
    ] = 10_000

    def check_ownership(self, log: str) -> None:
        """Raise ConfigError if the settings are inconsistent."""
        if self.ownership != "group":
            return
        if log != "kafka":
            raise ConfigError("ownership", "group", f"static with log={log}, which belongs to one process")
        if 3 * self.heartbeat_interval_ms > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms",
                str(self.heartbeat_interval_ms),
                f"at most a third of session.timeout.ms ({self.session_timeout_ms})",
            )
