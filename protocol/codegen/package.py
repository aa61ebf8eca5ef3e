"""Generate all files of `protocol.messages`: one module for each API, and the table of APIs."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from protocol.codegen.module import api_or_record_name, module_name, write_module
from protocol.codegen.schema import Message, read_messages

SCHEMAS = Path(__file__).parent.parent / "schemas"
# Requests that only brokers answer.
BROKER_SCHEMAS = SCHEMAS / "brokers"
MESSAGES = Path(__file__).parent.parent / "messages"

_INIT = '''"""Classes and codecs of Kafka messages: one module for each API, record type and header.

`APIS` lists the APIs that a coordinator serves; only brokers serve the others. One class covers all versions
of a message; the functions that encode and decode it take the version as an argument.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from types import ModuleType
from typing import NamedTuple

from protocol.errors import UnsupportedVersionError
from protocol.messages import (
{imports}
)

__all__ = [
{exports}
]


class Api(NamedTuple):
    """An API: its codecs, its versions (both inclusive), and the first version with tagged fields."""

    name: str
    module: ModuleType
    min_version: int
    max_version: int
    # Above max_version if no version has tagged fields.
    flexible_version: int


APIS: dict[int, Api] = {{
{apis}
}}


def request_header_version(api_key: int, version: int) -> int:
    """Return the header version of a request, also for API versions that the coordinator does not serve."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {{api_key}}")
    return 2 if version >= api.flexible_version else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the header version of a response, which is always 0 for ApiVersions (KIP-511)."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {{api_key}}")
    return 1 if version >= api.flexible_version and api_key != {api_versions} else 0
'''


def write_package() -> dict[str, str]:
    """Return the source of every file of `protocol.messages`, by file name."""
    messages = sorted(read_messages(SCHEMAS), key=module_name)
    of_brokers = set(map(module_name, read_messages(BROKER_SCHEMAS)))
    files = {}
    apis = []
    for name, group in groupby(messages, key=module_name):
        members = list(group)
        files[f"{name}.py"] = write_module(members)
        if members[0].type == "request" and name not in of_brokers:
            apis.append(members[0])
    files["__init__.py"] = _write_init(files, apis)
    return files


def _write_init(files: Iterable[str], apis: list[Message]) -> str:
    modules = [name.removesuffix(".py") for name in files]
    exports = ["APIS", "Api", *sorted([*modules, "request_header_version", "response_header_version"])]
    rows = []
    for api in sorted(apis, key=lambda api: api.api_key or 0):
        has_flexible = api.flexible.first <= api.flexible.last
        flexible = api.flexible.first if has_flexible else api.versions.last + 1
        versions = f"{api.versions.first}, {api.versions.last}, {flexible}"
        row = f'"{api_or_record_name(api)}", {module_name(api)}, {versions}'
        rows.append(f"    {api.api_key}: Api({row}),")
    return _INIT.format(
        imports="\n".join(f"    {module}," for module in sorted(modules)),
        exports="\n".join(f'    "{name}",' for name in exports),
        apis="\n".join(rows),
        api_versions=next(api.api_key for api in apis if api_or_record_name(api) == "ApiVersions"),
    )
