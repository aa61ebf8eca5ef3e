"""Draw a schedule of network partitions, paused and killed processes, and shifted clocks from a seed.

All values of a schedule are drawn from its seed, so the seed reproduces the schedule. The times of
requests are not part of a schedule: a run of the same seed differs in the order of concurrent requests.
"""

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from tests.kafka.tcp_proxy import Direction
from tests.topic.linked_brokers import BROKERS, broker_name

# The number of coordinators. A place is the number of a coordinator, counted from 0.
PLACES = 3
# Every fourth seed also has a fault of a broker. Such a schedule lasts BROKER_FAULT_S longer, because other
# brokers take over only after the broker's session has expired. Half of these faults affect the process of
# the broker, the others its links.
BROKER_FAULT_EVERY = 4
BROKER_PROCESS_FAULT_EVERY = 8
BROKER_FAULT_S = 4.0
WALL_CLOCK_STEP_MAX_S = 86_400.0


class FaultKind(Enum):
    """The kinds of faults."""

    CUT = "cut"
    DELAY = "delay"
    HALF_OPEN = "half-open"
    # SIGSTOP, and SIGCONT at the end.
    PAUSE = "pause"
    # Like PAUSE, but afterwards CLOCK_MONOTONIC does not include the pause, as after a suspension.
    SUSPEND = "suspend"
    # SIGKILL or SIGTERM, and a start at the end.
    KILL = "kill"
    STOP = "stop"
    WALL_CLOCK = "step of the wall clock"


PROCESS_FAULTS = (FaultKind.PAUSE, FaultKind.SUSPEND, FaultKind.KILL, FaultKind.STOP)


@dataclass(frozen=True)
class ScheduledFault:
    """A fault from `start_s` to `end_s`, in seconds since the begin of the schedule.

    A fault affects the processes `inside`, or each link between a process `inside` and a process `outside`.
    REQUESTS is the direction from `inside` to `outside`. `seconds` is a delay, or the step of a clock.
    """

    start_s: float
    end_s: float
    kind: FaultKind
    inside: tuple[str, ...]
    outside: tuple[str, ...] = ()
    direction: Direction = Direction.BOTH
    seconds: float = 0.0

    def __str__(self) -> str:
        links = f" {self.direction.name}, to {', '.join(self.outside)}" if self.outside else ""
        amount = f" of {self.seconds:.2f} s" if self.seconds else ""
        what = f"{', '.join(self.inside)}: {self.kind.value}{amount}{links}"
        return f"{self.start_s:5.2f} - {self.end_s:5.2f} s: {what}"


@dataclass(frozen=True)
class FaultSchedule:
    """All faults of one run."""

    seed: int
    faults: tuple[ScheduledFault, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}:", *map(str, self.faults)])


def coordinator_name(place: int) -> str:
    """Return the name of a coordinator in the network."""
    return f"coordinator-{place}"


_BROKERS = tuple(map(broker_name, BROKERS))
_COORDINATORS = tuple(map(coordinator_name, range(PLACES)))


def isolate_coordinator(place: int, lasts_s: float) -> FaultSchedule:
    """Return a schedule in which clients reach a coordinator that reaches no broker."""
    return FaultSchedule(
        place, (ScheduledFault(0.5, lasts_s, FaultKind.CUT, (_COORDINATORS[place],), _BROKERS),)
    )


def isolate_and_suspend(place: int, lasts_s: float) -> FaultSchedule:
    """Return a schedule in which an isolated coordinator is suspended while others take over its shards."""
    isolation = isolate_coordinator(place, lasts_s)
    suspension = ScheduledFault(0.6, 0.75 * lasts_s, FaultKind.SUSPEND, (_COORDINATORS[place],))
    return replace(isolation, faults=(*isolation.faults, suspension))


def make_island_schedule(place: int, lasts_s: float) -> FaultSchedule:
    """Return a schedule in which clients reach a coordinator that reaches only one broker.

    That broker reaches no other coordinator and no other broker.
    """
    inside = (_COORDINATORS[place], _BROKERS[place % len(_BROKERS)])
    return FaultSchedule(
        place, (ScheduledFault(0.5, lasts_s, FaultKind.CUT, inside, _all_processes_but(*inside)),)
    )


def draw_schedule(seed: int, lasts_s: float) -> FaultSchedule:
    """Draw faults on two tracks, each of which has one fault at a time.

    The tracks affect two coordinators, or a coordinator and a broker. The broker may be on an island with
    another coordinator. At least one coordinator and two brokers have no fault.
    """
    rng = Random(seed)
    first, second, _ = rng.sample(_COORDINATORS, PLACES)
    has_broker_fault = seed % BROKER_FAULT_EVERY == 0
    lasts_s += BROKER_FAULT_S * has_broker_fault
    broker = rng.choice(_BROKERS)
    faults: list[ScheduledFault] = []
    for name in (first, second):
        start_s = rng.uniform(0.1, 0.5)
        while start_s < 0.8 * lasts_s:
            # Half of the faults last until the end of the schedule, so other processes take over.
            end_s = lasts_s if rng.random() < 0.5 else min(lasts_s, start_s + rng.uniform(0.2, 2.0))
            if seed % BROKER_PROCESS_FAULT_EVERY == 0 and name == first:
                kind = rng.choice((FaultKind.PAUSE, FaultKind.KILL, FaultKind.STOP))
                faults.append(ScheduledFault(start_s, end_s, kind, (broker,)))
            elif has_broker_fault and name == first:
                faults.append(_draw_broker_fault(rng, broker, name, start_s, end_s))
            else:
                faults.append(_draw_coordinator_fault(rng, name, start_s, end_s))
            start_s = end_s + rng.uniform(0.1, 0.5)
    return FaultSchedule(seed, tuple(sorted(faults, key=lambda fault: fault.start_s)))


def _draw_coordinator_fault(rng: Random, name: str, start_s: float, end_s: float) -> ScheduledFault:
    kinds = (FaultKind.CUT, FaultKind.CUT, FaultKind.CUT, *FaultKind)
    kind = rng.choice(kinds)
    if kind is FaultKind.WALL_CLOCK:
        step_s = rng.uniform(-WALL_CLOCK_STEP_MAX_S, WALL_CLOCK_STEP_MAX_S)
        return ScheduledFault(start_s, end_s, kind, (name,), seconds=step_s)
    if kind in PROCESS_FAULTS:
        return ScheduledFault(start_s, end_s, kind, (name,))
    some = rng.choice((_BROKERS, _BROKERS, _BROKERS, _BROKERS, *((each,) for each in _BROKERS), ()))
    peers = tuple(each for each in _COORDINATORS if each != name)
    outside = some + peers * (not some or rng.random() < 0.3)
    return _draw_link_fault(rng, ScheduledFault(start_s, end_s, kind, (name,), outside))


def _draw_broker_fault(
    rng: Random, broker: str, coordinator: str, start_s: float, end_s: float
) -> ScheduledFault:
    if rng.random() < 0.4:
        inside = (broker, coordinator)
        return ScheduledFault(start_s, end_s, FaultKind.CUT, inside, _all_processes_but(*inside))
    kind = rng.choice((FaultKind.CUT, FaultKind.CUT, FaultKind.DELAY, FaultKind.HALF_OPEN))
    others = tuple(each for each in _BROKERS if each != broker)
    outside = rng.choice((others, others, others[:1], others[1:]))
    return _draw_link_fault(rng, ScheduledFault(start_s, end_s, kind, (broker,), outside))


def _draw_link_fault(rng: Random, fault: ScheduledFault) -> ScheduledFault:
    direction = Direction.BOTH
    if fault.kind is not FaultKind.HALF_OPEN:
        direction = rng.choice((Direction.BOTH, Direction.BOTH, Direction.REQUESTS, Direction.RESPONSES))
    delay_s = rng.uniform(0.02, 1.0) if fault.kind is FaultKind.DELAY else 0.0
    return replace(fault, direction=direction, seconds=delay_s)


def _all_processes_but(*names: str) -> tuple[str, ...]:
    return tuple(each for each in _BROKERS + _COORDINATORS if each not in names)
