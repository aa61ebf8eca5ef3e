"""Types for the fields of `Config`.

A field declares a setting: its type has the allowed values, and its docstring the meaning. The name of the
setting is the name of the field with dots instead of underscores, unless `named_field` gives another name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from coordinator.errors import ConfigError

INT32_MAX = 2**31 - 1
# Printed instead of a secret value.
MASK = "********"
WILDCARD_HOSTS = ("0.0.0.0", "::", "*")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class SettingGroup(BaseModel):
    """Base class of the groups of settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )


class AllowedValues(NamedTuple):
    """Describes the allowed values of a text setting, for documentation and error messages."""

    values: str


class SecretMark(NamedTuple):
    """Marks a setting whose value is never printed."""


def named_field(name: str, default: object) -> Any:
    """Return a field whose setting has another name than the field."""
    return Field(default, title=name)


class HostPort(NamedTuple):
    """Address of a socket. With port 0, the operating system chooses a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port`, or `[address]:port` for IPv6. Raises ValueError."""
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            # Refuse values in the format of Kafka's `listeners` (PLAINTEXT://host:port) and IPv6 addresses
            # without brackets.
            raise ValueError(text)
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(text)
        if not host.isprintable() or " " in host:
            raise ValueError(text)
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_http_url(text: str) -> bool:
    """Return whether a text is an http or https URL with a host and a valid port."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def require_values(settings: Mapping[str, str], reason: str) -> None:
    """Raise ConfigError with a reason for the first setting that is empty."""
    for name, value in settings.items():
        if not value:
            raise ConfigError(name, "", reason)


def _parse_host_port(value: object) -> object:
    return HostPort.parse(value) if isinstance(value, str) else value


def _check_path(value: object) -> object:
    if value == "":
        raise ValueError(value)
    return value


def _parse_addresses(text: str) -> str:
    return ",".join(str(HostPort.parse(address)) for address in text.split(",")) if text else text


def _check_topic_name(name: str) -> str:
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(name)
    return name


def _parse_mechanisms(text: str) -> str:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    if not set(names) <= set(MECHANISMS):
        raise ValueError(text)
    return ",".join(dict.fromkeys(names))


UPPER_CASE = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
_LOWER_CASE = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)

Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Milliseconds = Annotated[int, Field(ge=1, le=INT32_MAX)]
NonNegative = Annotated[int, Field(ge=0, le=INT32_MAX)]

Address = Annotated[HostPort, BeforeValidator(_parse_host_port)]
Addresses = Annotated[str, AllowedValues("HOST:PORT,HOST:PORT"), AfterValidator(_parse_addresses)]
HostName = Annotated[str, AllowedValues("the name of a host")]
Folder = Annotated[Path, BeforeValidator(_check_path)]
File = Annotated[str, AllowedValues("a file")]
TopicName = Annotated[
    str,
    AllowedValues("the name of a topic: letters, digits, dots, dashes and underscores"),
    AfterValidator(_check_topic_name),
]

Switch = Annotated[Literal["true", "false"], _LOWER_CASE]
Secret = Annotated[str, SecretMark(), Field(repr=False)]
SecretUrl = Annotated[Secret, AllowedValues("an http or https URL")]
SecurityProtocol = Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], UPPER_CASE]
SaslMechanism = Annotated[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"], UPPER_CASE]
Mechanisms = Annotated[
    str,
    AllowedValues(f"some of {', '.join(MECHANISMS)}, with commas between"),
    AfterValidator(_parse_mechanisms),
]
ClaimName = Annotated[str, AllowedValues("the name of a claim"), Field(min_length=1)]
ClientAuth = Annotated[Literal["none", "requested", "required"], _LOWER_CASE]
EndpointIdentification = Literal["https", "none"]
Principals = Annotated[str, AllowedValues("User:NAME;User:NAME")]
MappingRulesText = Annotated[
    str, AllowedValues("DEFAULT, or RULE:pattern/replacement/[LU], several with commas between")
]
