"""Settings on the command line: each has a flag, and `--set` accepts any name.

Typer does not know these flags and returns them unparsed. `coordinator.config` then checks whether each
setting exists and its value is allowed. For an unknown name, the error suggests the most similar setting.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coordinator.client import ClientSecurity
    from coordinator.config import Config, LoadedConfig

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A .properties file with settings.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting by its dotted name; may be repeated."),
]


# The name of a setting, with surrounding blanks.
_NAME = re.compile(r"\s*[\w.-]+\s*")

# Makes a typer command accept flags that only `coordinator.config` can check.
ANY_SETTING = {"allow_extra_args": True, "ignore_unknown_options": True}

COMMON_FLAGS = """
\b
Settings that are often given:
  --listen HOST:PORT     where brokers connect             [127.0.0.1:9095]
  --http HOST:PORT       health, metrics, API              [127.0.0.1:9096]
  --advertise HOST:PORT  the address returned to brokers        [as listen]
  --data-dir DIR         the directory of the journal                [data]
  --log memory|journal|kafka   where state is stored              [journal]
  --bootstrap-servers HOST:PORT,...   the cluster of --log kafka

Every other setting has a flag, too, such as --max-connections 500. share-coordinator config show lists them.
"""


def load_settings(
    extra: Sequence[str],
    file: Path | None,
    settings: Sequence[str] | None,
    defaults: Mapping[str, str] | None = None,
) -> "LoadedConfig":
    """Load the configuration from the flags of a command, the environment and the file.

    `extra` are the flags unknown to typer; `defaults` are the default settings of the command. Raises
    ConfigError.
    """
    from coordinator.config import load_config, printable_value
    from coordinator.errors import ConfigError

    flags: dict[str, str] = {}
    for name, text in (*parse_flags(extra), *parse_set_options(settings or ())):
        if name in flags:
            raise ConfigError(name, printable_value(name, text), "given only once")
        flags[name] = text
    return load_config(flags, os.environ, file, defaults)


def parse_flags(extra: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `--flag value` and `--flag=value`. Raises ConfigError for anything else."""
    from coordinator.config import printable_value
    from coordinator.errors import ConfigError

    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(extra):
        flag, equals, text = extra[at].partition("=")
        at += 1
        if not flag.startswith("--") or flag == "--":
            if pairs and printable_value(*pairs[-1]) != pairs[-1][1]:
                # Do not print this argument: it may be the rest of a secret that contains a blank.
                raise ConfigError(
                    pairs[-1][0], None, "followed by one value, in quotes if it contains blanks"
                )
            raise ConfigError(flag, printable_value(flag, text), "a flag, --NAME VALUE")
        if not equals:
            if at == len(extra):
                raise ConfigError(flag, None, "followed by a value")
            text = extra[at]
            at += 1
        pairs.append((flag, text))
    return pairs


def parse_set_options(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `name=value`. Raises ConfigError for anything else."""
    from coordinator.errors import ConfigError

    pairs = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            # The text after the name may be a secret.
            begun = _NAME.match(setting)
            raise ConfigError("--set", begun and begun[0], "NAME=VALUE")
        pairs.append((name.strip(), text.strip()))
    return pairs


HOW_TO_CONNECT = "How to connect to the coordinator: security.protocol, sasl.*, ssl.* in a .properties file."

# The client settings for a coordinator, if they differ from those for the cluster.
CoordinatorConfig = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-config",
        metavar="FILE",
        help=f"{HOW_TO_CONNECT} Default: as for the cluster.",
    ),
]


def load_security(file: Path | None, config: "Config") -> "ClientSecurity":
    """Return the security settings for connections to a coordinator: those of `file`, else those of `config`.

    Raises ConfigError.
    """
    from coordinator.config import load_config
    from coordinator.security.client_security import make_client_security

    if file is not None:
        config = load_config(file=file).config
    config.check_sasl_client()
    security = make_client_security(config)
    # Invalid files are reported before the command begins.
    security.tls_context()
    return security
