"""Classes and codecs of Kafka messages: one module for each API, record type and header.

`APIS` lists the APIs that a coordinator serves; only brokers serve the others. One class covers all versions
of a message; the functions that encode and decode it take the version as an argument. The annotations of the
fields (`protocol.fields`) determine the codecs, and tests compare both with Kafka's schemas.
"""

from types import ModuleType
from typing import NamedTuple

from protocol.errors import UnsupportedVersionError
from protocol.messages import (
    api_versions,
    delete_share_group_state,
    find_coordinator,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    sasl_authenticate,
    sasl_handshake,
    write_share_group_state,
)


class Api(NamedTuple):
    """An API: its codecs, its versions (both inclusive), and the first version with tagged fields."""

    name: str
    module: ModuleType
    min_version: int
    max_version: int
    # The first version with tagged fields; above max_version if there is none.
    flexible_version: int


APIS: dict[int, Api] = {
    module.API_KEY: Api(name, module, module.MIN_VERSION, module.MAX_VERSION, module.FLEXIBLE_VERSION)
    for name, module in (
        ("FindCoordinator", find_coordinator),
        ("SaslHandshake", sasl_handshake),
        ("ApiVersions", api_versions),
        ("SaslAuthenticate", sasl_authenticate),
        ("InitializeShareGroupState", initialize_share_group_state),
        ("ReadShareGroupState", read_share_group_state),
        ("WriteShareGroupState", write_share_group_state),
        ("DeleteShareGroupState", delete_share_group_state),
        ("ReadShareGroupStateSummary", read_share_group_state_summary),
    )
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
    return 1 if version >= api.flexible_version and api_key != api_versions.API_KEY else 0
