"""Settings of state expiration, similar to Kafka's settings for offset expiration."""

from typing import Annotated

from pydantic import BaseModel, Field

from coordinator.config.fields import INT32_MAX, Milliseconds, SettingInfo
from coordinator.errors import ConfigError

_STATE = "share.coordinator.group.state."
_OFF = -1


class ExpirySettings(BaseModel):
    """The settings of `Config` for expiration."""

    state_retention_minutes: Annotated[
        int,
        Field(ge=_OFF, le=INT32_MAX),
        SettingInfo(
            _STATE + "retention.minutes",
            "With bootstrap.servers: how long the state of a topic is kept after its share group "
            "became empty or unsubscribed. -1: state never expires. Kafka's value for consumer groups "
            "is 10080, a week.",
        ),
    ] = _OFF
    state_missing_grace_minutes: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            _STATE + "missing.grace.minutes",
            "How long a topic or group must be missing in Kafka before its state is removed.",
        ),
    ] = 60
    state_retention_check_interval_ms: Annotated[
        Milliseconds,
        SettingInfo(
            _STATE + "retention.check.interval.ms",
            "How often expired state is searched and removed.",
        ),
    ] = 600_000

    @property
    def can_state_expire(self) -> bool:
        """Return whether state can expire."""
        return self.state_retention_minutes != _OFF

    def check_expiry(self) -> None:
        """Raise ConfigError if the retention time is 0."""
        if self.state_retention_minutes == 0:
            raise ConfigError(_STATE + "retention.minutes", "0", "-1 (disabled) or at least 1")
