"""RPCs of a gRPC port, each behind the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from broker_gateway.auth.policy import Denial, NotAuthorizedError, Policy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Rule, rule_of
from broker_gateway.protocol.resource_names import resource_name
from broker_gateway.runtime.shares import host_of
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import Method

_CODES = {Denial.UNKNOWN: "UNAUTHENTICATED", Denial.FORBIDDEN: "PERMISSION_DENIED"}


def principal_of(context: CallContext) -> Principal:
    """Who makes a call."""
    shown = context.metadata.get("authorization", "")
    return Principal(host_of(context.peer), context.loopback, shown)


def names_of(message: Message, path: str) -> list[str]:
    """What a field names, in full; `path` goes through messages, and through each of a repeated one."""
    found: list[Any] = [message]
    for field in path.split("."):
        values = [getattr(each, field) for each in found]
        found = []
        for value in values:
            found.extend([value] if isinstance(value, str | Message) else value)
    return [each if isinstance(each, str) else resource_name(each) for each in found]


def authorized(policy: Policy, rules: Mapping[str, Rule]) -> Callable[[Method], Method]:
    """What puts an RPC behind the policy. Raises NoRuleError for one without a rule.

    An RPC that is open to all is left as it is: sends and receives cost nothing for it.
    """

    def around(method: Method) -> Method:
        rule = rule_of(rules, method.path, method.path)
        asked = [each for each in rule.all if not policy.open_to_all(each)]
        if not asked:
            return method
        call = method.call

        def names(request: Any, each: Rule) -> Sequence[str]:
            if not each.name:
                return ()
            message = method.request_of(request) if isinstance(request, bytes) else request
            return names_of(message, each.name)

        def check(request: Any, context: CallContext) -> None:
            try:
                for each in asked:
                    policy.authorize(principal_of(context), each, names(request, each))
            except NotAuthorizedError as error:
                raise RpcError(_CODES[error.denial], str(error)) from error

        def plain(request: Any, context: CallContext) -> Any:
            check(request, context)
            return call(request, context)

        async def coroutine(request: Any, context: CallContext) -> Any:
            check(request, context)
            return await call(request, context)

        return replace(method, call=coroutine if method.coroutine else plain)

    return around
