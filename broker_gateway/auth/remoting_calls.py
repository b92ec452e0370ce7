"""Requests of a remoting port, each behind the policy."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from broker_gateway.auth.policy import NotAuthorizedError, Policy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Rule
from broker_gateway.remoting.address import is_loopback
from broker_gateway.remoting.codes import RequestCode, ResponseCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.connection import Answer, Connection, Processor, Processors
from broker_gateway.remoting.errors import RequestError

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


def guard(processors: Processors, policy: Policy, rules: Mapping[RequestCode, Rule]) -> None:
    """Puts every processor that is registered behind the policy. Raises KeyError for a request without a rule."""
    for code, processor in processors.by_code.items():
        processors.by_code[code] = _authorized(policy, rules[RequestCode(code)], RequestCode(code), processor)


def _authorized(policy: Policy, rule: Rule, code: RequestCode, processor: Processor) -> Processor:
    """The processor behind the policy; NO_PERMISSION for who may not."""
    if policy.open(rule) and not rule.logged:
        return processor

    def asked(connection: Connection, request: Command) -> Answer:
        try:
            policy.authorize(principal_of(connection), rule)
        except NotAuthorizedError as error:
            connection.peer_log.warning(
                connection.peer_host, "refused from another machine", request=code.name, peer=connection.peer
            )
            raise RequestError(f"{code.name} {error}", ResponseCode.NO_PERMISSION) from error
        if rule.logged:
            log.info("administration", request=code.name, peer=connection.peer)
        return processor(connection, request)

    return asked
