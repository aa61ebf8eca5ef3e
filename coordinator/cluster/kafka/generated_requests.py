"""Send the messages of `protocol.messages` on aiokafka connections; aiokafka has no classes for them.

An aiokafka connection calls four methods of a request: choose the version, return the header, encode the
request, and decode the response. All versions that are used here have tagged fields (KIP-482).
"""

from collections.abc import Mapping
from io import BytesIO
from types import ModuleType
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestHeader_v2, ResponseHeader_v1


class GeneratedRequest:
    """A request in one version: a module of `protocol.messages` and one of its messages."""

    def __init__(self, module: ModuleType, message: Any, version: int | None = None) -> None:
        """Prepare a request in `version`, by default the newest version of the schema."""
        self._module: Any = module
        self.message = message
        self.API_KEY: int = self._module.API_KEY
        self.API_VERSION: int = self._module.MAX_VERSION if version is None else version

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> "GeneratedRequest":
        """Return the request if a broker supports its version. Raises IncompatibleBrokerVersion."""
        lowest, highest = versions.get(self.API_KEY, (0, -1))
        if not lowest <= self.API_VERSION <= highest:
            raise IncompatibleBrokerVersion(
                f"version {self.API_VERSION} of API {self.API_KEY} ({type(self.message).__name__}) is not "
                f"among versions {lowest} to {highest}"
            )
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader_v2:
        return RequestHeader_v2(self, correlation_id=correlation_id, client_id=client_id)

    def encode(self) -> bytes:
        encoded: bytes = self._module.encode_request(self.message, self.API_VERSION)
        return encoded

    @staticmethod
    def parse_response_header(response: BytesIO) -> ResponseHeader_v1:
        return ResponseHeader_v1.decode(response)

    @property
    def RESPONSE_TYPE(self) -> "GeneratedRequest":
        """Return the decoder of the response: the request itself."""
        return self

    def decode(self, response: BytesIO) -> Any:
        return self._module.decode_response(response.getvalue(), response.tell(), self.API_VERSION)
