"""Draw a schedule of network partitions and paused processes from a seed.

A schedule consists of values only, so its seed describes it completely. The times of requests are not part of
it: a run of the same seed differs in the order of concurrent requests.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

from tests.kafka.tcp_proxy import Direction
from tests.topic.linked_brokers import PLACES


class FaultKind(Enum):
    """The kinds of faults. Each affects one coordinator."""

    CUT = "cut"
    DELAY = "delay"
    HALF_OPEN = "half-open"
    # SIGSTOP, and SIGCONT at the end.
    PAUSE = "pause"


@dataclass(frozen=True)
class Fault:
    """A fault of one coordinator from `start_s` to `end_s`, in seconds since the begin of the schedule.

    It affects the links to `nodes`, and the link from the other coordinators if `peers` is true.
    """

    start_s: float
    end_s: float
    kind: FaultKind
    place: int
    nodes: tuple[int, ...] = ()
    peers: bool = False
    direction: Direction = Direction.BOTH
    delay_s: float = 0.0

    def __str__(self) -> str:
        links = [f"broker {node}" for node in self.nodes] + ["its peers"] * self.peers
        how = f"{self.direction.name} by {self.delay_s:.2f} s" if self.delay_s else str(self.direction.name)
        where = f" {how} of {', '.join(links)}" if links else ""
        return (
            f"{self.start_s:5.2f} - {self.end_s:5.2f} s: coordinator {self.place}: {self.kind.value}{where}"
        )


@dataclass(frozen=True)
class Schedule:
    """All faults of one run."""

    seed: int
    lasts_s: float
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}:", *map(str, self.faults)])


def isolation(place: int, lasts_s: float) -> Schedule:
    """Return a schedule in which clients reach a coordinator that reaches no broker."""
    cut = Fault(0.5, lasts_s, FaultKind.CUT, place, nodes=(1, 2, 3))
    return Schedule(place, lasts_s, (cut,))


def draw_schedule(seed: int, lasts_s: float) -> Schedule:
    """Draw faults on two tracks, each of which has one fault at a time. The tracks affect different
    coordinators, so at least one coordinator has no fault.
    """
    rng = Random(seed)
    faults: list[Fault] = []
    for place in rng.sample(range(PLACES), 2):
        start_s = rng.uniform(0.1, 0.5)
        while start_s < 0.8 * lasts_s:
            # Half of the faults last until the end of the schedule, so other coordinators take over.
            end_s = lasts_s if rng.random() < 0.5 else min(lasts_s, start_s + rng.uniform(0.2, 2.0))
            faults.append(_draw_fault(rng, place, start_s, end_s))
            start_s = end_s + rng.uniform(0.1, 0.5)
    return Schedule(seed, lasts_s, tuple(sorted(faults, key=lambda fault: fault.start_s)))


def _draw_fault(rng: Random, place: int, start_s: float, end_s: float) -> Fault:
    kinds = (
        FaultKind.CUT,
        FaultKind.CUT,
        FaultKind.CUT,
        FaultKind.DELAY,
        FaultKind.HALF_OPEN,
        FaultKind.PAUSE,
    )
    kind = rng.choice(kinds)
    if kind is FaultKind.PAUSE:
        return Fault(start_s, end_s, kind, place)
    nodes = rng.choice(((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3), (1,), (2,), (3,), ()))
    direction = Direction.BOTH
    if kind is not FaultKind.HALF_OPEN:
        direction = rng.choice((Direction.BOTH, Direction.BOTH, Direction.REQUESTS, Direction.RESPONSES))
    delay_s = rng.uniform(0.02, 1.0) if kind is FaultKind.DELAY else 0.0
    return Fault(start_s, end_s, kind, place, nodes, not nodes or rng.random() < 0.3, direction, delay_s)
