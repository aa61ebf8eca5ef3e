"""Load the values of settings from flags, environment, `.properties` file and defaults.

The origin of each value is kept for error messages and `config show`. No input is ignored: an unknown name is
an error with the most similar known name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from coordinator.config.fields import MASK
from coordinator.config.kafka_settings import EQUIVALENT_SETTINGS, SETTINGS_WITHOUT_EQUIVALENT
from coordinator.config.properties import parse_properties
from coordinator.config.settings import SETTINGS, Config, env_variable_name, flag_name
from coordinator.errors import ConfigError

ENV_PREFIX = "SHARE_COORDINATOR_"
CONFIG_FILE_ENV = ENV_PREFIX + "CONFIG"

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_ATTRIBUTE = {setting.attribute: setting for setting in SETTINGS}
_BY_FILE_NAME = {setting.name + ".file": setting for setting in SETTINGS if setting.secret}
_SECRETS = {setting.name for setting in SETTINGS if setting.secret}
_NAMES = (*_BY_NAME, *_BY_FILE_NAME)
_NAME_OF_ENV = {env_variable_name(name): name for name in _NAMES}
_NAME_OF_FLAG = {flag_name(name): name for name in _NAMES}

# Environment variables that have the prefix of settings but are not settings. The command line or the tests
# read these variables.
_OTHER_ENV = {
    CONFIG_FILE_ENV,
    *(ENV_PREFIX + name for name in ("REQUIRE_ALL", "TRACEBACK", "PURE_PYTHON")),
    *(ENV_PREFIX + name for name in ("URL", "TOKEN_FILE", "CA", "CERT", "KEY")),
}

# Kubernetes sets variables of this form in every pod that can use a Service named share-coordinator or
# share-coordinator-*.
_SERVICE_LINK = re.compile(
    ENV_PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and the origin of each value by setting name."""

    config: Config
    origins: Mapping[str, str]


@dataclass(frozen=True)
class _SettingValue:
    text: str
    origin: str


def load_config(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load the configuration; flags override the environment, the environment overrides the file.

    `flags` maps flags (`--max-connections`) or dotted names (from `--set`) to strings. `environ` is the whole
    environment. `defaults` maps dotted names to the defaults of a command. The file is `file`, else the path
    in SHARE_COORDINATOR_CONFIG, else none. Raises ConfigError for the first invalid value; its text is one
    line.
    """
    environ = environ or {}
    if file is None and environ.get(CONFIG_FILE_ENV):
        file = Path(environ[CONFIG_FILE_ENV])
    values = {
        **{name: _SettingValue(text, "default of the command") for name, text in (defaults or {}).items()},
        **(_read_file(file) if file is not None else {}),
        **_read_environment(environ),
        **_read_flags(flags or {}),
    }
    _check_for_nul(values)
    values = _read_secret_files(values)
    _check_for_nul(values)
    origins = {name: values[name].origin if name in values else "default" for name in _BY_NAME}
    return LoadedConfig(_make_config(values), origins)


def printable_value(given: str, text: str) -> str | None:
    """Return a value for an error message; `given` is the setting's name in any spelling.

    Returns None for an unknown name, because its value may be a secret, for example of a Kafka setting.
    """
    name = _NAME_OF_ENV.get(given) or _NAME_OF_FLAG.get(given) or given
    if name not in _NAMES:
        return None
    return MASK if name in _SECRETS and text else text


def _invalid_value_error(name: str, value: _SettingValue, allowed: str) -> ConfigError:
    return ConfigError(name, printable_value(name, value.text), f"{allowed} ({value.origin})")


def _check_for_nul(values: Mapping[str, _SettingValue]) -> None:
    for name, value in values.items():
        # No path, address or name may contain NUL; system calls would raise ValueError.
        if "\0" in value.text:
            raise _invalid_value_error(name, value, "text without NUL")


def _read_flags(flags: Mapping[str, str]) -> dict[str, _SettingValue]:
    values: dict[str, _SettingValue] = {}
    for given, text in flags.items():
        name = _NAME_OF_FLAG.get(given, given)
        origin = f"flag {given}" if given.startswith("--") else f"flag --set {given}"
        if name not in _NAMES:
            raise _unknown_setting_error(given, origin, _NAME_OF_FLAG if given.startswith("--") else _NAMES)
        if name in values:
            allowed = f"given once, not by {values[name].origin} and {origin}"
            raise ConfigError(name, printable_value(name, text), allowed)
        values[name] = _SettingValue(text, origin)
    return values


def _read_environment(environ: Mapping[str, str]) -> dict[str, _SettingValue]:
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _OTHER_ENV or _SERVICE_LINK.fullmatch(variable):
            continue
        # A compose file passes unset variables as empty strings.
        if not text.strip():
            continue
        if variable not in _NAME_OF_ENV:
            raise _unknown_setting_error(variable, "environment", _NAME_OF_ENV)
        values[_NAME_OF_ENV[variable]] = _SettingValue(text.strip(), f"environment {variable}")
    return values


def _read_file(path: Path) -> dict[str, _SettingValue]:
    try:
        entries = parse_properties(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError("--config", str(path), f"a readable file ({error.strerror})") from None
    except ValueError as error:
        # ValueError includes its subclass UnicodeDecodeError.
        raise ConfigError("--config", str(path), f"a UTF-8 file of name=value lines ({error})") from None
    values = {}
    for name, text, line in entries:
        origin = f"{path}:{line}"
        if name not in _NAMES:
            raise _unknown_setting_error(name, origin, _NAMES)
        values[name] = _SettingValue(text.strip(), origin)
    return values


def _read_secret_files(values: Mapping[str, _SettingValue]) -> dict[str, _SettingValue]:
    """Replace settings that name a file by its content: `sasl.password.file` sets `sasl.password`."""
    whole = {name: value for name, value in values.items() if name not in _BY_FILE_NAME}
    for name, setting in _BY_FILE_NAME.items():
        if name not in values:
            continue
        given = values[name]
        if setting.name in values:
            raise _invalid_value_error(name, given, f"omitted if {setting.name} is given")
        try:
            # Text editors end a file with a newline, which is not part of the secret.
            text = Path(given.text).read_text("utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
            raise _invalid_value_error(name, given, f"a readable file: {reason}") from None
        whole[setting.name] = _SettingValue(text, f"{given.text}, {given.origin}")
    return whole


def _unknown_setting_error(given: str, origin: str, known: Iterable[str]) -> ConfigError:
    if given in SETTINGS_WITHOUT_EQUIVALENT:
        return ConfigError(given, None, f"omitted: it would have no effect here ({origin})")
    nearest = EQUIVALENT_SETTINGS.get(given)
    if nearest is None:
        nearest = next(iter(get_close_matches(given, list(known), n=1, cutoff=0.6)), None)
    advice = f"did you mean {nearest}?" if nearest else "share-coordinator config show lists them all"
    return ConfigError(given, None, f"a known setting; {advice} ({origin})")


def _make_config(values: Mapping[str, _SettingValue]) -> Config:
    try:
        return Config.model_validate(
            {_BY_NAME[name].attribute.replace(".", "_"): value.text for name, value in values.items()}
        )
    except ValidationError as error:
        # Replace pydantic's message, which contains Python types, by the allowed values of the setting.
        field, *rest = map(str, error.errors()[0]["loc"])
        setting = _BY_ATTRIBUTE.get(field) or _BY_ATTRIBUTE[f"{field}.{rest[0]}"]
        raise _invalid_value_error(setting.name, values[setting.name], setting.allowed) from None
    except ConfigError as error:
        # Some settings are inconsistent. The setting that the error names may be unset, and thus have its
        # default, or be missing.
        origin = values[error.setting].origin if error.setting in values else "default"
        is_missing = error.value == "" and error.setting not in values
        allowed = error.allowed if is_missing else f"{error.allowed} ({origin})"
        raise ConfigError(error.setting, error.value, allowed) from None
