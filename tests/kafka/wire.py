"""Send inter-broker requests to a broker, for example to its built-in share coordinator."""

import socket
import struct
from typing import Any

from protocol.messages import request_header, response_header

HOST = "127.0.0.1"


def send_request(port: int, api: Any, version: int, request: Any) -> Any:
    """Send one request over a new connection to `port` of the loopback address; return the response.

    `api` is a module of `protocol.messages`, and `version` a flexible version of that API.
    """
    header = request_header.RequestHeader(api.API_KEY, version, 0, "test")
    frame = request_header.encode(header, 2) + api.encode_request(request, version)
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    _, start = response_header.decode(answer, 0, 1)
    return api.decode_response(answer, start, version)
