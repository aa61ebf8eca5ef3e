"""Connect each pair of a test's processes through a proxy for each direction, and shift their clocks.

A preloaded library (`interposed.c`) redirects the connections of each process, so brokers and coordinators
advertise their own ports, and no process knows of the proxies.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path

from tests.kafka.ports import free_ports
from tests.kafka.tcp_proxy import Direction, TcpProxy
from tests.preloaded import compile_preloaded

_OPPOSITE = {
    Direction.REQUESTS: Direction.RESPONSES,
    Direction.RESPONSES: Direction.REQUESTS,
    Direction.BOTH: Direction.BOTH,
}
_SHIFT = struct.Struct("=q")


class ProcessClock(IntEnum):
    """The clocks of a process that `interposed.c` shifts, in its order."""

    WALL = 0
    MONOTONIC = 1
    BOOTTIME = 2


class Network:
    """The links between named processes, and the clocks of these processes.

    Add all processes (`add_process`) before the first one starts.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Compile the library into `directory`. The links are closed when `stack` closes."""
        self._directory = directory
        self._stack = stack
        self._library = compile_preloaded(Path(__file__).with_name("interposed.c"), directory)
        self._ports: dict[str, Sequence[int]] = {}
        self._links: dict[tuple[str, str], list[tuple[int, TcpProxy]]] = {}
        self._clocks: dict[str, mmap.mmap] = {}

    def add_process(self, name: str, ports: Sequence[int]) -> None:
        """Create the links between a process, which listens at `ports`, and all other processes.

        The new links replace those of a former process with this name.
        """
        self._links = {ends: links for ends, links in self._links.items() if name not in ends}
        self._ports.pop(name, None)
        for other in self._ports:
            self._add_link(other, name, ports)
            self._add_link(name, other, self._ports[other])
        self._ports[name] = ports
        path = self._clock_offset_path(name)
        path.write_bytes(bytes(_SHIFT.size * len(ProcessClock)))
        with path.open("r+b") as file:
            self._clocks[name] = mmap.mmap(file.fileno(), 0)

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment variables that make a process use its links and its shifted clocks."""
        redirected = [
            f"{port}:{proxy.port}"
            for (source, _), proxies in self._links.items()
            if source == name
            for port, proxy in proxies
        ]
        return {
            "LD_PRELOAD": str(self._library),
            "INTERPOSED_LINKS": ",".join(redirected),
            "INTERPOSED_CLOCKS": str(self._clock_offset_path(name)),
        }

    def cut(self, a: str, b: str, direction: Direction = Direction.BOTH) -> None:
        """Drop the data from `a` to `b` (REQUESTS), from `b` to `a` (RESPONSES), or both."""
        for link, way in self._links_between(a, b, direction):
            link.cut(way)

    def delay(self, a: str, b: str, seconds: float, direction: Direction = Direction.BOTH) -> None:
        """Delay the data between two processes, in one direction or both."""
        for link, way in self._links_between(a, b, direction):
            link.delay(seconds, way)

    def half_open(self, a: str, b: str) -> None:
        """Cut the links between two processes, and close only the server's ends of their connections."""
        for link, _ in self._links_between(a, b, Direction.BOTH):
            link.half_open()

    def end_faults(self, a: str, b: str) -> None:
        """End all faults of the links between two processes."""
        for link, _ in self._links_between(a, b, Direction.BOTH):
            link.end_faults()

    def shift_clock(self, name: str, clock: ProcessClock, seconds: float) -> None:
        """Let a clock of a process differ by `seconds` from the machine's clock."""
        _SHIFT.pack_into(self._clocks[name], clock * _SHIFT.size, round(seconds * 1e9))

    def _add_link(self, source: str, target: str, ports: Sequence[int]) -> None:
        links = [
            (port, TcpProxy(proxy_port, port))
            for port, proxy_port in zip(ports, free_ports(len(ports)), strict=True)
        ]
        for _, link in links:
            self._stack.callback(link.close)
        self._links[source, target] = links

    def _links_between(self, a: str, b: str, direction: Direction) -> Iterator[tuple[TcpProxy, Direction]]:
        for _, link in self._links[a, b]:
            yield link, direction
        for _, link in self._links[b, a]:
            yield link, _OPPOSITE[direction]

    def _clock_offset_path(self, name: str) -> Path:
        return self._directory / f"{name}.clocks"
