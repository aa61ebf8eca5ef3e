"""An asyncio event loop on virtual time, with simulated processes that can be killed and paused.

The loop never waits: when no callback is ready, its clock advances to the next timer. A run is reproducible,
because callbacks run in the order of their scheduling.

A task or callback belongs to the `Process` in whose context it is created. When a process is killed, its
callbacks never run again. While a process is paused, as by SIGSTOP, its due callbacks wait.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any
from weakref import WeakKeyDictionary


class Process:
    """A simulated process; all tasks and callbacks that are created in its context belong to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        # Callbacks that became due during the pause, in the order of their times.
        self.held_back: list[asyncio.Handle] = []


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
_PROCESS_OF: WeakKeyDictionary[Any, Process] = WeakKeyDictionary()


class _Handle(asyncio.Handle):
    """A callback that is deferred while its process is paused."""

    __slots__ = ()

    def _run(self) -> None:
        if not _defer_if_paused(self):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    """A timer that is deferred while its process is paused."""

    __slots__ = ()

    def _run(self) -> None:
        if not _defer_if_paused(self):
            super()._run()


def _defer_if_paused(handle: asyncio.Handle) -> bool:
    process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    if process is None or not process.paused:
        return False
    process.held_back.append(handle)
    return True


class LoopStuck(Exception):
    """Raised if no callback or timer is pending, so that the loop would wait for ever."""


# Callbacks take no virtual time. If callbacks are always ready, timers would never run. Therefore, after this
# number of iterations at the same time, each iteration advances the clock by ITERATION_S.
ITERATIONS_AT_ONCE = 20
ITERATION_S = 5e-6


class SimLoop(asyncio.BaseEventLoop):
    """The event loop.

    `network` makes the connections of this loop, and `failures` collects unhandled exceptions.
    """

    BEGAN_S = 1_000.0

    def __init__(self) -> None:
        super().__init__()
        self._now_s = self.BEGAN_S
        self._iterations = 0
        self._clock_resolution = 1e-9  # type: ignore[assignment]
        self._selector = self
        self.network: Any = None
        self.failures: list[BaseException] = []
        self.set_exception_handler(self._record_failure)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the clock instead of waiting; the loop is its own selector."""
        if timeout is None:
            raise LoopStuck("no callback is ready and no timer is set")
        self._iterations = 0 if timeout else self._iterations + 1
        self._now_s += timeout or (ITERATION_S if self._iterations > ITERATIONS_AT_ONCE else 0.0)
        return []

    def skip_time(self, seconds: float) -> None:
        """Advance the clock without running callbacks, as on a suspended machine."""
        self._now_s += seconds

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, *, backlog: int = 100
    ) -> Any:
        """Listen on the simulated network."""
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, *, ssl: None = None
    ) -> tuple[Any, Any]:
        """Connect over the simulated network."""
        protocol = protocol_factory()
        transport = await self.network.open(protocol, host, port)
        protocol.connection_made(transport)
        return transport, protocol

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function at once in the loop's thread, because the simulation has no other threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    @staticmethod
    def _make_task(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            _PROCESS_OF[task] = process
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback; if its process is paused at that time, the callback is deferred."""
        handle = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    def resume(self, process: Process) -> None:
        """End the pause of a process: its deferred callbacks run first."""
        process.paused = False
        held_back, process.held_back = process.held_back, []
        self._ready.extend(held_back)  # type: ignore[attr-defined]

    async def kill(self, process: Process) -> None:
        """Kill a process: cancel its tasks and callbacks without advancing the clock.

        The caller must disconnect the process from its disk and the network first.
        """
        process.alive = False
        self.resume(process)
        while tasks := list(process.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            if handle._context.get(PROCESS) is process:
                handle.cancel()

    def _record_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio may report a failed task in the context of another process, so use the task's own context.
        task = context.get("future") or context.get("task")
        process = PROCESS.get() if task is None else _PROCESS_OF.get(task, PROCESS.get())
        if process is None or process.alive:
            self.failures.append(context.get("exception") or RuntimeError(str(context)))

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: no events come from outside."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on virtual time, like asyncio.run."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(main)
