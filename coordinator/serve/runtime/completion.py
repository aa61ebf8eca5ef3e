"""Answer operations. A callback that raises affects its own operation only.

The failure is reported to the event loop's exception handler.  The client of that operation gets no response,
and gives up at its own request timeout.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from coordinator.serve.runtime.operations import Operation
from protocol.errors import ErrorCode


def send_response(operation: Operation, answered: Any) -> None:
    """Send the response of an operation."""
    try:
        operation.answer(answered)
    except Exception as failure:
        report_failure("answering an operation failed", failure)


def refuse_operation(operation: Operation, error_code: ErrorCode, message: str) -> None:
    """Answer an operation with an error."""
    try:
        operation.refuse(error_code, message)
    except Exception as failure:
        report_failure("refusing an operation failed", failure)


def refuse_all(operations: Iterable[Operation], error_code: ErrorCode, message: str) -> None:
    """Answer operations with an error."""
    for operation in operations:
        refuse_operation(operation, error_code, message)


def report_failure(message: str, failure: Exception) -> None:
    """Report a defect that affected one operation to the exception handler of the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure})
