"""Requests of a remoting port, each behind the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from broker_gateway.auth.policy import NotAuthorizedError, Policy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Rule, rule_of
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.address import is_loopback
from broker_gateway.transport.remoting.connection import Answer, Connection, Processor

log = structlog.get_logger(__name__)


def principal_of(connection: Connection) -> Principal:
    """Who sends requests over a connection."""
    return Principal(connection.peer_host, is_loopback(connection.peer_host))


def permits(policy: Policy, connection: Connection, rule: Rule) -> bool:
    """Whether the policy lets the caller; for requests that show less to others."""
    try:
        policy.authorize(principal_of(connection), rule)
    except NotAuthorizedError:
        return False
    return True


def authorized(policy: Policy, rules: Mapping[RequestCode, Rule]) -> Callable[[int, Processor], Processor]:
    """What puts a processor behind the policy. Raises NoRuleError for a request without a rule."""

    def around(code: int, processor: Processor) -> Processor:
        name = RequestCode(code).name
        return _authorized(policy, rule_of(rules, RequestCode(code), name), name, processor)

    return around


def _authorized(policy: Policy, rule: Rule, name: str, processor: Processor) -> Processor:
    """The processor behind the policy; NO_PERMISSION for who may not."""
    asked = [each for each in rule.all if not policy.open_to_all(each)]
    if not asked and not rule.logged:
        return processor

    def checked(connection: Connection, request: Command) -> Answer:
        try:
            for each in asked:
                named = request.ext_fields.get(each.name) if each.name else None
                policy.authorize(principal_of(connection), each, () if named is None else (named,))
        except NotAuthorizedError as error:
            connection.peer_log.warning(
                connection.peer_host, "refused from another machine", request=name, peer=connection.peer
            )
            raise RequestError(f"{name} {error}", ResponseCode.NO_PERMISSION) from error
        if rule.logged:
            log.info("administration", request=name, peer=connection.peer)
        return processor(connection, request)

    return checked
