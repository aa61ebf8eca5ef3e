"""The options with which commands connect to a running coordinator."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

DEFAULT_URL = "http://127.0.0.1:9096"
URL_ENV = "SHARE_COORDINATOR_URL"

ExecuteOption = Annotated[
    bool,
    typer.Option("--execute/--dry-run", help="Execute the change. The default is a dry run."),
]


def _make_file_option(name: str, meaning: str) -> Any:
    env = "SHARE_COORDINATOR_" + name.replace("-", "_").upper()
    return typer.Option(f"--{name}", metavar="FILE", help=meaning, envvar=env, show_default=False)


TokenFile = Annotated[str, _make_file_option("token-file", "A file with the bearer token.")]
Ca = Annotated[
    str,
    _make_file_option(
        "ca", "A PEM file with the authority of the server certificate. Default: the system's."
    ),
]
Cert = Annotated[str, _make_file_option("cert", "A PEM file with the client certificate.")]
Key = Annotated[
    str, _make_file_option("key", "A PEM file with its key. Default: the file of the certificate.")
]

# The command-line options, by the name of the parameter of `AdminClient` that each option sets.
_OPTIONS = {
    "url": Annotated[
        str, typer.Option("--url", metavar="URL", help="The coordinator's HTTP address.", envvar=URL_ENV)
    ],
    **{"token_file": TokenFile, "ca": Ca, "cert": Cert, "key": Key},
}


def with_admin_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which gets an `AdminClient` as argument `api`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(command)
    parameters = [each.replace(kind=keyword) for each in signature.parameters.values() if each.name != "api"]
    for name, annotation in _OPTIONS.items():
        default = DEFAULT_URL if name == "url" else ""
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))

    def run_with_client(**given: Any) -> None:
        from coordinator.cli.admin_client import AdminClient

        connection = {name: given.pop(name) for name in _OPTIONS}
        command(api=AdminClient(**connection), **given)

    # Typer reads the name, the docstring, the signature and the annotations of a command.
    described: Any = run_with_client
    described.__name__, described.__doc__ = command.__name__, command.__doc__
    described.__signature__ = signature.replace(parameters=parameters)
    described.__annotations__ = {each.name: each.annotation for each in parameters}
    return run_with_client
