"""`lakebroker health`: whether a gateway serves, for probes of containers and load balancers."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from broker_gateway.cli.gateway_calls import DEFAULT_GATEWAY, AsJson, Gateway, TlsCa, connected
from broker_gateway.cli.output import fail

_HELP = """Asks a gateway whether it serves; status 1 when it does not, or does not answer.

Examples:

  lakebroker health

  lakebroker health --gateway broker-a:8081 --tls-ca ca.pem
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("health", help=_HELP)(health)


def health(
    gateway: Gateway = DEFAULT_GATEWAY,
    tls_ca: TlsCa = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60.0, help="Seconds to wait for the answer")] = 5.0,
    as_json: AsJson = False,
) -> None:
    with connected(gateway, None, tls_ca) as calls:
        status = calls.health(timeout)
    if as_json:
        typer.echo(json.dumps({"gateway": gateway, "status": status}))
    if status != "SERVING":
        why = "it is stopping" if status == "NOT_SERVING" else "is it a lakebroker?"
        fail(f"the gateway at {gateway} answers {status}: {why}")
    if not as_json:
        typer.echo(f"{gateway} serves")
