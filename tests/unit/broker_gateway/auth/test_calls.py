"""Every call of every port passes the policy: with one that refuses all, nothing is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker_gateway.auth.grpc_calls import authorized
from broker_gateway.auth.policy import Denial, NotAuthorizedError, Token
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.remoting_calls import guard
from broker_gateway.auth.requests import BROKER_REQUESTS, NAME_SERVER_REQUESTS
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.auth.rules import Action, Kind, Rule
from broker_gateway.remoting.codes import RequestCode, ResponseCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.connection import Connection, ConnectionOptions, Processors
from broker_gateway.remoting.errors import RequestError
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import methods
from lakebroker_pb.apache.rocketmq.v2 import service_pb2
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_pb.lakebroker.log.v1 import log_pb2

SERVICES = [
    service_pb2.DESCRIPTOR.services_by_name["MessagingService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    log_pb2.DESCRIPTOR.services_by_name["LogService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]
ELSEWHERE = CallContext({}, "192.0.2.7:5000", None, ("127.0.0.1", 8081))


class Nobody:
    """Refuses everything."""

    def open(self, rule: Rule) -> bool:
        return False

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        raise NotAuthorizedError(Denial.FORBIDDEN, "is for nobody")


class Everything:
    """Has a method for each RPC, and says when one is called."""

    def __init__(self, service: ServiceDescriptor) -> None:
        self.called: list[str] = []
        for number, method in enumerate(service.methods):
            setattr(
                self, method.name, self._plain(method.name) if number % 2 else self._coroutine(method.name)
            )

    def _plain(self, name: str) -> Any:
        return lambda request, context: self.called.append(name)

    def _coroutine(self, name: str) -> Any:
        async def call(request: Any, context: CallContext) -> None:
            self.called.append(name)

        return call


async def call_all(service: ServiceDescriptor, policy: Any) -> tuple[list[str], list[str]]:
    """What was called, and what was refused."""
    served = Everything(service)
    refused = []
    for method in methods(service, served, authorized(policy, RPCS)):
        try:
            answer = method.call(None, ELSEWHERE)
            if method.coroutine:
                await answer
        except RpcError as error:
            refused.append(f"{error.code} {method.path}")
    return served.called, refused


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_every_rpc_is_asked_about(service: ServiceDescriptor) -> None:
    called, refused = asyncio.run(call_all(service, Nobody()))
    assert called == []
    assert refused == [f"PERMISSION_DENIED /{service.full_name}/{method.name}" for method in service.methods]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_from_elsewhere_owners_calls_alone_are_refused(service: ServiceDescriptor) -> None:
    called, refused = asyncio.run(call_all(service, Token(None)))
    owners = service.full_name.startswith("lakebroker.")
    assert len(refused) == (len(service.methods) if owners else 0)
    assert len(called) == (0 if owners else len(service.methods))


def test_an_rpc_without_a_rule_is_not_bound() -> None:
    (service, *_) = SERVICES
    with pytest.raises(KeyError, match="QueryRoute"):
        list(methods(service, Everything(service), authorized(Token(None), {})))


@pytest.mark.parametrize("rules", [BROKER_REQUESTS, NAME_SERVER_REQUESTS], ids=["broker", "name server"])
def test_every_request_is_asked_about(rules: dict[RequestCode, Rule]) -> None:
    processors, called = Processors(), []
    for code in rules:
        processors.register(code, lambda connection, request: called.append(request.code))  # type: ignore[arg-type]
    guard(processors, Nobody(), rules)

    async def ask() -> None:
        connection = Connection(Processors(), ConnectionOptions())
        connection.peer_host = "192.0.2.7"
        for code in rules:
            with pytest.raises(RequestError, match=f"{code.name} is for nobody") as refused:
                processors.by_code[code](connection, Command(code))
            assert refused.value.code == ResponseCode.NO_PERMISSION

    asyncio.run(ask())
    assert called == []


def test_a_request_without_a_rule_is_not_bound() -> None:
    processors = Processors()
    processors.register(RequestCode.SEND_MESSAGE, SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        guard(processors, Nobody(), BROKER_REQUESTS)


def test_a_secret_is_not_shown() -> None:
    assert "secret" not in repr(Principal("h", False, "Bearer secret"))


def test_rules_are_of_all_kinds() -> None:
    rules = [*RPCS.values(), *BROKER_REQUESTS.values(), *NAME_SERVER_REQUESTS.values()]
    assert {each.action for each in rules} == set(Action) - {Action.CREATE}
    assert {each.kind for each in rules} == set(Kind)
