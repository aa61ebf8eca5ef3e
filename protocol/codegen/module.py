"""Generate one module of `protocol.messages`: message classes, and functions that encode and decode them."""

from collections.abc import Sequence

from protocol.codegen.decoder import Decoder, has_budget
from protocol.codegen.encoder import Encoder
from protocol.codegen.schema import Message, SchemaError, Struct, Versions, snake_case
from protocol.codegen.source import Source

_WARNING = "Generated from the schemas by ``python -m protocol.codegen``; do not edit."
_SUFFIXES = {
    "request": "Request",
    "response": "Response",
    "coordinator-key": "Key",
    "coordinator-value": "Value",
}


def api_or_record_name(message: Message) -> str:
    """Return the name of the API, record type or header that a message belongs to."""
    return message.name.removesuffix(_SUFFIXES.get(message.type, ""))


def module_name(message: Message) -> str:
    """Return the name of the module that a message is in."""
    return snake_case(api_or_record_name(message))


def write_module(messages: Sequence[Message]) -> str:
    """Return the source of one module: a request and its response, a record's key and value, or a header."""
    source = Source()
    for message in messages:
        _write_classes(source, message)
    for message in messages:
        _write_decoder(source, message)
        _write_encoder(source, message)
    names = [struct.name for message in messages for struct in _nested_structs(message.body)]
    if len(set(names)) != len(names):
        raise SchemaError(f"{module_name(messages[0])}: a class name occurs twice")
    constants = _constant_lines(messages)
    exported = [*(line.split(" =")[0] for line in constants), *names, *map(_public_decoder, messages)]
    exported += map(_public_encoder, messages)
    head = [f'"""{_module_title(messages)}\n\n{_WARNING}\n"""', "", *source.preamble(), "", "__all__ = ["]
    head += [f'    "{name}",' for name in _export_order(exported)]
    head += ["]", "", *constants] if constants else ["]"]
    return "\n".join([*head, *source.lines]) + "\n"


def _export_order(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def _module_title(messages: Sequence[Message]) -> str:
    first = messages[0]
    versions = _range_text(first.versions)
    if first.type == "header":
        return f"{first.name}, {versions}."
    if first.type == "request":
        return f"{api_or_record_name(first)} (API key {first.api_key}), {versions}: request and response."
    return f"{api_or_record_name(first)} (record type {first.api_key}): key and value."


def _range_text(versions: Versions) -> str:
    if versions.first == versions.last:
        return f"version {versions.first}"
    return f"versions {versions.first} to {versions.last}"


def _constant_lines(messages: Sequence[Message]) -> list[str]:
    first = messages[0]
    if first.type == "header":
        return []
    if first.type == "coordinator-key":
        return [f"RECORD_TYPE = {first.api_key}", f"VALUE_VERSION = {messages[-1].versions.last}"]
    versions = [f"MIN_VERSION = {first.versions.first}", f"MAX_VERSION = {first.versions.last}"]
    return [f"API_KEY = {first.api_key}", *versions]


def _nested_structs(struct: Struct) -> list[Struct]:
    """Return the structs that become classes, inner ones first."""
    inner = [field.struct for field in struct.fields if field.struct is not None and not field.is_packed]
    return [*(below for each in inner for below in _nested_structs(each)), struct]


def _write_classes(source: Source, message: Message) -> None:
    for struct in _nested_structs(message.body):
        source.add()
        source.add()
        with source.block(f"class {struct.name}({source.use('msgspec', 'Struct')}, gc=False):"):
            if struct is message.body:
                kind = message.type.replace("coordinator-", "record ")
                kind = "" if message.type == "header" else f" {kind}"
                source.add(f'"""The {api_or_record_name(message)}{kind}, {_range_text(message.versions)}."""')
            else:
                source.add(f'"""{_nested_docstring(message.body, struct)}"""')
            source.add()
            has_default = False
            for field in struct.fields:
                # In a msgspec class, a field after a field with a default needs a default too.
                has_default = has_default or field.default is not None or field.versions != message.versions
                if field.about:
                    source.add(f"# {field.about}")
                default = f" = {field.default_code}" if has_default else ""
                source.add(f"{field.attribute}: {field.python_type}{default}")
            if message.keeps_unknown_tags and struct is message.body:
                source.add("# Tagged fields that the schema does not define, in the order of the record.")
                source.add("unknown_tags: tuple[tuple[int, bytes], ...] = ()")


def _nested_docstring(struct: Struct, wanted: Struct) -> str:
    """Return the docstring of a nested struct, which names the class and field that contain it."""
    for field in struct.fields:
        if field.struct is wanted:
            return f"{'An element' if field.is_array else 'The value'} of `{struct.name}.{field.attribute}`."
        if field.struct is not None and (found := _nested_docstring(field.struct, wanted)):
            return found
    return ""


def _public_decoder(message: Message) -> str:
    return f"decode{_public_suffix(message)}"


def _public_encoder(message: Message) -> str:
    return f"encode{_public_suffix(message)}"


def _public_suffix(message: Message) -> str:
    suffix = _SUFFIXES.get(message.type, "").lower()
    return f"_{suffix}" if suffix else ""


def _version_parameter(message: Message) -> str:
    if message.type.startswith("coordinator"):
        return ""
    return "header_version" if message.type == "header" else "version"


def _write_decoder(source: Source, message: Message) -> None:
    """Write the public decoder, with one private function for each layout if there are several."""
    layouts = message.layouts()
    public = _public_decoder(message)
    parameter = _version_parameter(message)
    returned = f"tuple[{message.name}, int]" if message.type == "header" else message.name
    parameters = ["buf: bytes", "offset: int", *([f"{parameter}: int"] if parameter else [])]
    budget = _budget_constant(source, message)
    if message.type == "request":
        parameters.append(f"elements_max: int = {budget}")
        budget = "elements_max"
    malformed = source.use("protocol.wire", "MALFORMED")
    error = source.use("protocol.errors", "DecodeError")
    with source.function(public, parameters, returned):
        if message.type == "header":
            source.add(f'"""Decode the {message.name} at ``offset``; return it and the position after it."""')
        else:
            source.add(f'"""Decode the {message.name} from ``offset`` to the end of ``buf``."""')
        _write_version_check(source, message, parameter)
        with source.block("try:"):
            if len(layouts) == 1:
                source.add("at = offset")
                if budget:
                    source.add(f"left = {budget}")
                _write_decoder_body(source, message, layouts[0].last)
            else:
                arguments = f"buf, offset, {budget}" if budget else "buf, offset"
                _write_dispatch(source, layouts, parameter, f"_{public}", arguments)
        with source.block(f"except {malformed} as error:"):
            source.add(f'raise {error}(f"{message.name}: {{error}}") from error')
    for layout in layouts if len(layouts) > 1 else []:
        inner = ["buf: bytes", "at: int", *(["left: int"] if budget else [])]
        with source.function(f"_{public}_v{layout.last}", inner, returned):
            _write_decoder_body(source, message, layout.last)


def _budget_constant(source: Source, message: Message) -> str:
    """Return the constant with a decoder's default limit of elements; "" if it has no limit."""
    if not has_budget(message):
        return ""
    return source.use("protocol.wire", "HEADER_ELEMENTS_MAX" if message.type == "header" else "ELEMENTS_MAX")


def _write_version_check(source: Source, message: Message, parameter: str) -> None:
    if not parameter:
        return
    error = source.use("protocol.errors", "UnsupportedVersionError")
    first, last = message.versions.first, message.versions.last
    test = f"{parameter} != {first}" if first == last else f"not {first} <= {parameter} <= {last}"
    with source.block(f"if {test}:"):
        source.add(f'raise {error}(f"version {{{parameter}}} of {message.name}")')


def _write_dispatch(
    source: Source, layouts: list[Versions], parameter: str, function: str, arguments: str
) -> None:
    """Write the calls that select a layout by version, newest first. The version is already checked."""
    for layout in reversed(layouts[1:]):
        with source.block(f"if {parameter} >= {layout.first}:"):
            source.add(f"return {function}_v{layout.last}({arguments})")
    source.add(f"return {function}_v{layouts[0].last}({arguments})")


def _write_decoder_body(source: Source, message: Message, version: int) -> None:
    result = Decoder(source, message, version).write()
    error = source.use("protocol.errors", "DecodeError")
    is_header = message.type == "header"
    with source.block("if at > len(buf):" if is_header else "if at != len(buf):"):
        source.add(f'raise {error}(f"{message.name} ends at byte {{at}} of {{len(buf)}}")')
    opening, _, inner = result.partition("(")
    if is_header:
        source.add(f"return {result}, at")
    else:
        source.add_list(f"return {opening}(", inner.removesuffix(")").split(", "), ")")


def _write_encoder(source: Source, message: Message) -> None:
    """Write the public encoder, with one private function for each layout if there are several."""
    layouts = message.layouts()
    public = _public_encoder(message)
    parameter = _version_parameter(message)
    parameters = [f"message: {message.name}", *([f"{parameter}: int"] if parameter else [])]
    unencodable = source.use("protocol.wire", "UNENCODABLE")
    error = source.use("protocol.errors", "EncodeError")
    with source.function(public, parameters, "bytes"):
        source.add(f'"""Encode the {message.name}. Raises EncodeError if a value has no wire form."""')
        _write_version_check(source, message, parameter)
        with source.block("try:"):
            if len(layouts) == 1:
                source.add(f"return {Encoder(source, message, layouts[0].last).write('message')}")
            else:
                _write_dispatch(source, layouts, parameter, f"_{public}", "message")
        with source.block(f"except {unencodable} as error:"):
            source.add(f'raise {error}(f"{message.name}: {{error}}") from error')
    for layout in layouts if len(layouts) > 1 else []:
        with source.function(f"_{public}_v{layout.last}", parameters[:1], "bytes"):
            source.add(f"return {Encoder(source, message, layout.last).write('message')}")
