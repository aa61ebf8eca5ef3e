"""Generate the code that decodes one layout of a message: a range of versions with equal encoding.

In the generated code, one `struct.Struct` reads all adjacent fixed-size fields and the byte after them. That
byte begins a length, a count or a tagged-field section, and nearly always it is the only byte. The variables
of the generated code are ``buf``, ``at`` (the position), ``n`` (the length, count or tag count read last) and
one for each field.

Requests come from untrusted clients, so the generated request decoders have a budget: ``left`` is the number
of elements that may still be decoded. Arrays, tagged-field sections and long texts are counted before they
are read.
"""

from protocol.codegen.schema import FIXED_FORMATS, Field, Message, SchemaError, Struct, snake_case
from protocol.codegen.source import Source, packed_size
from protocol.wire import write_uvarint

_RESERVED = frozenset({"buf", "at", "n", "end", "left", "tag", "last_tag", "unknown", "version"})


class Decoder:
    """Generates the statements that decode one layout of one message."""

    def __init__(self, source: Source, message: Message, version: int) -> None:
        self._source = source
        self._message = message
        self._version = version
        self._is_flexible = version in message.flexible
        self._has_budget = has_budget(message)
        # Adjacent fixed-size fields whose read is not generated yet: `struct` format and variable.
        self._run: list[tuple[str, str]] = []
        self._types: dict[str, str] = {}

    def write(self) -> str:
        """Write the statements that read the message from ``buf`` at ``at``; return its constructor call."""
        return self._write_struct(self._message.body, _RESERVED)

    def _write_struct(self, struct: Struct, taken: frozenset[str]) -> str:
        present = [field for field in struct.fields if self._version in field.versions]
        names = {field.name: self._variable_name(struct, field, taken) for field in present}
        taken |= set(names.values())
        for field in present:
            if field.tag is None:
                self._write_field(field, names[field.name], taken)
        tagged = [field for field in present if field.tag is not None]
        keeps_unknown = self._message.keeps_unknown_tags and struct is self._message.body
        if self._is_flexible:
            if tagged or keeps_unknown:
                self._write_tag_section(tagged, names, taken, keeps_unknown)
            else:
                self._write_tag_skipping()
        self._write_fixed_fields()

        arguments = [names[field.name] if field in present else field.default_code for field in struct.fields]
        while arguments and struct.fields[len(arguments) - 1] not in present:
            arguments.pop()
        if keeps_unknown:
            arguments.append("unknown_tags")
        return f"{struct.name}({', '.join(arguments)})"

    def _variable_name(self, struct: Struct, field: Field, taken: frozenset[str]) -> str:
        name = field.attribute
        if name in taken or self._types.get(name, field.python_type) != field.python_type:
            name = f"{snake_case(struct.name)}_{name}"
        self._types[name] = field.python_type
        return name

    def _write_field(self, field: Field, name: str, taken: frozenset[str]) -> None:
        if field.is_packed:
            self._write_packed(name)
        elif field.is_array:
            self._write_array(field, name, taken)
        elif field.struct is not None:
            self._source.add(f"{name} = {self._write_struct(field.struct, taken)}")
        elif field.type in FIXED_FORMATS:
            self._run.append((FIXED_FORMATS[field.type], name))
        else:
            self._write_text(field, name)

    def _write_fixed_fields(self, left: int = 0) -> None:
        """Write the read of the pending fixed-size fields; ``at`` stops ``left`` bytes before their end."""
        if not self._run:
            return
        formats = "".join(part for part, _ in self._run)
        names = [name for _, name in self._run]
        self._run = []
        if formats == "B":
            self._source.add(f"{names[0]} = buf[at]")
        else:
            targets = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
            self._source.add_assignment(targets, f"{self._source.unpacker(formats)}(buf, at)")
        if packed_size(formats) > left:
            self._source.add(f"at += {packed_size(formats) - left}")

    def _write_length(
        self, legacy_format: str, is_flexible: bool, is_nullable: bool, type_name: str = "string"
    ) -> None:
        """Write the read of a length or count into ``n``; in a flexible version, ``n`` is the length + 1."""
        self._run.append(("B" if is_flexible else legacy_format, "n"))
        self._write_fixed_fields()
        if is_flexible and is_nullable:
            with self._source.block("if n > 127:"):
                reader = "read_nullable_string_length" if type_name == "string" else "read_uvarint"
                read = self._source.use("protocol.wire", reader)
                self._source.add(f"n, at = {read}(buf, at - 1)")
        elif is_flexible:
            with self._source.block("if not 0 < n < 128:"):
                self._source.add(f"n, at = {self._source.use('protocol.wire', 'read_length')}(buf, at - 1)")
        else:
            with self._source.block(f"if n < {-1 if is_nullable else 0}:"):
                error = self._source.use("protocol.errors", "DecodeError")
                self._source.add(f'raise {error}(f"length {{n}} before byte {{at}}")')

    def _write_text(self, field: Field, name: str) -> None:
        """Write the read of a string or bytes.

        A short slice moves ``at`` beyond the end of ``buf``, which a later read detects.
        """
        is_flexible = self._version in field.flexible
        is_nullable = self._version in field.nullable
        if is_flexible and not is_nullable:
            self._write_compact_text(field, name)
            return
        self._write_length("h" if field.type == "string" else "i", is_flexible, is_nullable, field.type)
        decode = ".decode()" if field.type == "string" else ""
        length = "n - 1" if is_flexible else "n"
        if not is_nullable:
            self._write_budget_check("n >> 6")
            self._write_slice(name, length, decode)
            return
        with self._source.block("if not n:" if is_flexible else "if n < 0:"):
            self._source.add(f"{name} = None")
        with self._source.block("else:"):
            self._write_budget_check("n >> 6")
            self._write_slice(name, length, decode)

    def _write_compact_text(self, field: Field, name: str) -> None:
        """Write the read of a compact string or bytes.

        ``at`` stays at the last byte of the length, so the data end at ``at + n``.
        """
        self._run.append(("B", "n"))
        self._write_fixed_fields(left=1)
        with self._source.block("if not 0 < n < 128:"):
            reader = "read_string_length" if field.type == "string" else "read_bytes_length"
            read = self._source.use("protocol.wire", reader)
            self._source.add(f"n, at = {read}(buf, at)")
            self._write_budget_check("n >> 6")
        decode = ".decode()" if field.type == "string" else ""
        self._source.add(f"{name} = buf[at + 1 : at + n]{decode}")
        self._source.add("at += n")

    def _write_slice(self, name: str, length: str, decode: str) -> None:
        self._source.add(f"{name} = buf[at : at + {length}]{decode}")
        self._source.add(f"at += {length}")

    def _write_packed(self, name: str) -> None:
        """Write the read of state batches as one slice, if no batch has tags: every 20th byte is then zero.

        Most requests have a single batch, so it has a cheaper test. The reader of `protocol.state_batches`
        handles null arrays, more than 126 batches, batches with tags, and truncated bytes.
        """
        if not self._is_flexible:
            raise SchemaError(f"{self._message.name}: packed batches in a version that is not flexible")
        self._run.append(("B", "n"))
        self._write_fixed_fields()
        general = "read_tagged" if self._message.keeps_unknown_tags else "read_untagged"
        general += "_within" if self._has_budget else ""
        general = self._source.use("protocol.state_batches", general)
        tags = self._source.use("protocol.state_batches", "NO_TAGS")
        self._source.add("end = at + n * 20 - 20")
        one = "n == 2 and not buf[at + 19]"
        few = f"n < 128 and buf[at + 19 : end : 20] == {tags}[n]"
        with self._source.block(f"if ({one}) or ({few}):"):
            self._source.add(f"{name} = buf[at:end]")
            self._source.add("at = end")
        with self._source.block("else:"):
            if self._has_budget:
                self._source.add(f"{name}, at, left = {general}(buf, at - 1, left)")
            else:
                self._source.add(f"{name}, at = {general}(buf, at - 1)")

    def _write_array(self, field: Field, name: str, taken: frozenset[str]) -> None:
        """Write the loop that reads an array. The end of ``buf`` ends it, as does an exhausted budget."""
        # The default of a tagged field, written before, already declares its type.
        kind = f": {field.python_type}" if field.tag is None else ""
        if self._version in field.nullable:
            self._write_length("i", self._is_flexible, True, "array")
            self._source.add(f"{name}{kind} = None")
            with self._source.block("if n:" if self._is_flexible else "if n >= 0:"):
                self._write_elements(field, name, "", taken)
            return
        self._write_length("i", self._is_flexible, False)
        self._write_elements(field, name, kind, taken)

    def _write_elements(self, field: Field, name: str, kind: str, taken: frozenset[str]) -> None:
        """Write the loop that reads the elements of an array into a new list; ``n`` holds their count."""
        self._write_budget_check("n - 1" if self._is_flexible else "n")
        self._source.add(f"{name}{kind} = []")
        with self._source.block(f"for _ in range({'n - 1' if self._is_flexible else 'n'}):"):
            if field.type in FIXED_FORMATS:
                self._run.append((FIXED_FORMATS[field.type], "number"))
                self._write_fixed_fields()
                element = "number"
            elif field.struct is None:
                self._write_text(field, "text")
                element = "text"
            else:
                element = self._write_struct(field.struct, taken)
            append = f"{name}.append({element})"
            if not self._source.fits(append) and field.struct is not None:
                variable = snake_case(field.struct.name)
                call, _, arguments = element.partition("(")
                self._source.add_list(f"{variable} = {call}(", arguments.removesuffix(")").split(", "), ")")
                append = f"{name}.append({variable})"
            self._source.add(append)

    def _write_budget_check(self, count: str) -> None:
        """Write the subtraction of ``count`` elements from the budget, if the message has a budget."""
        if self._has_budget:
            error = self._source.use("protocol.errors", "TooManyElementsError")
            self._source.add(f"left -= {count}")
            with self._source.block("if left < 0:"):
                self._source.add(f'raise {error}(f"more elements than allowed before byte {{at}}")')

    def _write_tag_skipping(self) -> None:
        """Write the skipping of a tagged-field section in which the schema defines no tag."""
        if self._has_budget:
            skip, result, budget = self._source.use("protocol.wire", "skip_tags_within"), "at, left", ", left"
        else:
            skip, result, budget = self._source.use("protocol.wire", "skip_tags"), "at", ""
        if self._run:
            self._run.append(("B", "n"))
            self._write_fixed_fields()
            with self._source.block("if n:"):
                self._source.add(f"{result} = {skip}(buf, at - 1{budget})")
            return
        with self._source.block("if buf[at]:"):
            self._source.add(f"{result} = {skip}(buf, at{budget})")
        with self._source.block("else:"):
            self._source.add("at += 1")

    def _write_tag_section(
        self, tagged: list[Field], names: dict[str, str], taken: frozenset[str], keeps_unknown: bool
    ) -> None:
        """Write the read of a tagged-field section.

        A section with only the first tag, of fixed size, is the usual case and has its own branch.
        """
        self._write_fixed_fields()
        source = self._source
        for field in tagged:
            kind = f": {field.python_type}" if field.is_array else ""
            source.add(f"{names[field.name]}{kind} = {field.default_code}")
        if keeps_unknown:
            source.add("unknown_tags: tuple[tuple[int, bytes], ...] = ()")
        usual = tagged[0]
        opening = first_tag_opening(usual)
        if opening is None:
            self._write_all_tags(tagged, names, taken, keeps_unknown)
            return
        formats = FIXED_FORMATS[usual.type]
        with source.block(f"if buf[at : at + {len(opening)}] == {bytes_literal(opening)}:"):
            source.add(f"({names[usual.name]},) = {source.unpacker(formats)}(buf, at + {len(opening)})")
            source.add(f"at += {len(opening) + packed_size(formats)}")
        with source.block("else:"):
            self._write_all_tags(tagged, names, taken, keeps_unknown)

    def _write_all_tags(
        self, tagged: list[Field], names: dict[str, str], taken: frozenset[str], keeps_unknown: bool
    ) -> None:
        """Write the loop that reads tagged fields one by one.

        Tags are in ascending order (KIP-482). The decoder of a record checks the order, because the record
        must be written back with identical bytes. Other decoders do not check it; nor does Kafka.
        """
        source = self._source
        error = source.use("protocol.errors", "DecodeError")
        read = source.use("protocol.wire", "read_uvarint")
        if keeps_unknown:
            source.add("unknown: list[tuple[int, bytes]] = []")
            source.add("last_tag = -1")
        source.add(f"n, at = {read}(buf, at)")
        self._write_budget_check("n")
        with source.block("for _ in range(n):"):
            source.add(f"tag, at = {read}(buf, at)")
            if keeps_unknown:
                with source.block("if tag <= last_tag:"):
                    source.add(f'raise {error}(f"tag {{tag}} after tag {{last_tag}}")')
                source.add("last_tag = tag")
            source.add(f"n, at = {read}(buf, at)")
            source.add(f"end = {source.use('protocol.wire', 'tagged_field_end')}(buf, at, n)")
            for index, field in enumerate(tagged):
                with source.block(f"{'elif' if index else 'if'} tag == {field.tag}:"):
                    self._write_field(field, names[field.name], taken)
                    self._write_fixed_fields()
            with source.block("else:"):
                if keeps_unknown:
                    source.add("unknown.append((tag, buf[at:end]))")
                source.add("at = end")
            with source.block("if at != end:"):
                source.add(f'raise {error}(f"tag {{tag}} ends at byte {{at}}, not at byte {{end}}")')
        if keeps_unknown:
            source.add("unknown_tags = tuple(unknown)")


def has_budget(message: Message) -> bool:
    """Return whether the decoder limits the elements of the message, because an untrusted client sends it."""
    return message.type in ("request", "header")


def first_tag_opening(field: Field) -> bytes | None:
    """Return the bytes before a fixed-size tagged field that is alone in its section: count 1, tag, size."""
    if field.is_array or field.type not in FIXED_FORMATS or field.tag is None:
        return None
    return b"\1" + write_uvarint(field.tag) + write_uvarint(packed_size(FIXED_FORMATS[field.type]))


def bytes_literal(value: bytes) -> str:
    """Return a Python bytes literal, with every byte escaped."""
    return 'b"' + "".join(f"\\x{byte:02x}" for byte in value) + '"'
