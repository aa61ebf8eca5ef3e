"""Settings of ownership: the distribution of shards among several coordinators with one state topic.

If Kafka's consumers have a setting for group membership, its name and default are used.
"""

from typing import Annotated, Literal

from pydantic import Field

from coordinator.config.fields import INT32_MAX, AllowedValues, Milliseconds, SettingGroup
from coordinator.errors import ConfigError


class OwnershipSettings(SettingGroup):
    """The settings of `Config` for ownership."""

    ownership: Literal["static", "group"] = "static"
    """static: this process owns all shards. group: with log=kafka, the coordinators of group.id share the
    shards and take over from each other."""

    group_id: Annotated[str, AllowedValues("the name of a group"), Field(min_length=1, max_length=249)] = (
        "share-coordinator"
    )
    """With ownership=group: the Kafka group of the coordinators of one state topic."""

    group_instance_id: Annotated[str, AllowedValues("a name"), Field(max_length=249)] = ""
    """With ownership=group: a unique name that stays the same after a restart, such as the name of the pod. A
    restarted coordinator then gets its shards back at once, not after session.timeout.ms."""

    broker_id: Annotated[int, Field(ge=-1, le=INT32_MAX)] = -1
    """With ownership=group: the id of the broker on the same host, -1 for none. The coordinator prefers
    shards whose state partitions that broker leads."""

    forwarding: Literal["auto", "always", "never"] = "auto"
    """With ownership=group: whether requests for shards of other coordinators are forwarded. auto: while the
    cluster has the topic __share_group_state, whose leaders brokers then use without FindCoordinator.
    Requests that are not forwarded get NOT_COORDINATOR."""

    session_timeout_ms: Milliseconds = 10_000
    """With ownership=group: a coordinator without a heartbeat for this time loses its shards. At least the
    brokers' group.min.session.timeout.ms (6000). Kafka's default for consumers is 45000."""

    heartbeat_interval_ms: Milliseconds = 1000
    """With ownership=group: the interval of heartbeats. Kafka's default for consumers is 3000."""

    rebalance_timeout_ms: Milliseconds = 10_000
    """With ownership=group: a coordinator that joins a rebalance later is left out. The others serve
    meanwhile."""

    def check_ownership(self, log: str) -> None:
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
