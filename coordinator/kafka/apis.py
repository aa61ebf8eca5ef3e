"""APIs of brokers that aiokafka has no classes for, each in one version, of the library's own field types.

A field is a pair of name and type.  In a flexible version (KIP-482) each structure ends in tagged fields:
they are added here to what is described, and to the outermost structure of a request; within it each
structure is a tuple that ends in `{}`.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Schema, TaggedFields

Field = tuple[str, Any]

TEXT = CompactString("utf-8")

_TAGS: Field = ("tags", TaggedFields)
_UUID_BYTES = 16


class Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes."""
        assert len(value) == _UUID_BYTES
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read 16 bytes. Raises ValueError if there are fewer."""
        value = data.read(_UUID_BYTES)
        if len(value) != _UUID_BYTES:
            raise ValueError("buffer underrun in a uuid")
        return value


def struct_type(*fields: Field) -> Schema:
    """Return the type of a structure in a flexible version."""
    return Schema(*fields, _TAGS)


def struct_array_type(*fields: Field) -> CompactArray:
    """Return the type of an array of structures in a flexible version."""
    return CompactArray(*fields, _TAGS)


class Api:
    """One version of an API: makes requests to it, which a connection of aiokafka takes."""

    def __init__(
        self,
        name: str,
        key: int,
        version: int,
        *,
        request: Sequence[Field],
        response: Sequence[Field],
        is_flexible: bool = True,
    ) -> None:
        """Describe it as Kafka's message definitions do."""
        self._tags = (_TAGS,) if is_flexible else ()
        facts = {"API_KEY": key, "API_VERSION": version}
        response_facts = {**facts, "SCHEMA": Schema(*response, *self._tags)}
        request_facts = {
            **facts,
            "FLEXIBLE_VERSION": is_flexible,
            "RESPONSE_TYPE": type(f"{name}Response", (Response,), response_facts),
            "SCHEMA": Schema(*request, *self._tags),
        }
        self._request_type = type(f"{name}Request", (RequestStruct,), request_facts)

    def request(self, *values: Any) -> "ApiRequest":
        """Return a request with these values for its fields."""
        return ApiRequest(self._request_type, (*values, *({} for _ in self._tags)))


class ApiRequest(Request[RequestStruct]):  # type: ignore[misc]
    """A request in the one version that there is: `values` are those of its fields."""

    # Of each instance its own.
    API_KEY = -1

    def __init__(self, request_type: Any, values: tuple[Any, ...]) -> None:
        self.API_KEY = request_type.API_KEY
        self._CLASSES = (request_type,)
        self.values = values

    def build(self, request_struct_class: Any) -> Any:
        """Make the request."""
        return request_struct_class(*self.values)
