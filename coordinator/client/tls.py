"""The TLS of connections that we open."""

import ssl

from coordinator.errors import ConfigError


def client_context(
    *, ca: str, certificate: str, key: str, key_password: str, check_hostname: bool, prefix: str
) -> ssl.SSLContext:
    """Return a context of PEM files; an empty text is what was not given. No `ca`: those the system trusts.

    Raises ConfigError for a file of no use, naming its setting, which begins with `prefix` ("ssl.").
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    try:
        if ca:
            context.load_verify_locations(ca)
            # As in Java, any certificate of the file is an anchor, not only one that signed itself.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ConfigError(prefix + "ca.location", ca, f"a PEM file of certificates ({error})") from None
    try:
        if certificate:
            # Without a callback OpenSSL would ask at the terminal.
            context.load_cert_chain(certificate, key or None, lambda: key_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            prefix + "certificate.location",
            certificate,
            f"a PEM file of a certificate, its key there or in {prefix}key.location ({error})",
        ) from None
    return context
