"""Issue certificates for tests: a signing authority, and PEM files for listeners, clients and brokers."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coordinator.config.security_groups import ListenerTlsSettings

Subject = x509.Name

_A_DAY = timedelta(days=1)


def make_subject(common_name: str, **rest: str) -> Subject:
    """Return a subject with the common name last. `rest` are attributes by NameOID's names, in order."""
    attributes = [x509.NameAttribute(getattr(NameOID, name), value) for name, value in rest.items()]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class IssuedCertificate(NamedTuple):
    """A certificate and its key, in separate files and in a combined file."""

    certificate: Path
    key: Path
    combined_file: Path
    key_password: str

    def listener_tls(self, **more: str) -> ListenerTlsSettings:
        own = {
            "certificate_location": str(self.certificate),
            "key_location": str(self.key),
            "key_password": self.key_password,
        }
        return ListenerTlsSettings.model_validate({**own, **more})


class CertificateAuthority:
    """A certificate authority with its files in a directory. `certificate` is the trust anchor."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = make_subject(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        certificate = (
            _begin_certificate(self._name, self._name, self._key.public_key(), now - _A_DAY, now + _A_DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            # Python 3.13 and later refuse an authority without it.
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue_certificate(
        self,
        name: str,
        *,
        subject: Subject | None = None,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        ended: bool = False,
        key_password: str = "",
        file: str | None = None,
    ) -> IssuedCertificate:
        """Issue a certificate for CN=`name` or `subject`, and for `hosts`. With `ended`, it expired
        yesterday.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        begin, end = (now - 3 * _A_DAY, now - _A_DAY) if ended else (now - _A_DAY, now + _A_DAY)
        certificate = (
            _begin_certificate(subject or make_subject(name), self._name, key.public_key(), begin, end)
            # The key identifier distinguishes authorities of the same name.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName([_subject_alternative_name(host) for host in hosts]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if key_password:
            encryption = serialization.BestAvailableEncryption(key_password.encode())
        key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        stem = file or name
        issued = IssuedCertificate(
            self._folder / f"{stem}.crt",
            self._folder / f"{stem}.key",
            self._folder / f"{stem}.pem",
            key_password,
        )
        issued.certificate.write_bytes(certificate_pem)
        issued.key.write_bytes(key_pem)
        # Kafka's PEM keystores have both in one file.
        issued.combined_file.write_bytes(key_pem + certificate_pem)
        return issued


def _begin_certificate(
    subject: Subject, issuer: Subject, key: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _subject_alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
