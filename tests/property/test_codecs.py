"""Compare the messages with the schemas and the wire model, for every version of every message."""

from collections.abc import Iterator
from importlib import import_module

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import DecodeError, EncodeError
from tests.property.example_settings import example_settings
from tests.property.message_strategies import invalid_values, large_value, message_values, unknown_tags
from tests.property.wire_model import MessageCodec, all_cases, case_id, encode_reference, message_class
from tests.schemas.parser import Message, Struct, all_messages

Case = tuple[Message, int]

every_case = pytest.mark.parametrize("case", all_cases(), ids=case_id)
every_flexible_case = pytest.mark.parametrize(
    "case", [case for case in all_cases() if case[1] in case[0].flexible], ids=case_id
)


@every_case
@example_settings(40)
@given(data=st.data())
def test_encoded_value_equals_the_model_and_is_decoded(case: Case, data: st.DataObject) -> None:
    message, version = case
    codec = MessageCodec(message, version)
    value = data.draw(message_values(message, version))
    encoded = codec.encode(value)
    assert encoded == encode_reference(message, value, version)
    assert codec.decode(encoded) == value
    assert codec.decode(b"\xff\xff" + encoded, 2) == value


@every_case
def test_lengths_around_the_varint_limits_are_encoded(case: Case) -> None:
    message, version = case
    codec = MessageCodec(message, version)
    for count in (126, 127, 128):
        value = large_value(message, version, count)
        encoded = codec.encode(value)
        assert encoded == encode_reference(message, value, version), count
        assert codec.decode(encoded) == value, count


@every_flexible_case
@example_settings(20)
@given(data=st.data())
def test_unknown_tags_are_skipped(case: Case, data: st.DataObject) -> None:
    message, version = case
    value = data.draw(message_values(message, version))
    tagged = encode_reference(message, value, version, lambda: data.draw(unknown_tags))
    assert MessageCodec(message, version).decode(tagged) == value


@every_case
@example_settings(8)
@given(data=st.data())
def test_truncated_message_is_a_decode_error(case: Case, data: st.DataObject) -> None:
    message, version = case
    codec = MessageCodec(message, version)
    value = data.draw(message_values(message, version))
    encoded = encode_reference(message, value, version, lambda: data.draw(unknown_tags))
    for end in range(len(encoded)):
        with pytest.raises(DecodeError):
            codec.decode(encoded[:end])


@every_case
@example_settings(8)
@given(data=st.data(), trailing=st.binary(min_size=1, max_size=3))
def test_trailing_bytes_are_a_decode_error(case: Case, data: st.DataObject, trailing: bytes) -> None:
    message, version = case
    codec = MessageCodec(message, version)
    value = data.draw(message_values(message, version))
    encoded = codec.encode(value)
    if message.type == "header":
        # A body may follow a header.
        assert codec.decode(encoded + trailing) == value
        return
    with pytest.raises(DecodeError):
        codec.decode(encoded + trailing)


@every_case
def test_value_that_does_not_fit_is_an_encode_error(case: Case) -> None:
    message, version = case
    codec = MessageCodec(message, version)
    for unfit in invalid_values(message, version):
        with pytest.raises(EncodeError):
            codec.encode(unfit)


def struct_cases() -> Iterator[tuple[Message, Struct]]:
    """Yield every struct of every message that has a class."""
    for message in all_messages():
        structs = [message.body]
        while structs:
            struct = structs.pop()
            yield message, struct
            structs += [field.struct for field in struct.fields if field.struct and not field.is_packed]


def test_classes_have_the_fields_and_defaults_of_the_schemas() -> None:
    for message, struct in struct_cases():
        defined = {field.name: field for field in msgspec.structs.fields(message_class(message, struct))}
        assert [*defined] == [field.attribute for field in struct.fields]
        for field in struct.fields:
            default = defined[field.attribute].default
            if defined[field.attribute].default_factory is not msgspec.NODEFAULT:
                default = defined[field.attribute].default_factory()
            assert default in (msgspec.NODEFAULT, field.default_value), (struct.name, field.name)
            if field.default is not None:
                assert default == field.default_value, (struct.name, field.name)


def test_modules_have_the_api_keys_and_versions_of_the_schemas() -> None:
    for message in all_messages():
        if message.type in ("request", "response"):
            module = import_module(f"protocol.messages.{message.module}")
            constants = module.API_KEY, module.MIN_VERSION, module.MAX_VERSION
            assert constants == (message.api_key, message.versions.first, message.versions.last)


def test_field_missing_in_a_version_is_encoded_only_if_ignorable() -> None:
    for message, version in all_cases():
        for field in message.body.fields:
            value = large_value(message, version, 1)
            if version in field.versions or not field.is_ignorable or field.struct is not None:
                continue
            setattr(value, field.attribute, {"string": "x", "bool": True}.get(field.type, 7))
            MessageCodec(message, version).encode(value)


def check_decoder_contract(codec: MessageCodec, noise: bytes) -> None:
    """Decode the bytes. A decoded value must survive a round trip; the only allowed error is DecodeError."""
    try:
        value = codec.decode(noise)
    except DecodeError:
        return
    assert codec.decode(codec.encode(value)) == value


@every_case
@example_settings(60)
@given(noise=st.binary(max_size=200))
def test_random_bytes_are_a_decode_error_or_a_value(case: Case, noise: bytes) -> None:
    check_decoder_contract(MessageCodec(*case), noise)


@every_case
@example_settings(40)
@given(data=st.data())
def test_damaged_message_is_a_decode_error_or_a_value(case: Case, data: st.DataObject) -> None:
    message, version = case
    value = data.draw(message_values(message, version))
    damaged = bytearray(encode_reference(message, value, version, lambda: data.draw(unknown_tags)))
    # Mostly overwrite counts and lengths with small, huge and negative values.
    positions = st.integers(0, max(len(damaged) - 1, 0))
    unusual_bytes = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF])
    for position, byte in data.draw(st.dictionaries(positions, unusual_bytes, max_size=4)).items():
        if damaged:
            damaged[position] = byte
    check_decoder_contract(MessageCodec(message, version), bytes(damaged))
