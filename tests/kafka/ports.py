"""Reserve free TCP ports on the loopback address.

A killed broker must restart on its old port. Therefore, the ports are below the kernel's range for outgoing
connections, so that no outgoing connection occupies them. Each port is also locked until this process ends,
so that no other test process reserves the port while the broker is down.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

# Above 15002, where Spark Connect listens.
_LOWEST = 15_010
_handed_out: set[int] = set()
# Tests seed the shared generator of `random`, so this module uses its own.
_dice = random.SystemRandom()


def _kernel_range_start() -> int:
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(setting.read_text().split()[0]) if setting.exists() else 32_768


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@cache
def _lock_file() -> IO[bytes]:
    """Return the lock file that all test runs on this machine share. A lock of byte N reserves port N."""
    return Path(tempfile.gettempdir(), f"ports-of-tests-{os.getuid()}").open("ab")


def _lock_port(port: int) -> bool:
    """Reserve a port until the end of this process; return whether that succeeded."""
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different unused ports. No port is returned twice."""
    candidates = list(range(_LOWEST, max(_kernel_range_start(), _LOWEST + 1_000)))
    _dice.shuffle(candidates)
    chosen: list[int] = []
    while len(chosen) < count:
        port = candidates.pop()
        if port not in _handed_out and _lock_port(port) and _is_port_free(port):
            _handed_out.add(port)
            chosen.append(port)
    return chosen
