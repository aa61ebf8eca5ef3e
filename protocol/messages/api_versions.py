"""ApiVersions (API key 18), versions 0 to 4: request and response."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import IGNORABLE, Int16, Int32, Int64, Tag, Versions
from protocol.message_codec import api_codecs

API_KEY = 18
MIN_VERSION = 0
MAX_VERSION = 4
FLEXIBLE_VERSION = 3


class ApiVersionsRequest(Struct, gc=False):
    # The client library.
    client_software_name: Annotated[str, Versions(3), IGNORABLE] = ""
    # The version of the client library.
    client_software_version: Annotated[str, Versions(3), IGNORABLE] = ""


class ApiVersion(Struct, gc=False):
    api_key: Int16
    min_version: Int16
    # The last version, inclusive.
    max_version: Int16


class SupportedFeatureKey(Struct, gc=False):
    name: str = ""
    min_version: Int16 = 0
    # The last version, inclusive.
    max_version: Int16 = 0


class FinalizedFeatureKey(Struct, gc=False):
    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Struct, gc=False):
    error_code: Int16 = 0
    # The APIs that are served here.
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, Versions(1), IGNORABLE] = 0
    # The features that this node supports.
    supported_features: Annotated[list[SupportedFeatureKey], Versions(3), Tag(0), IGNORABLE] = []
    # Increases with each change of the finalized features; -1 if unknown.
    finalized_features_epoch: Annotated[Int64, Versions(3), Tag(1), IGNORABLE] = -1
    # The features that are finalized in the cluster.
    finalized_features: Annotated[list[FinalizedFeatureKey], Versions(3), Tag(2), IGNORABLE] = []
    # True if a KRaft controller is configured for a migration from ZooKeeper.
    zk_migration_ready: Annotated[bool, Versions(3), Tag(3), IGNORABLE] = False


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ApiVersionsRequest, ApiVersionsResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
