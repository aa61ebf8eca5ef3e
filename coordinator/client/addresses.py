"""Parse addresses: `host:port`, with IPv6 addresses in brackets and commas between several addresses."""


def parse_addresses(text: str | tuple[str, int]) -> list[tuple[str, int]]:
    """Return the addresses in a text, or the single address of a pair. Raises ValueError."""
    if not isinstance(text, str):
        return [(text[0], text[1])]
    return [_parse_address(piece.strip()) for piece in text.split(",")]


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not an address: HOST:PORT, an IPv6 address in brackets")
    return host, int(port)
