"""Types for the fields of `Config`: addresses, ranges, and the public name of a setting."""

from pathlib import Path
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

INT32_MAX = 2**31 - 1
# Printed instead of a secret value.
MASK = "********"
WILDCARD_HOSTS = ("0.0.0.0", "::", "*")


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


class SettingInfo(NamedTuple):
    """Public name, meaning and, for texts, allowed values of a field of `Config`.

    The value of a secret is never printed.
    """

    name: str
    meaning: str
    allowed: str = "a text"
    secret: bool = False


def _parse_host_port(value: object) -> object:
    return HostPort.parse(value) if isinstance(value, str) else value


def _check_path(value: object) -> object:
    if value == "":
        raise ValueError(value)
    return value


def is_http_url(text: str) -> bool:
    """Return whether a text is an http or https URL with a host and a valid port."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def to_upper(value: object) -> object:
    """Convert a string to upper case; return any other value unchanged."""
    return value.upper() if isinstance(value, str) else value


Address = Annotated[HostPort, BeforeValidator(_parse_host_port)]
Folder = Annotated[Path, BeforeValidator(_check_path)]
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Milliseconds = Annotated[int, Field(ge=1, le=INT32_MAX)]
