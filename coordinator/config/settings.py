"""All settings in one class: name, type, default, range and meaning of each.

`Config` is the frozen, validated configuration that the program uses. `SETTINGS` is the same table as data,
for the command line, the documentation and error messages. If Kafka has a setting, its name and default are
used. If a default intentionally differs, the meaning mentions it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import model_validator
from pydantic.fields import FieldInfo

from coordinator.config.admin import HttpSettings
from coordinator.config.fields import INT32_MAX, MASK, WILDCARD_HOSTS, Allowed, HostPort, SecretMark
from coordinator.config.groups import ExpirySettings, SignalSettings
from coordinator.config.kafka_log import KafkaLogSettings
from coordinator.config.listener_security import ListenerSecuritySettings
from coordinator.config.ownership import OwnershipSettings
from coordinator.config.relay import RelaySettings
from coordinator.config.server import ServerSettings
from coordinator.errors import ConfigError

# The node ids of replicas are above the first by a hash. A large range makes collisions unlikely.
NODE_ID_FIRST_MAX_IN_GROUP = 2**30


class Config(
    # Pydantic lists the fields of the last class first.
    RelaySettings,
    SignalSettings,
    ExpirySettings,
    OwnershipSettings,
    KafkaLogSettings,
    HttpSettings,
    ListenerSecuritySettings,
    ServerSettings,
):
    """All settings of one coordinator process. Frozen: a change requires a restart.

    Raises pydantic.ValidationError for a value outside its range, and ConfigError for inconsistent values.
    """

    @model_validator(mode="before")
    @classmethod
    def _default_advertised_address(cls, values: object) -> object:
        if isinstance(values, Mapping) and "listen" in values and "advertise" not in values:
            return {**values, "advertise": values["listen"]}
        return values

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.advertise.host in WILDCARD_HOSTS:
            raise ConfigError("advertise", str(self.advertise), "an address, not a wildcard, for brokers")
        if self.log == "kafka":
            self.check_kafka_log()
        else:
            self.check_single_replica()
        if self.bootstrap_servers:
            self.check_sasl_client()
        self.check_ownership(self.log)
        self.check_expiry()
        self.check_http()
        self.check_signals(self.bootstrap_servers)
        self.check_listener_security(self.listen, forwards=self.ownership == "group")
        if self.queued_bytes_max < self.frame_bytes_max:
            raise ConfigError(
                "queued.max.request.bytes",
                str(self.queued_bytes_max),
                f"at least socket.request.max.bytes ({self.frame_bytes_max})",
            )
        self._check_node_ids()
        return self

    def _check_node_ids(self) -> None:
        most, why = INT32_MAX - self.node_ids + 1, "node.ids ids"
        if self.ownership == "group":
            most, why = NODE_ID_FIRST_MAX_IN_GROUP, "ownership=group"
        if self.node_id_first > most:
            raise ConfigError("node.id.first", str(self.node_id_first), f"at most {most} with {why}")


class Setting(NamedTuple):
    """One row of the table of settings; `attribute` is the field name in `Config`."""

    attribute: str
    name: str
    env: str
    flag: str
    kind: str
    default: str
    allowed: str
    meaning: str
    secret: bool

    def display_value(self, config: Config) -> str:
        """Return the setting's value as text; secrets are masked."""
        value = str(getattr(config, self.attribute))
        return MASK if self.secret and value else value


def env_variable_name(name: str) -> str:
    """Return a setting's environment variable: `max.connections` becomes SHARE_..._MAX_CONNECTIONS."""
    return "SHARE_COORDINATOR_" + name.removeprefix("share.coordinator.").replace(".", "_").upper()


def flag_name(name: str) -> str:
    """Return a setting's flag: `max.connections` becomes --max-connections."""
    return "--" + name.removeprefix("share.coordinator.").replace(".", "-")


def _type_and_allowed_values(field: FieldInfo) -> tuple[str, str]:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return "choice", f"{', '.join(choices[:-1])} or {choices[-1]}"
    if annotation is HostPort:
        return "address", "HOST:PORT, an IPv6 address in brackets, a port from 0 to 65535"
    if annotation is Path:
        return "path", "a folder"
    if annotation is str:
        return "text", next((mark.values for mark in field.metadata if isinstance(mark, Allowed)), "a text")
    assert annotation is int
    (low,) = (mark.ge for mark in field.metadata if isinstance(mark, Ge))
    (high,) = (mark.le for mark in field.metadata if isinstance(mark, Le))
    return "int", f"a whole number from {low} to {high}"


def _make_setting(attribute: str, field: FieldInfo) -> Setting:
    name = field.title or attribute.replace("_", ".")
    kind, allowed = _type_and_allowed_values(field)
    return Setting(
        attribute,
        name,
        env_variable_name(name),
        flag_name(name),
        kind,
        "as listen" if attribute == "advertise" else str(field.default),
        allowed,
        " ".join((field.description or "").split()),
        any(isinstance(mark, SecretMark) for mark in field.metadata),
    )


SETTINGS = tuple(_make_setting(attribute, field) for attribute, field in Config.model_fields.items())
