"""The metrics port behind the policy: one kind of call, whatever its path."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from broker_gateway.auth.policy import Denial, NotAuthorizedError, Policy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Action, Kind, Rule
from broker_gateway.transport.remoting.address import is_loopback

READ_METRICS = Rule(Action.GET, Kind.CLUSTER)
_STATUS = {Denial.UNKNOWN: "401 Unauthorized", Denial.FORBIDDEN: "403 Forbidden"}


def authorized(policy: Policy, app: WSGIApplication) -> WSGIApplication:
    """The WSGI application behind the policy; `app` itself where metrics are open to all."""
    if policy.open_to_all(READ_METRICS):
        return app

    def asked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("REMOTE_ADDR", "")
        caller = Principal(host, is_loopback(host), environ.get("HTTP_AUTHORIZATION", ""))
        try:
            policy.authorize(caller, READ_METRICS)
        except NotAuthorizedError as error:
            start_response(_STATUS[error.denial], [("Content-Type", "text/plain; charset=utf-8")])
            return [f"metrics: {error}\n".encode()]
        return app(environ, start_response)

    return asked
