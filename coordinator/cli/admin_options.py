"""The options with which commands connect to a running coordinator."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

DEFAULT_URL = "http://127.0.0.1:9096"
URL_ENV = "SHARE_COORDINATOR_URL"

ExecuteOption = Annotated[
    bool,
    typer.Option("--execute/--dry-run", help="Execute the change. The default is a dry run."),
]


class _OptionSpec(NamedTuple):
    name: str
    default: str
    annotation: Any


def _file_option(name: str, meaning: str) -> _OptionSpec:
    attribute = name.replace("-", "_")
    env = "SHARE_COORDINATOR_" + attribute.upper()
    option = typer.Option(f"--{name}", metavar="FILE", help=meaning, envvar=env, show_default=False)
    return _OptionSpec(attribute, "", Annotated[str, option])


_OPTIONS = (
    _OptionSpec(
        "url",
        DEFAULT_URL,
        Annotated[
            str,
            typer.Option("--url", metavar="URL", help="The coordinator's HTTP address.", envvar=URL_ENV),
        ],
    ),
    _file_option("token-file", "A file with the bearer token."),
    _file_option("ca", "A PEM file with the authority of the server certificate. Default: the system's."),
    _file_option("cert", "A PEM file with the client certificate."),
    _file_option("key", "A PEM file with its key. Default: the file of the certificate."),
)


def with_admin_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command; it gets an `AdminClient` as `api`."""
    signature = inspect.signature(command)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "api"]
    added = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=option.annotation,
        )
        for option in _OPTIONS
    ]

    def run(**given: Any) -> None:
        from coordinator.cli.admin_client import AdminClient

        reached = {option.name: given.pop(option.name) for option in _OPTIONS}
        command(api=AdminClient(**reached), **given)

    described: Any = run
    described.__name__, described.__doc__ = command.__name__, command.__doc__
    described.__signature__ = signature.replace(
        parameters=[*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *added]
    )
    described.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return run
