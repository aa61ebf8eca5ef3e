"""Settings of share-group signals: thresholds, and the destination of events."""

from typing import Annotated

from pydantic import BaseModel, Field

from coordinator.config.fields import INT32_MAX, Count, SettingInfo, is_http_url
from coordinator.errors import ConfigError


class SignalSettings(BaseModel):
    """The settings of `Config` for share-group signals."""

    delivery_count_limit: Annotated[
        int,
        Field(ge=2, le=INT32_MAX),
        SettingInfo(
            "signals.delivery.count.limit",
            "The brokers' group.share.delivery.count.limit. A record with one delivery left is a "
            "poison record.",
        ),
    ] = 5
    window_records: Annotated[
        Count,
        SettingInfo(
            "signals.window.records",
            "The brokers' group.share.partition.max.record.locks: the size of the in-flight window.",
        ),
    ] = 2_000
    stuck_seconds: Annotated[
        Count,
        SettingInfo(
            "signals.stuck.seconds",
            "A group is stuck if a start offset has not moved for this long although records wait.",
        ),
    ] = 60
    signals_webhook_url: Annotated[
        str,
        SettingInfo(
            "signals.webhook.url",
            "Each event (a problem of a group began or ended) is sent to this URL as JSON with POST.",
            "an http or https URL",
        ),
    ] = ""

    signals_events_topic: Annotated[
        str,
        SettingInfo(
            "signals.events.topic",
            "Each event is also written to this existing topic of bootstrap.servers, with the group "
            "id as key and JSON as value.",
        ),
    ] = ""

    def check_signals(self, bootstrap_servers: str) -> None:
        """Raise ConfigError for an invalid destination of events."""
        if self.signals_events_topic and not bootstrap_servers:
            raise ConfigError(
                "signals.events.topic", self.signals_events_topic, "used with bootstrap.servers"
            )
        if self.signals_webhook_url and not is_http_url(self.signals_webhook_url):
            raise ConfigError("signals.webhook.url", self.signals_webhook_url, "an http or https URL")
