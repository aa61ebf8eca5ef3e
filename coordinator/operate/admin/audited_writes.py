"""Authorize the requests that change something, and write each executed one to the audit log.

Without `execute`, a request is a dry run. For each executed request, one line with client, request and
outcome is written to the `coordinator.audit` log. The only requests that change something are a hand-over and
a round of expiry: no HTTP request sets offsets, because that is the task of Kafka's group coordinator.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from coordinator.errors import OperationFailed
from coordinator.operate.admin.access_control import HttpPrincipal, audit
from coordinator.operate.admin.access_middleware import AUTHORIZE_WRITE, PRINCIPAL
from coordinator.printable import escape_unprintable

Answer = TypeVar("Answer", bound=BaseModel)


class WriteRequest(BaseModel):
    """The body of a request that changes something, validated strictly."""

    model_config = ConfigDict(extra="forbid", strict=True)

    execute: bool = Field(default=False, description="False: a dry run, which changes nothing.")


def authorize_write(request: Request) -> None:
    getattr(request.state, AUTHORIZE_WRITE)()


async def run_audited_request(
    request: Request, what: str, request_body: BaseModel, work: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Authorize and execute a request; write one audit line for any outcome. Raises AccessDenied."""
    authorize_write(request)
    principal: HttpPrincipal = getattr(request.state, PRINCIPAL)
    given = {
        name: value
        for name, value in request_body.model_dump().items()
        if value is not None and name != "execute"
    }
    audit_fields: dict[str, Any] = {
        "who": escape_unprintable(principal.who),
        "address": principal.address,
        "what": what,
        "order": given,
    }
    try:
        done = await work()
    except HTTPException as error:
        audit.warning("write request refused", extra={**audit_fields, "outcome": error.detail})
        raise
    except OperationFailed as error:
        audit.warning("write request refused", extra={**audit_fields, "outcome": str(error)})
        raise HTTPException(409, str(error)) from None
    except BaseException as error:
        audit.error("write request failed", extra={**audit_fields, "outcome": repr(error)})
        raise
    outcome = str(getattr(done, "outcome", "done"))
    audit.info("write request executed", extra={**audit_fields, "outcome": outcome})
    return done
