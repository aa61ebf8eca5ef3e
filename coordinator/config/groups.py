"""Settings for share groups: the expiration of their state, and the signals about their problems."""

from typing import Annotated

from pydantic import Field

from coordinator.config.fields import (
    INT32_MAX,
    MASK,
    Count,
    Milliseconds,
    NonNegative,
    SecretUrl,
    SettingGroup,
    is_http_url,
    named_field,
)
from coordinator.errors import ConfigError

_OFF = -1


class ExpirySettings(SettingGroup):
    """The settings of `Config` for expiration, similar to Kafka's settings for offset expiration."""

    state_retention_minutes: Annotated[int, Field(ge=-1, le=INT32_MAX)] = named_field(
        "share.coordinator.group.state.retention.minutes", -1
    )
    """With bootstrap.servers: how long the state of a topic is kept after its share group became empty or
    unsubscribed. -1: state never expires. Kafka's value for consumer groups is 10080, a week."""

    state_missing_grace_minutes: NonNegative = named_field(
        "share.coordinator.group.state.missing.grace.minutes", 60
    )
    """How long a topic or group must be missing in Kafka before its state is removed."""

    state_retention_check_interval_ms: Milliseconds = named_field(
        "share.coordinator.group.state.retention.check.interval.ms", 600_000
    )
    """How often expired state is searched and removed."""

    @property
    def can_state_expire(self) -> bool:
        return self.state_retention_minutes != _OFF

    def check_expiry(self) -> None:
        if self.state_retention_minutes == 0:
            raise ConfigError(
                "share.coordinator.group.state.retention.minutes", "0", "-1 (disabled) or at least 1"
            )


class SignalSettings(SettingGroup):
    """The settings of `Config` for share-group signals: thresholds, and the destination of events."""

    delivery_count_limit: Annotated[int, Field(ge=2, le=INT32_MAX)] = named_field(
        "signals.delivery.count.limit", 5
    )
    """The brokers' group.share.delivery.count.limit. A record with one delivery left is a poison record."""

    window_records: Count = named_field("signals.window.records", 2000)
    """The brokers' group.share.partition.max.record.locks: the size of the in-flight window."""

    stuck_seconds: Count = named_field("signals.stuck.seconds", 60)
    """A group is stuck if a start offset has not moved for this long although records wait."""

    signals_webhook_url: SecretUrl = ""
    """Each event (a group's problem began or ended) is sent to this URL as JSON with POST."""

    signals_events_topic: str = ""
    """Each event is also written to this existing topic of bootstrap.servers (key: group id, value: JSON)."""

    def check_signals(self, bootstrap_servers: str) -> None:
        if self.signals_events_topic and not bootstrap_servers:
            raise ConfigError(
                "signals.events.topic", self.signals_events_topic, "used with bootstrap.servers"
            )
        if self.signals_webhook_url and not is_http_url(self.signals_webhook_url):
            raise ConfigError("signals.webhook.url", MASK, "an http or https URL")
