"""Run the demo, and print a failure in one line."""

import asyncio
import sys
from typing import TextIO
from uuid import uuid4  # noqa: TID251

from coordinator.cli.demo.output import TextOutput
from coordinator.cli.demo.story import UnexpectedAcceptance, run_steps
from coordinator.client import (
    ClientSecurity,
    ConnectionLimits,
    CoordinatorUnavailable,
    Disconnected,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
    SharePartitionKey,
    UnsupportedVersion,
)
from coordinator.errors import ConfigError

EXIT_FAILED = 1

# A user waits for the result, so failed requests are given up after seconds instead of minutes.
_RETRY = RetryPolicy(attempts_max=3, first_s=0.25)
_LIMITS = ConnectionLimits(connect_s=5.0, request_s=10.0)


def run(
    bootstrap: str,
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    retry: RetryPolicy = _RETRY,
    security: ClientSecurity | None = None,
) -> int:
    """Run the demo against a running coordinator; return the exit code of the process.

    The steps are written to `out` (None: stdout), and a failure to `err` (None: stderr). Raises ConfigError
    for an invalid bootstrap address. The state of the demo belongs to a separate share group and is deleted
    at the end.
    """
    out = out or sys.stdout
    return asyncio.run(_run_demo(bootstrap, TextOutput(out), err or sys.stderr, retry, security))


async def _run_demo(
    bootstrap: str, output: TextOutput, err: TextIO, retry: RetryPolicy, security: ClientSecurity | None
) -> int:
    name = uuid4()
    key = SharePartitionKey(f"demo-{name.hex[:8]}", name.bytes, 0)
    try:
        client = ShareCoordinatorClient(
            bootstrap,
            client_id="share-coordinator-demo",
            retry=retry,
            limits=_LIMITS,
            security=security,
        )
    except ValueError:
        raise ConfigError("bootstrap", bootstrap, "HOST:PORT of a running coordinator") from None
    began = False
    async with client:
        try:
            async for step, responses, state in run_steps(client, key):
                if not began:
                    output.show_share_partition(bootstrap, key)
                    began = True
                output.show_step(step, responses, state)
        except (ShareCoordinatorError, UnexpectedAcceptance) as error:
            err.write(f"share-coordinator demo: {_explain_error(error, bootstrap, began=began)}\n")
            return EXIT_FAILED
    return 0


def _explain_error(error: Exception, bootstrap: str, *, began: bool) -> str:
    if isinstance(error, UnexpectedAcceptance):
        return str(error)
    assert isinstance(error, ShareCoordinatorError)
    said = error.message if isinstance(error, Disconnected) else f"{error.message} ({error.error_code.name})"
    if began:
        return f"the coordinator at {bootstrap} failed during the demo: {said}"
    if isinstance(error, UnsupportedVersion):
        return f"{bootstrap} is not a share coordinator: {said}"
    if isinstance(error, CoordinatorUnavailable):
        return (
            f"no share coordinator answers at {bootstrap}. {said} "
            "To start one: share-coordinator serve. To name another: --bootstrap HOST:PORT."
        )
    return f"the coordinator at {bootstrap} refused the first request: {said}"
