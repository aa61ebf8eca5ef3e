"""Principals of clients as Kafka and Java write them, mapping rules and lists of principals."""

import ssl
from pathlib import Path

import pytest

from coordinator.security.principals import (
    ANONYMOUS,
    AllowedPrincipals,
    MappingRules,
    UnmappedCertificate,
    principal_of_certificate,
)
from coordinator.security.tls import ServerTls
from tests.certificates import CertificateAuthority, Subject, make_subject
from tests.unit.security.handshakes import client_context, perform_handshake

DEFAULT = MappingRules.parse("DEFAULT")

# Subjects, and the result of getSubjectX500Principal().getName() in Java for each.
SUBJECTS = [
    (make_subject("broker-1"), "CN=broker-1"),
    (
        make_subject(
            "broker-1", COUNTRY_NAME="DE", ORGANIZATION_NAME="Example", ORGANIZATIONAL_UNIT_NAME="Kafka"
        ),
        "CN=broker-1,OU=Kafka,O=Example,C=DE",
    ),
    (
        make_subject(
            "a",
            STATE_OR_PROVINCE_NAME="S",
            LOCALITY_NAME="L",
            STREET_ADDRESS="Street 1",
            DOMAIN_COMPONENT="org",
            USER_ID="u",
        ),
        "CN=a,UID=u,DC=org,STREET=Street 1,L=L,ST=S",
    ),
    (make_subject('a, "b" + c <d>; e=f #g \\ h'), 'CN=a\\, \\"b\\" \\+ c \\<d\\>\\; e\\=f \\#g \\\\ h'),
    (make_subject(" a  b "), "CN=\\ a  b\\ "),
    (make_subject("Zoë"), "CN=Zoë"),
    (
        make_subject("a", EMAIL_ADDRESS="a@example.org", SERIAL_NUMBER="12", TITLE="Dr"),
        "CN=a,2.5.4.12=#0c024472,2.5.4.5=#13023132,1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267",
    ),
    (
        make_subject("a", JURISDICTION_COUNTRY_NAME="DE", UNSTRUCTURED_NAME="u"),
        "CN=a,1.2.840.113549.1.9.2=#0c0175,1.3.6.1.4.1.311.60.2.1.3=#13024445",
    ),
]


@pytest.mark.parametrize(("subject", "expected"), SUBJECTS)
def test_certificate_subject_is_written_as_in_java(subject: Subject, expected: str, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    server, client = (
        authority.issue_certificate("server"),
        authority.issue_certificate("client", subject=subject),
    )
    files = server.listener_tls(ca_location=str(authority.certificate), client_auth="required")
    context = client_context(
        str(authority.certificate), str(client.combined_file), newest=ssl.TLSVersion.TLSv1_2
    )
    certificate = perform_handshake(ServerTls(files, "listen").context, context).clients_certificate
    assert principal_of_certificate(certificate, DEFAULT) == "User:" + expected


@pytest.mark.parametrize("nothing", [None, {}])
def test_client_without_certificate_is_anonymous(nothing: dict[str, object] | None) -> None:
    assert principal_of_certificate(nothing, DEFAULT) == ANONYMOUS


# Attributes from `getpeercert` for subjects of `openssl req`, and the names that Java gives them.
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("businessCategory", "Private", "2.5.4.15=#0c0750726976617465"),
        ("jurisdictionCountryName", "DE", "1.3.6.1.4.1.311.60.2.1.3=#13024445"),
        ("jurisdictionStateOrProvinceName", "Bayern", "1.3.6.1.4.1.311.60.2.1.2=#0c0642617965726e"),
        ("jurisdictionLocalityName", "M", "1.3.6.1.4.1.311.60.2.1.1=#0c014d"),
        ("serialNumber", "HRB 1", "2.5.4.5=#13054852422031"),
        ("INN", "123456789012", "1.2.643.3.131.1.1=#120c313233343536373839303132"),
        ("OGRN", "1234567890123", "1.2.643.100.1=#120d31323334353637383930313233"),
        ("SNILS", "12345678901", "1.2.643.100.3=#120b3132333435363738393031"),
        ("unstructuredName", "u", "1.2.840.113549.1.9.2=#0c0175"),
        ("x500UniqueIdentifier", "x", "2.5.4.45=#0c0178"),
        ("telephoneNumber", "1", "2.5.4.20=#0c0131"),
        ("role", "r", "2.5.4.72=#0c0172"),
        ("rfc822Mailbox", "m@x", "0.9.2342.19200300.100.1.3=#16036d4078"),
        ("dnQualifier", "q", "2.5.4.46=#130171"),
        ("givenName", "g", "2.5.4.42=#0c0167"),
        ("1.2.3.4.5", "n", "1.2.3.4.5=#0c016e"),
    ],
)
def test_attribute_without_a_keyword_is_named_by_its_oid(name: str, value: str, expected: str) -> None:
    certificate = {"subject": (((name, value),), (("commonName", "a"),))}
    assert principal_of_certificate(certificate, DEFAULT) == "User:CN=a," + expected


def test_several_attributes_in_one_rdn_are_joined() -> None:
    certificate = {"subject": ((("organizationName", "O"),), (("commonName", "a"), ("userId", "b")))}
    assert principal_of_certificate(certificate, DEFAULT) == "User:CN=a+UID=b,O=O"


# Rules, a subject and the resulting name: cases of Kafka's documentation and of SslPrincipalMapper.
EXAMPLE_RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (EXAMPLE_RULES, "CN=kafka-server1,OU=ServiceUsers,O=Unknown", "kafka-server1"),
        (EXAMPLE_RULES, "CN=Duke,OU=JavaSoft,O=Sun,L=Palo,ST=CA,C=US", "duke@javasoft"),
        (EXAMPLE_RULES, "OU=JavaSoft,cn=duke", "DUKE"),
        (EXAMPLE_RULES, "OU=JavaSoft", "OU=JavaSoft"),
        ("", "CN=a", "CN=a"),
        ("DEFAULT", "CN=a", "CN=a"),
        (r"RULE:^CN=(.*)$/a\/$1/", "CN=b", "a/b"),
        (r"RULE:^CN=(.)$/$12/", "CN=b", "b2"),
        (r"RULE:^CN=(.)$/$2/", "CN=b", "$2"),
        (r"RULE:^CN=(.)$/\$1/", "CN=b", "$1"),
        ("RULE:CN=a/b/L,DEFAULT", "CN=ab", "CN=ab"),
    ],
)
def test_mapping_rules_map_subjects_to_names(rules: str, subject: str, name: str) -> None:
    assert MappingRules.parse(rules).apply(subject) == name


def test_subject_without_a_matching_rule_is_refused() -> None:
    with pytest.raises(UnmappedCertificate, match="OU=b"):
        MappingRules.parse("RULE:^CN=(.*)$/$1/").apply("OU=b")


@pytest.mark.parametrize("rules", ["default", "RULE:a/b", "RULE:(/x/", "DEFAULT/L", "RULE:^CN=(.*)$/$1/X"])
def test_invalid_mapping_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"is not"):
        MappingRules.parse(rules)


def test_only_listed_principals_are_allowed() -> None:
    allowed = AllowedPrincipals.parse("User:a; User:CN=b,O=c ;")
    assert allowed
    assert allowed.allows_principal("User:a")
    assert allowed.allows_principal("User:CN=b,O=c")
    assert not allowed.allows_principal("User:CN=b")
    assert not allowed.allows_principal(ANONYMOUS)


def test_empty_list_allows_no_principal() -> None:
    allowed = AllowedPrincipals.parse("")
    assert not allowed
    assert not allowed.allows_principal(ANONYMOUS)


@pytest.mark.parametrize("text", ["a", "User:", ":a", "User:a;b"])
def test_invalid_list_of_principals_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not TYPE:NAME"):
        AllowedPrincipals.parse(text)
