"""Classes and codecs of Kafka messages: one module for each API, record type and header.

`APIS` lists the APIs that a coordinator serves; only brokers serve the others. One class covers all versions
of a message; the functions that encode and decode it take the version as an argument.

Generated from the schemas by ``python -m protocol.codegen``; do not edit.
"""

from types import ModuleType
from typing import NamedTuple

from protocol.errors import UnsupportedVersionError
from protocol.messages import (
    alter_share_group_offsets,
    api_versions,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    fetch,
    find_coordinator,
    heartbeat,
    initialize_share_group_state,
    list_groups,
    metadata,
    produce,
    read_share_group_state,
    read_share_group_state_summary,
    request_header,
    response_header,
    sasl_authenticate,
    sasl_handshake,
    share_group_describe,
    share_snapshot,
    share_update,
    write_share_group_state,
)

__all__ = [
    "APIS",
    "Api",
    "alter_share_group_offsets",
    "api_versions",
    "delete_share_group_offsets",
    "delete_share_group_state",
    "describe_share_group_offsets",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "initialize_share_group_state",
    "list_groups",
    "metadata",
    "produce",
    "read_share_group_state",
    "read_share_group_state_summary",
    "request_header",
    "request_header_version",
    "response_header",
    "response_header_version",
    "sasl_authenticate",
    "sasl_handshake",
    "share_group_describe",
    "share_snapshot",
    "share_update",
    "write_share_group_state",
]


class Api(NamedTuple):
    """An API: its codecs, its versions (both inclusive), and the first version with tagged fields."""

    name: str
    module: ModuleType
    min_version: int
    max_version: int
    # Above max_version if no version has tagged fields.
    flexible_version: int


APIS: dict[int, Api] = {
    10: Api("FindCoordinator", find_coordinator, 0, 6, 3),
    17: Api("SaslHandshake", sasl_handshake, 0, 1, 2),
    18: Api("ApiVersions", api_versions, 0, 4, 3),
    36: Api("SaslAuthenticate", sasl_authenticate, 0, 2, 2),
    83: Api("InitializeShareGroupState", initialize_share_group_state, 0, 0, 0),
    84: Api("ReadShareGroupState", read_share_group_state, 0, 0, 0),
    85: Api("WriteShareGroupState", write_share_group_state, 0, 1, 0),
    86: Api("DeleteShareGroupState", delete_share_group_state, 0, 0, 0),
    87: Api("ReadShareGroupStateSummary", read_share_group_state_summary, 0, 1, 0),
}


def request_header_version(api_key: int, version: int) -> int:
    """Return the header version of a request, also for API versions that the coordinator does not serve."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {api_key}")
    return 2 if version >= api.flexible_version else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the header version of a response, which is always 0 for ApiVersions (KIP-511)."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {api_key}")
    return 1 if version >= api.flexible_version and api_key != 18 else 0
