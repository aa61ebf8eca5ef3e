"""Generate the code that encodes one layout of a message.

The generated code collects pieces of bytes and joins them once. One `struct.Struct` packs adjacent fixed-size
fields into one piece. A null string or an empty tagged-field section is a zero byte, packed into the same
piece (format ``x``). A list comprehension packs an array whose elements have only fixed-size fields.
"""

from collections.abc import Sequence

from protocol.codegen.decoder import bytes_literal, first_tag_opening
from protocol.codegen.schema import FIXED_FORMATS, Field, Message, Struct, snake_case
from protocol.codegen.source import Source

_PIECE_MAX = 70


class Encoder:
    """Generates the statements that encode one layout of one message."""

    def __init__(self, source: Source, message: Message, version: int, sink: str = "parts") -> None:
        self._source = source
        self._message = message
        self._version = version
        self._is_flexible = version in message.flexible
        # Adjacent fixed-size fields that are not a piece yet: `struct` format and expression.
        self._run: list[tuple[str, str]] = []
        # Expressions of the pieces that are not in the sink yet.
        self._pieces: list[str] = []
        # The variable of the generated code with the list of all pieces.
        self._sink = sink
        self._has_sink = False

    def write(self, argument: str) -> str:
        """Write the statements that encode the variable ``argument``; return an expression of the bytes."""
        body = self._message.body
        self._write_version_check(body, argument)
        self._encode_fields(body, self._untagged_fields(body), argument)
        return self._joined()

    def _joined(self) -> str:
        """Return an expression that joins all pieces."""
        self._pack_fixed_fields()
        if self._has_sink:
            self._flush()
            return f'b"".join({self._sink})'
        if len(self._pieces) == 1:
            return self._pieces[0]
        joined = f'b"".join(({", ".join(self._pieces)}))'
        if self._source.fits(f"return {joined}"):
            return joined
        self._flush()
        return f'b"".join({self._sink})'

    def _untagged_fields(self, struct: Struct) -> list[Field]:
        return [field for field in struct.fields if self._version in field.versions and field.tag is None]

    def _write_version_check(self, struct: Struct, holder: str) -> None:
        """Write a check that raises EncodeError if a field that this version lacks is not its default.

        Fields that the schema marks as ignorable are not checked.
        """
        missing = [
            field for field in struct.fields if self._version not in field.versions and not field.is_ignorable
        ]
        if missing:
            with self._source.block(
                f"if {' or '.join(_differs_from_default(field, holder) for field in missing)}:"
            ):
                names = ", ".join(field.attribute for field in missing)
                self._add_raise(f"version {self._version} of {self._message.name} has no {names}")

    def _add_raise(self, text: str) -> None:
        self._source.add(f'raise {self._source.use("protocol.errors", "EncodeError")}("{text}")')

    def _encode_fields(self, struct: Struct, fields: Sequence[Field], holder: str) -> None:
        """Write the encoding of ``fields``, the last fields of a struct, and of its tagged-field section."""
        for index, field in enumerate(fields):
            value = f"{holder}.{field.attribute}"
            rest = fields[index + 1 :]
            if self._version not in field.nullable:
                self._field(field, value)
            elif field.is_array:
                self._write_nullable_array(field, value)
            elif all(later.is_packed or later.type in FIXED_FORMATS for later in rest):
                self._write_null_branches(struct, field, rest, holder)
                return
            else:
                self._write_nullable_text(field, value)
        if self._is_flexible:
            self._write_tags(struct, holder)

    def _write_null_branches(self, struct: Struct, field: Field, rest: Sequence[Field], holder: str) -> None:
        """Write two branches for the rest of a struct: the nullable ``field`` is null, or it is not.

        A null string is the usual case, and is packed together with the fixed-size fields around it.
        """
        self._declare_sink()
        run, pieces = self._run[:], self._pieces[:]
        with self._source.block(f"if {holder}.{field.attribute} is None:"):
            self._run.append(("x", "") if self._version in field.flexible else ("h", "-1"))
            self._encode_fields(struct, rest, holder)
            self._flush()
        self._run, self._pieces = run, pieces
        with self._source.block("else:"):
            self._text(field, f"{holder}.{field.attribute}", field.attribute)
            self._encode_fields(struct, rest, holder)
            self._flush()

    def _write_nullable_text(self, field: Field, value: str) -> None:
        """Write a nullable string as a separate piece."""
        name = field.attribute
        inner = Encoder(self._source, self._message, self._version)
        with self._source.block(f"if {value} is None:"):
            is_flexible = self._version in field.flexible
            self._source.add(f"{name} = {bytes_literal(bytes(1) if is_flexible else bytes([255, 255]))}")
        with self._source.block("else:"):
            inner._text(field, value, name)
            self._source.add(f"{name} = {' + '.join(inner._pieces)}")
        self._pack_fixed_fields()
        self._pieces.append(name)

    def _write_nullable_array(self, field: Field, value: str) -> None:
        self._declare_sink()
        self._flush()
        with self._source.block(f"if {value} is None:"):
            null = bytes(1) if self._is_flexible else b"\xff" * 4
            self._source.add(f"{self._sink}.append({bytes_literal(null)})")
        with self._source.block("else:"):
            self._write_array(field, value)

    def _field(self, field: Field, value: str) -> None:
        if field.is_packed:
            self._write_packed(field, value)
        elif field.is_array:
            self._write_array(field, value)
        elif field.struct is not None:
            self._write_version_check(field.struct, value)
            self._encode_fields(field.struct, self._untagged_fields(field.struct), value)
        elif field.type in FIXED_FORMATS:
            if field.type == "uuid":
                with self._source.block(f"if len({value}) != 16:"):
                    self._add_raise(f"{field.attribute} is not 16 bytes long")
            self._run.append((FIXED_FORMATS[field.type], value))
        else:
            self._text(field, value, field.attribute)

    def _pack_fixed_fields(self) -> None:
        """Turn the pending fixed-size fields into one piece."""
        if not self._run:
            return
        formats = "".join(part for part, _ in self._run)
        values = [value for _, value in self._run if value]
        self._run = []
        if not values:
            piece = bytes_literal(bytes(len(formats)))
        elif formats == "16s":
            piece = values[0]
        else:
            piece = f"{self._source.packer(formats)}({', '.join(values)})"
            if len(piece) > _PIECE_MAX:
                name = f"fixed_{len(self._pieces)}"
                self._source.add_list(f"{name} = {self._source.packer(formats)}(", values, ")")
                piece = name
        self._pieces.append(piece)

    def _flush(self) -> None:
        """Write the statement that adds the pending pieces to the sink."""
        self._pack_fixed_fields()
        pieces, self._pieces = self._pieces, []
        if not self._has_sink:
            self._has_sink = True
            kind = "" if pieces else ": list[bytes]"
            self._source.add_list(f"{self._sink}{kind} = [", pieces, "]")
        elif len(pieces) == 1:
            self._source.add(f"{self._sink}.append({pieces[0]})")
        elif pieces:
            self._source.add_list(f"{self._sink} += (", pieces, ")")

    def _declare_sink(self) -> None:
        if not self._has_sink:
            self._has_sink = True
            self._source.add(f"{self._sink}: list[bytes] = []")

    def _write_length(self, name: str, number: str, legacy_format: str) -> None:
        """Write a length or count: a varint of ``number + 1``, or ``number`` in a fixed-size format."""
        if legacy_format:
            self._run.append((legacy_format, number))
            return
        self._pack_fixed_fields()
        short = self._source.use("protocol.wire", "SHORT_UVARINTS")
        long = self._source.use("protocol.wire", "write_uvarint")
        self._source.add(f"n = {number} + 1")
        self._source.add(f"{name}_n = {short}[n] if n < 128 else {long}(n)")
        self._pieces.append(f"{name}_n")

    def _text(self, field: Field, value: str, name: str) -> None:
        """Write a string or bytes; ``name`` is the variable of its encoded bytes."""
        is_string = field.type == "string"
        self._source.add(f"{name} = {value}.encode()" if is_string else f"{name} = {value}")
        legacy_format = "h" if is_string else "i"
        self._write_length(name, f"len({name})", "" if self._version in field.flexible else legacy_format)
        self._pack_fixed_fields()
        self._pieces.append(name)

    def _write_packed(self, field: Field, value: str) -> None:
        name = field.attribute
        self._source.add(f"{name} = {value}")
        with self._source.block(f"if len({name}) % 20:"):
            self._add_raise(f"{name} are not a whole number of 20-byte pieces")
        self._write_length(name, f"len({name}) // 20", "")
        if self._message.keeps_unknown_tags:
            slow = self._source.use("protocol.state_batches", "write_tagged")
            self._pieces.append(f"{name} if type({name}) is bytes else {slow}({name})")
        else:
            self._pieces.append(name)

    def _write_array(self, field: Field, value: str) -> None:
        self._write_length(field.attribute, f"len({value})", "" if self._is_flexible else "i")
        self._flush()
        element = field.attribute.removesuffix("s")
        if field.type in FIXED_FORMATS:
            call = f"{self._source.packer(FIXED_FORMATS[field.type])}({element})"
            self._source.add_comprehension(f"{self._sink} += ", call, f"for {element} in {value}")
            return
        if field.struct is None:
            with self._source.block(f"for {element} in {value}:"):
                self._text(field, element, f"{element}_bytes")
                self._flush()
            return
        if element in {inner.attribute for inner in field.struct.fields}:
            element = snake_case(field.struct.name)
        formats = self._fixed_formats(field.struct)
        if formats:
            values = [f"{element}.{inner.attribute}" for inner in field.struct.fields]
            call = f"{self._source.packer(formats)}({', '.join(values)})"
            self._source.add_comprehension(f"{self._sink} += ", call, f"for {element} in {value}")
            return
        with self._source.block(f"for {element} in {value}:"):
            self._write_version_check(field.struct, element)
            self._encode_fields(field.struct, self._untagged_fields(field.struct), element)
            self._flush()

    def _fixed_formats(self, struct: Struct) -> str:
        """Return the `struct` format of a struct with only fixed-size fields; "" for other structs."""
        formats = ""
        for field in struct.fields:
            is_plain = field.type in FIXED_FORMATS and field.type != "uuid" and not field.is_array
            if self._version not in field.versions or not is_plain:
                return ""
            formats += FIXED_FORMATS[field.type]
        return formats + ("x" if self._is_flexible else "")

    def _write_tags(self, struct: Struct, holder: str) -> None:
        """Write the tagged-field section at the end of a struct."""
        present = [field for field in struct.fields if self._version in field.versions]
        tagged = [field for field in present if field.tag is not None]
        keeps_unknown = self._message.keeps_unknown_tags and struct is self._message.body
        if not tagged:
            self._run.append(("x", ""))
            return
        self._pack_fixed_fields()
        opening = first_tag_opening(tagged[0])
        if opening is None:
            self._write_all_tags(tagged, holder, keeps_unknown)
            self._pieces.append("tail")
            return
        # A section with only the first tag, or with no tag, is the usual case.
        usual = tagged[0]
        rest = [f"{holder}.unknown_tags"] if keeps_unknown else []
        rest += [_differs_from_default(field, holder) for field in tagged[1:]]
        keyword = "if"
        if rest:
            with self._source.block(f"if {' or '.join(rest)}:"):
                self._write_all_tags(tagged, holder, keeps_unknown)
            keyword = "elif"
        with self._source.block(f"{keyword} {_differs_from_default(usual, holder)}:"):
            pack = self._source.packer(FIXED_FORMATS[usual.type])
            self._source.add(f"tail = {bytes_literal(opening)} + {pack}({holder}.{usual.attribute})")
        with self._source.block("else:"):
            self._source.add('tail = b"\\x00"')
        self._pieces.append("tail")

    def _write_all_tags(self, tagged: list[Field], holder: str, keeps_unknown: bool) -> None:
        """Write statements that encode a tagged-field section into the variable ``tail``."""
        source = self._source
        start = f"list({holder}.unknown_tags)" if keeps_unknown else "[]"
        source.add(f"tags: list[tuple[int, bytes]] = {start}")
        for field in tagged:
            with source.block(f"if {_differs_from_default(field, holder)}:"):
                inner = Encoder(source, self._message, self._version, f"{field.attribute}_parts")
                inner._field(field, f"{holder}.{field.attribute}")
                source.add(f"tags.append(({field.tag}, {inner._joined()}))")
        source.add(f"tail = {source.use('protocol.wire', 'write_tags')}(tags)")


def _differs_from_default(field: Field, holder: str) -> str:
    """Return an expression that is true if a field is not its default."""
    value = f"{holder}.{field.attribute}"
    is_false = field.default_code in ("[]", '""', "0", "False", 'b""')
    return value if is_false else f"{value} != {field.default_code}"
