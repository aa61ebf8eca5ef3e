"""All settings in one class: name, type, default, range and meaning of each.

`Config` is the frozen, validated configuration that the program uses. `SETTINGS` is the same table as data,
for the command line, the documentation and error messages. If Kafka has a setting, its name and default are
used. If a default intentionally differs, the meaning mentions the difference.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, model_validator
from pydantic.fields import FieldInfo

from coordinator.config.admin import HttpSettings
from coordinator.config.fields import (
    INT32_MAX,
    MASK,
    WILDCARD_HOSTS,
    AllowedValues,
    HostPort,
    SecretMark,
    SettingGroup,
)
from coordinator.config.groups import ExpirySettings, SignalSettings
from coordinator.config.kafka_log import KafkaLogSettings
from coordinator.config.listener_security import ListenerSecuritySettings
from coordinator.config.ownership import OwnershipSettings
from coordinator.config.relay import RelaySettings
from coordinator.config.server import ServerSettings
from coordinator.errors import ConfigError

# The node ids of a replica begin at node.id.first plus a hash. A large range makes collisions unlikely.
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
    def _complete_values(cls, values: object) -> object:
        """Let `advertise` default to `listen`, and move `http_ssl_*` etc. into groups."""
        if not isinstance(values, Mapping):
            return values
        complete = dict(values)
        if "listen" in complete:
            complete.setdefault("advertise", complete["listen"])
        for name, group in _setting_groups(cls):
            given = {field: complete.pop(f"{name}_{field}", None) for field in type(group).model_fields}
            given = {field: value for field, value in given.items() if value is not None}
            if given:
                complete[name] = {**group.model_dump(), **given}
        return complete

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


def _setting_groups(config: type[BaseModel]) -> list[tuple[str, SettingGroup]]:
    fields = config.model_fields.items()
    return [(name, field.default) for name, field in fields if isinstance(field.default, SettingGroup)]


class Setting(NamedTuple):
    """One row of the table of settings; `attribute` is the field name in `Config`, or `group.field`."""

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
        value = str(attrgetter(self.attribute)(config))
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
        return "text", next(
            (mark.values for mark in field.metadata if isinstance(mark, AllowedValues)), "a text"
        )
    assert annotation is int
    (low,) = (mark.ge for mark in field.metadata if isinstance(mark, Ge))
    (high,) = (mark.le for mark in field.metadata if isinstance(mark, Le))
    return "int", f"a whole number from {low} to {high}"


def _make_settings(config: type[BaseModel]) -> Iterator[Setting]:
    groups = dict(_setting_groups(config))
    for attribute, field in config.model_fields.items():
        name = field.title or attribute.replace("_", ".")
        if attribute not in groups:
            yield _make_setting(attribute, name, field, field.default, field.description or "")
            continue
        # The meaning of the group is added to that of its first setting.
        more = f" {field.description}"
        for part, inner in type(groups[attribute]).model_fields.items():
            whole_name = f"{name}.{inner.title or part.replace('_', '.')}"
            default, meaning = getattr(groups[attribute], part), f"{inner.description}{more}"
            yield _make_setting(f"{attribute}.{part}", whole_name, inner, default, meaning)
            more = ""


def _make_setting(attribute: str, name: str, field: FieldInfo, default: object, meaning: str) -> Setting:
    kind, allowed = _type_and_allowed_values(field)
    return Setting(
        attribute,
        name,
        env_variable_name(name),
        flag_name(name),
        kind,
        "as listen" if attribute == "advertise" else str(default),
        allowed,
        " ".join(meaning.split()),
        any(isinstance(mark, SecretMark) for mark in field.metadata),
    )


SETTINGS = tuple(_make_settings(Config))
