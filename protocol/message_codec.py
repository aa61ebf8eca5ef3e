"""Create the functions that encode and decode a message, from the annotations of its class.

`protocol.fields` defines the annotations.
"""

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from protocol import field_codecs as codecs
from protocol.fields import FixedSize, Marker, Tag, Versions
from protocol.struct_codecs import Array, MessageCodec, StructCodec, TaggedFields

M = TypeVar("M", bound=msgspec.Struct)
N = TypeVar("N", bound=msgspec.Struct)
M_co = TypeVar("M_co", bound=msgspec.Struct, covariant=True)
M_contra = TypeVar("M_contra", bound=msgspec.Struct, contravariant=True)


class RequestDecoder(Protocol[M_co]):
    """Decodes a request from `offset` to the end of `buf`."""

    def __call__(self, buf: bytes, offset: int, version: int, elements_max: int = ...) -> M_co:
        """Raises TooManyElementsError if the request has more than `elements_max` elements."""


class Decoder(Protocol[M_co]):
    """Decodes a response from `offset` to the end of `buf`."""

    def __call__(self, buf: bytes, offset: int, version: int) -> M_co:
        """Raises DecodeError."""


class Encoder(Protocol[M_contra]):
    """Encodes a request or response in a version."""

    def __call__(self, message: M_contra, version: int) -> bytes:
        """Raises EncodeError if a value has no wire form."""


def api_codecs(
    request: type[M], response: type[N], first_version: int, last_version: int, flexible_version: int
) -> tuple[RequestDecoder[M], Encoder[M], Decoder[N], Encoder[N]]:
    """Return the decoder and the encoder of a request, and those of its response."""
    versions = (first_version, last_version, flexible_version)
    requests, responses = _message_codec(request, *versions), _message_codec(response, *versions)
    return requests.decode_request, requests.encode, responses.decode_response, responses.encode


def record_codec(
    record: type[M], version: int, is_flexible: bool
) -> tuple[Callable[[bytes, int], M], Callable[[M], bytes]]:
    """Return the decoder and the encoder of the key or value of a record."""
    codec = _message_codec(record, version, version, version + (not is_flexible))
    return codec.decode_record, codec.encode_record


def header_codec(
    header: type[M], first_version: int, last_version: int, flexible_version: int
) -> tuple[Callable[[bytes, int, int], tuple[M, int]], Encoder[M]]:
    """Return the decoder of a header, which also returns the position after it, and the encoder."""
    codec = _message_codec(header, first_version, last_version, flexible_version)
    return codec.decode_header, codec.encode


def _message_codec(
    message: type[msgspec.Struct], first_version: int, last_version: int, flexible_version: int
) -> MessageCodec:
    return MessageCodec(
        message.__name__,
        {
            version: _VersionLayout(message.__name__, version, version >= flexible_version).struct_codec(
                message
            )
            for version in range(first_version, last_version + 1)
        },
    )


class _Field(NamedTuple):
    """A field in one version. `format` is its format character of `struct` if it has a fixed size."""

    name: str
    type: Any
    format: str
    default: Any
    is_missing: bool
    is_ignorable: bool
    is_legacy: bool
    tag: int | None

    @property
    def is_untagged(self) -> bool:
        """Whether the struct has bytes of the field outside the tagged-field section."""
        return self.tag is None and not self.is_missing


class _VersionLayout(NamedTuple):
    """The encoding of a message in one version."""

    message: str
    version: int
    is_flexible: bool

    def struct_codec(self, struct: type[msgspec.Struct]) -> StructCodec:
        """Return the codec of the message, or of a struct in it."""
        fields = [self._make_field(info) for info in msgspec.structs.fields(struct)]
        tagged = {
            field.tag: (index, self._make_field_codec(field), field.default)
            for index, field in enumerate(fields)
            if field.tag is not None and not field.is_missing
        }
        missing = [
            (index, field.name, field.default)
            for index, field in enumerate(fields)
            if field.is_missing and not field.is_ignorable
        ]
        while fields and fields[-1].is_missing:
            fields.pop()
        return StructCodec(
            struct,
            f"version {self.version} of {self.message}",
            self._make_field_codecs(fields),
            missing,
            TaggedFields(tagged) if tagged else None,
            self.is_flexible,
        )

    def _make_field_codecs(self, fields: list[_Field]) -> list[codecs.FieldCodec]:
        """Return the codecs of the fields in order; adjacent fields of fixed size share one codec."""
        parts: list[codecs.FieldCodec] = []
        run: list[_Field] = []
        for index, field in enumerate(fields):
            codec: codecs.FieldCodec
            first = index
            if not field.is_untagged:
                codec = codecs.DefaultValue(field.default)
            elif not field.format:
                codec = self._make_field_codec(field)
            else:
                run.append(field)
                if any(
                    following.format and following.is_untagged for following in fields[index + 1 : index + 2]
                ):
                    continue
                first = index + 1 - len(run)
                codec = _make_fixed_fields(run)
                run = []
            codec.first, codec.last = first, index + 1
            parts.append(codec)
        return parts

    def _make_field(self, info: FieldInfo) -> _Field:
        metadata = _annotation_metadata(info.type)
        versions = next((each for each in metadata if isinstance(each, Versions)), Versions(0))
        tag = next((each.number for each in metadata if isinstance(each, Tag)), None)
        return _Field(
            name=info.name,
            type=info.type,
            format=_fixed_format(info.type),
            default=[] if info.default_factory is list else info.default,
            is_missing=not versions.first <= self.version <= versions.last,
            is_ignorable=Marker.IGNORABLE in metadata,
            is_legacy=Marker.LEGACY in metadata,
            tag=tag,
        )

    def _make_field_codec(self, field: _Field) -> codecs.FieldCodec:
        if field.format:
            return _make_fixed_fields([field])
        if Marker.STATE_BATCHES in _annotation_metadata(field.type):
            return codecs.StateBatches()
        return self._make_value_codec(field.type, self.is_flexible and not field.is_legacy)

    def _make_value_codec(self, annotation: Any, is_flexible: bool) -> codecs.FieldCodec:
        plain, is_nullable = _plain_type(annotation)
        if get_origin(plain) is list:
            (element,) = get_args(plain)
            integer = _fixed_format(element)
            inner = None if integer else self._make_value_codec(element, is_flexible)
            return Array(inner, integer, is_flexible, is_nullable)
        if plain is str or plain is bytes:
            text = codecs.CompactText if is_flexible else codecs.LegacyText
            return text(plain is str, is_nullable)
        return self.struct_codec(plain)


def _make_fixed_fields(fields: list[_Field]) -> codecs.FixedFields:
    uuids = [(index, field.name) for index, field in enumerate(fields) if field.format == "16s"]
    return codecs.FixedFields("".join(field.format for field in fields), uuids)


def _annotation_metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _fixed_format(annotation: Any) -> str:
    """Return the `struct` format of a type of fixed size; "" for other types."""
    plain, _ = _plain_type(annotation)
    if plain is bool:
        return "?"
    return next((each.format for each in _annotation_metadata(annotation) if isinstance(each, FixedSize)), "")


def _plain_type(annotation: Any) -> tuple[Any, bool]:
    """Return a type without annotations and ``| None``, and whether it may be null."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is UnionType:
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
        return annotation, True
    return annotation, False
