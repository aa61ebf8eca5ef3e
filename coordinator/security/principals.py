"""Map certificates to principals and check principals against a list.

The format is Kafka's: `User:alice`, `User:CN=broker-1,O=Example`. Principals are compared as text, so a
broker's `super.users` can be copied (docs/security.md lists rare string types in certificates that differ).
Sources: Kafka's DefaultKafkaPrincipalBuilder, SslPrincipalMapper, StandardAuthorizer; Java's X500Principal.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from coordinator.errors import ConfigError

_Parsed = TypeVar("_Parsed")

ANONYMOUS = "User:ANONYMOUS"

# Java prints these attributes by name (RFC 2253), and all others as OID and hexadecimal DER.
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
# The DER string types of some attributes (RFC 5280, OpenSSL), by OpenSSL's names; other attributes are UTF-8.
# `getpeercert` does not return the string type that the certificate uses.
_NUMERIC, _PRINTABLE, _IA5, _UTF8 = 0x12, 0x13, 0x16, 0x0C
_STRING_TAGS = {
    "INN": _NUMERIC,
    "OGRN": _NUMERIC,
    "SNILS": _NUMERIC,
    "dnQualifier": _PRINTABLE,
    "emailAddress": _IA5,
    "jurisdictionCountryName": _PRINTABLE,
    "rfc822Mailbox": _IA5,
    "serialNumber": _PRINTABLE,
}
_ESCAPED = frozenset(',=+<>#;"\\')

# The syntax of ssl.principal.mapping.rules: DEFAULT, or RULE:pattern/replacement/ followed by L or U.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|)\s*(?:,|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class UnmappedCertificate(Exception):
    """No mapping rule matches the subject of a certificate; the exception text is the subject."""


class _MappingRule(NamedTuple):
    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, distinguished_name: str) -> str | None:
        if self.pattern is None:
            return distinguished_name
        if not self.pattern.fullmatch(distinguished_name):
            return None
        name = self.pattern.sub(self._expand_replacement, distinguished_name)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)

    def _expand_replacement(self, match: re.Match[str]) -> str:
        def replace_reference(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            digits = reference[2]
            # As in Java, the reference is the longest number that is a group of the pattern; other digits are
            # text.
            for end in range(len(digits), 0, -1):
                if int(digits[:end]) <= match.re.groups:
                    return (match[int(digits[:end])] or "") + digits[end:]
            return reference[0]

        return _REFERENCE.sub(replace_reference, self.replacement)


class MappingRules:
    """Kafka's ssl.principal.mapping.rules: the first matching rule yields the principal."""

    def __init__(self, rules: tuple[_MappingRule, ...]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse rules; an empty text means DEFAULT. Raises ValueError with a message."""
        rules: list[_MappingRule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None or found.end() == at:
                raise ValueError(f"{text[at:]!r} is not DEFAULT or RULE:pattern/replacement/[LU]")
            at = found.end()
            if found[1]:
                rules.append(_MappingRule(None, "", ""))
            elif found[2] is not None:
                rules.append(_MappingRule(_compile_pattern(found[2]), found[3], found[4]))
        return cls(tuple(rules) or (_MappingRule(None, "", ""),))

    def apply(self, distinguished_name: str) -> str:
        """Return the principal name of a subject. Raises UnmappedCertificate if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise UnmappedCertificate(distinguished_name)


class AllowedPrincipals:
    """The allowed principals, in the format of Kafka's super.users. An empty list allows none."""

    def __init__(self, principals: frozenset[str]) -> None:
        self._principals = principals

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `User:a;User:b`. Raises ValueError with a message."""
        principals = [entry.strip() for entry in text.split(";") if entry.strip()]
        for principal in principals:
            kind, colon, name = principal.partition(":")
            if not (kind and colon and name):
                raise ValueError(f"{principal!r} is not TYPE:NAME, such as User:alice")
        return cls(frozenset(principals))

    def allows_principal(self, principal: str) -> bool:
        return principal in self._principals

    def __bool__(self) -> bool:
        return bool(self._principals)


def parse_setting(parse: Callable[[str], _Parsed], setting: str, text: str) -> _Parsed:
    """Return the parsed text of a setting. Raises ConfigError instead of ValueError."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(setting, text, f"a list of valid entries: {error}") from None


def principal_of_certificate(peer_certificate: Mapping[str, Any] | None, rules: MappingRules) -> str:
    """Return the principal of a client's certificate, given the result of `ssl.SSLObject.getpeercert()`.

    For None or an empty mapping (no certificate), return `User:ANONYMOUS`. Raises UnmappedCertificate.
    """
    if not peer_certificate:
        return ANONYMOUS
    return "User:" + rules.apply(distinguished_name(peer_certificate))


def distinguished_name(peer_certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate as Java's X500Principal.getName() does.

    The format is RFC 2253, with the last attribute first.
    """
    subject = peer_certificate.get("subject", ())
    return ",".join(
        "+".join(_format_attribute(name, value) for name, value in relative_name)
        for relative_name in reversed(subject)
    )


def _format_attribute(name: str, value: str) -> str:
    keyword = _KEYWORDS.get(name)
    if keyword is not None:
        return f"{keyword}={_escape_attribute_value(value)}"
    text = value.encode()
    der = bytes([_STRING_TAGS.get(name, _UTF8)]) + _encode_der_length(len(text)) + text
    return f"{_attribute_oid(name)}=#{der.hex()}"


def _attribute_oid(name: str) -> str:
    """Return the OID of an attribute. OpenSSL's name of an unknown attribute is its OID."""
    try:
        # This function reads OpenSSL's table of names; the ssl module has no public function for it.
        return ssl._ASN1Object.fromname(name).oid
    except ValueError:
        return name


def _encode_der_length(length: int) -> bytes:
    if length < 0x80:
        return bytes([length])
    digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(digits)]) + digits


def _escape_attribute_value(value: str) -> str:
    escaped = ["\\" + char if char in _ESCAPED else "\\00" if char == "\0" else char for char in value]
    inner = value.strip(" \r")
    leading = len(value) - len(value.lstrip(" \r"))
    trailing = leading + len(inner)
    return "".join(char if leading <= index < trailing else "\\" + char for index, char in enumerate(escaped))


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
