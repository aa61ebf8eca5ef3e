"""Free TCP ports on the loopback address that stay free.

A broker that is killed must come back on its old port. So ports are taken below the range from which the
kernel picks ports for outgoing connections: no connection of a test can take one in between.
"""

import random
import socket
from pathlib import Path

_LOWEST = 15_000
_handed_out: set[int] = set()


def _kernel_range_start() -> int:
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(setting.read_text().split()[0]) if setting.exists() else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which nobody listens, none of them returned before.

    The choice is random, so that two test runs on one machine hardly ever choose alike.
    """
    candidates = list(range(_LOWEST, max(_kernel_range_start(), _LOWEST + 1_000)))
    random.shuffle(candidates)
    chosen: list[int] = []
    while len(chosen) < count:
        port = candidates.pop()
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            chosen.append(port)
    return chosen
