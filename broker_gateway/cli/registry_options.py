"""How schema registries are spoken to, as options of commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.gateway_calls import check_token

if TYPE_CHECKING:
    from structured_streaming.registry.access import RegistryAccess

RegistryUrl = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="LAKEBROKER_REGISTRY",
        help="URL of the schema registry that the following are for, such as https://registry:8081; no other gets them",
    ),
]
RegistryTokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_REGISTRY_TOKEN_FILE", help="File with a bearer token for the schema registry"
    ),
]
RegistryUserFile = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_REGISTRY_USER_FILE", help="File with user:password for the schema registry"
    ),
]
RegistryTlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_REGISTRY_TLS_CA",
        help="File with certificates of the authorities that count for the schema registry, PEM; else the system's",
    ),
]


def registry_access(
    url: str, token_file: Path | None, user_file: Path | None, tls_ca: Path | None
) -> RegistryAccess:
    """What was given. Ends the command for a file that others may read."""
    from structured_streaming.registry.access import TOKEN_FILE, USER_FILE, RegistryAccess

    for option, file in ((TOKEN_FILE, token_file), (USER_FILE, user_file)):
        if file is not None:
            check_token(file, option)
    return RegistryAccess(url, *(str(file) if file else "" for file in (token_file, user_file, tls_ca)))
