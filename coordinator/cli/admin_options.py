"""The options of commands that ask a running coordinator."""

from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:9096"
URL_ENV = "SHARE_COORDINATOR_URL"
UrlOption = Annotated[
    str,
    typer.Option("--url", metavar="URL", help="Where the coordinator answers HTTP.", envvar=URL_ENV),
]
CLUSTER_FLAGS = """
\b
Names of topics, and the lag, come from the coordinator, if it knows the cluster (bootstrap.servers), or from
  --bootstrap-servers HOST:PORT,...   and the other settings of a client, as serve takes them
"""
