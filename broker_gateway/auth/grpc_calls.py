"""RPCs of a gRPC port, each behind the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker_gateway.auth.policy import Denial, NotAuthorizedError, Policy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Rule
from broker_gateway.runtime.shares import host_of
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import Method

_CODES = {Denial.UNKNOWN: "UNAUTHENTICATED", Denial.FORBIDDEN: "PERMISSION_DENIED"}


def principal_of(context: CallContext) -> Principal:
    """Who makes a call."""
    shown = context.metadata.get("authorization", "")
    return Principal(host_of(context.peer), context.loopback, shown)


def authorized(policy: Policy, rules: Mapping[str, Rule]) -> Callable[[Method], Method]:
    """What puts an RPC behind the policy. Raises KeyError for one without a rule.

    An RPC that is open to all is left as it is: sends and receives cost nothing for it.
    """

    def around(method: Method) -> Method:
        rule = rules[method.path]
        if policy.open(rule):
            return method
        call = method.call

        def check(context: CallContext) -> None:
            try:
                policy.authorize(principal_of(context), rule)
            except NotAuthorizedError as error:
                raise RpcError(_CODES[error.denial], str(error)) from error

        def plain(request: Any, context: CallContext) -> Any:
            check(context)
            return call(request, context)

        async def coroutine(request: Any, context: CallContext) -> Any:
            check(context)
            return await call(request, context)

        return replace(method, call=coroutine if method.coroutine else plain)

    return around
