"""Render the reference of all settings as Markdown, for `share-coordinator config reference`."""

from coordinator.config.fields import INT32_MAX
from coordinator.config.settings import SETTINGS, Setting

_HEAD = """\
# Settings

This page is generated: `share-coordinator config reference > docs/configuration.md`.

Each setting has one name in three spellings:

| where | rule | example |
|---|---|---|
| `.properties` file (`--config FILE` or `SHARE_COORDINATOR_CONFIG`), `--set NAME=VALUE` | the name | \
`max.connections=500` |
| environment | `SHARE_COORDINATOR_`, then the name without `share.coordinator.` in capitals, \
dots as underscores | `SHARE_COORDINATOR_MAX_CONNECTIONS=500` |
| flag | `--`, then the name without `share.coordinator.`, dots as dashes | `--max-connections 500` |

Flags take precedence over the environment, then the file, then the defaults. `share-coordinator config show`
prints every value with its origin; `config check` validates them. The file has Java's properties syntax in
UTF-8. Unknown and duplicate names are errors.

Each heading below is a setting with its default. Without a range, a number is from 1 to 2147483647. A setting
with a secret has a variant `NAME.file`: the name of a file that contains it.
"""


def render_reference() -> str:
    """Return the text of the whole page with a final newline."""
    parts = [_HEAD, "\n## All settings\n"]
    for setting in SETTINGS:
        default = "" if setting.default == "as listen" else setting.default
        file = f" Or `{setting.name}.file`." if setting.secret else ""
        parts.append(
            f"\n### `{setting.name}={default}`\n\n{setting.meaning}{_allowed_values(setting)}{file}\n"
        )
    return "".join(parts)


def _allowed_values(setting: Setting) -> str:
    allowed = setting.allowed
    if setting.kind == "int":
        allowed = allowed.removeprefix("a whole number ").removesuffix(f" to {INT32_MAX}")
    if setting.kind == "address":
        allowed = "HOST:PORT"
    return "" if allowed in ("a text", "a file", "from 1") else f" Allowed: {allowed}."
