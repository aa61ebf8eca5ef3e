"""Free TCP ports on the loopback address that stay free.

A broker that is killed must come back on its old port. So ports are taken below the range from which the
kernel picks ports for outgoing connections: no connection of a test can take one in between. And each is
claimed for as long as this process lives, so that no other test run, and no other worker of this one, hands
out the port of a process that is down for the moment.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

_LOWEST = 15_000
_handed_out: set[int] = set()
# The state of the one that everybody shares is set by tests that draw at random.
_dice = random.SystemRandom()


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


@cache
def _claims() -> IO[bytes]:
    """Return the file in which a lock of the byte at a place is the claim to the port of that number."""
    return Path(tempfile.gettempdir(), f"ports-of-tests-{os.getuid()}").open("ab")


def _is_claimed(port: int) -> bool:
    """Claim a port until the end of this process; tell whether that was possible."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which nobody listens, none of them returned before to anybody."""
    candidates = list(range(_LOWEST, max(_kernel_range_start(), _LOWEST + 1_000)))
    _dice.shuffle(candidates)
    chosen: list[int] = []
    while len(chosen) < count:
        port = candidates.pop()
        if port not in _handed_out and _is_claimed(port) and _is_free(port):
            _handed_out.add(port)
            chosen.append(port)
    return chosen
