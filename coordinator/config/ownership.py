"""The settings of ownership: who has which shards, where several coordinators share one topic.

Names and defaults of the membership are those of Kafka's consumers where these have them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from coordinator.config.fields import INT32_MAX, Milliseconds, SettingInfo
from coordinator.errors import ConfigError


class OwnershipSettings(BaseModel):
    """The part of `Config` that concerns ownership."""

    ownership: Annotated[
        Literal["static", "group"],
        SettingInfo(
            "ownership",
            "static: this process owns all shards. group: with log=kafka, coordinators that join group.id "
            "share them, and take over from each other.",
        ),
    ] = "static"
    group_id: Annotated[
        str,
        Field(min_length=1, max_length=249),
        SettingInfo(
            "group.id",
            "With ownership=group: the Kafka group that the coordinators of one state topic join.",
            "the name of a group",
        ),
    ] = "share-coordinator"
    group_instance_id: Annotated[
        str,
        Field(max_length=249),
        SettingInfo(
            "group.instance.id",
            "With ownership=group: the name of this coordinator's place, which no other one has and which it "
            "keeps over a restart, as the name of a pod. One that was killed and is started again then gets "
            "its shards back at once, not after session.timeout.ms. Empty: none.",
            "a name",
        ),
    ] = ""
    broker_id: Annotated[
        int,
        Field(ge=-1, le=INT32_MAX),
        SettingInfo(
            "broker.id",
            "With ownership=group: the id of the broker that this coordinator runs beside, -1 for none. It "
            "gets shards whose partitions that broker leads, where that costs no balance.",
        ),
    ] = -1
    forwarding: Annotated[
        Literal["auto", "always", "never"],
        SettingInfo(
            "forwarding",
            "With ownership=group: whether a request for a shard of another coordinator is carried to it. "
            "auto: while the cluster has Kafka's own topic __share_group_state, whose leaders brokers go by "
            "without asking who the coordinator is. Where it is not, the answer is NOT_COORDINATOR.",
        ),
    ] = "auto"
    session_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "session.timeout.ms",
            "With ownership=group: a coordinator that Kafka has not heard of for so long loses its shards to "
            "the others. Brokers allow group.min.session.timeout.ms (6000) and more. Kafka's default for "
            "consumers is 45000.",
        ),
    ] = 10_000
    heartbeat_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "heartbeat.interval.ms",
            "With ownership=group: how often Kafka hears of this coordinator. Kafka's default for consumers "
            "is 3000.",
        ),
    ] = 1_000
    rebalance_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "rebalance.timeout.ms",
            "With ownership=group: a coordinator that takes longer to join a rebalance is left out of it. "
            "The others serve on meanwhile.",
        ),
    ] = 10_000

    def check_ownership(self, log: str) -> None:
        """Raise ConfigError if the settings do not go together."""
        if self.ownership != "group":
            return
        if log != "kafka":
            raise ConfigError(
                "ownership", "group", f"static with log={log}, which one process has for itself"
            )
        if 3 * self.heartbeat_interval_ms > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms",
                str(self.heartbeat_interval_ms),
                f"at most a third of session.timeout.ms ({self.session_timeout_ms})",
            )
