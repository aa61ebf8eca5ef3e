"""Create the TLS context of outgoing connections."""

import ssl

from coordinator.errors import ConfigError


def client_context(
    *, ca: str, certificate: str, key: str, key_password: str, check_hostname: bool, prefix: str
) -> ssl.SSLContext:
    """Return a context for PEM files; an empty string means not set. Without `ca`, the certificate
    authorities of the system are trusted.

    Raises ConfigError for an unusable file; the error names the setting of the file, with `prefix` ("ssl.").
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    try:
        if ca:
            context.load_verify_locations(ca)
            # As in Java, any certificate in the file is a trust anchor, not only a self-signed one.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ConfigError(prefix + "ca.location", ca, f"a PEM file of certificates ({error})") from None
    try:
        if certificate:
            # Without a callback, OpenSSL would prompt for the password on the terminal.
            context.load_cert_chain(certificate, key or None, lambda: key_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            prefix + "certificate.location",
            certificate,
            f"a PEM file of a certificate, its key there or in {prefix}key.location ({error})",
        ) from None
    return context
