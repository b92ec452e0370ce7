"""Every call of every port passes the policy: with one that refuses all, nothing is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker_gateway.auth import metrics_calls, remoting_calls
from broker_gateway.auth.grpc_calls import authorized, names_of
from broker_gateway.auth.policy import Denial, NotAuthorizedError, TokenPolicy
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.requests import BROKER_REQUESTS, NAME_SERVER_REQUESTS
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.auth.rules import Action, Kind, NoRuleError, Rule
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.methods import methods
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public_admin_pb2
from lakebroker_pb.apache.rocketmq.v2 import service_pb2
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_pb.lakebroker.log.v1 import log_pb2

SERVICES = [
    service_pb2.DESCRIPTOR.services_by_name["MessagingService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    public_admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    log_pb2.DESCRIPTOR.services_by_name["LogService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]
ELSEWHERE = CallContext({}, "192.0.2.7:5000", None, ("127.0.0.1", 8081))


class Nobody:
    """Refuses everything."""

    names: Sequence[str] = ()

    def open_to_all(self, rule: Rule) -> bool:
        return False

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        self.names = names
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
            answer = method.call(method.request_of(b""), ELSEWHERE)
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
def test_from_elsewhere_operators_calls_alone_are_refused(service: ServiceDescriptor) -> None:
    called, refused = asyncio.run(call_all(service, TokenPolicy(None)))
    operators = service.full_name.startswith("lakebroker.") or service.name == "Admin"
    assert len(refused) == (len(service.methods) if operators else 0)
    assert len(called) == (0 if operators else len(service.methods))


def test_an_rpc_without_a_rule_is_not_bound() -> None:
    (service, *_) = SERVICES
    with pytest.raises(NoRuleError, match="QueryRoute has no rule; add one"):
        list(methods(service, Everything(service), authorized(TokenPolicy(None), {})))


@pytest.mark.parametrize("rules", [BROKER_REQUESTS, NAME_SERVER_REQUESTS], ids=["broker", "name server"])
def test_every_request_is_asked_about(rules: dict[RequestCode, Rule]) -> None:
    policy, called = Nobody(), []
    processors = Processors(around=remoting_calls.authorized(policy, rules))
    for code in rules:
        processors.register(code, lambda connection, request: called.append(request.code))  # type: ignore[arg-type]

    async def ask() -> None:
        connection = Connection(Processors(), ConnectionOptions())
        connection.peer_host = "192.0.2.7"
        for code, rule in rules.items():
            with pytest.raises(RequestError, match=f"{code.name} is for nobody") as refused:
                processors.by_code[code](connection, Command(code, ext_fields={rule.name: "it"}))
            assert refused.value.code == ResponseCode.NO_PERMISSION
            assert policy.names == (("it",) if rule.name else ())

    asyncio.run(ask())
    assert called == []


def test_a_request_without_a_rule_is_not_bound() -> None:
    processors = Processors(around=remoting_calls.authorized(Nobody(), BROKER_REQUESTS))
    with pytest.raises(NoRuleError, match="SEND_MESSAGE has no rule; add one"):
        processors.register(RequestCode.SEND_MESSAGE, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_a_policy_is_told_what_a_call_is_about(service: ServiceDescriptor) -> None:
    for method in service.methods:
        for rule in RPCS[f"/{service.full_name}/{method.name}"].all:
            if not rule.name:
                continue
            request = message_factory.GetMessageClass(method.input_type)()
            assert set(names_of(request, rule.name)) <= {""}
            assert names_of(with_name(request, rule.name.split(".")), rule.name) == ["it"]


def with_name(message: Message, path: list[str]) -> Message:
    """The message with "it" in the field at the path, and one message in a repeated field."""
    *outer, last = path
    inner: Any = message
    for field in outer:
        value = getattr(inner, field)
        inner = value if isinstance(value, Message) else value.add()
    if isinstance(getattr(inner, last), Message):
        inner, last = getattr(inner, last), "name"
    setattr(inner, last, "it")
    return message


def test_names_of_every_message_are_told() -> None:
    request = service_pb2.SendMessageRequest()
    for name in ("a", "b"):
        request.messages.add().topic.name = name
    assert names_of(request, RPCS["/apache.rocketmq.v2.MessagingService/SendMessage"].name) == ["a", "b"]


def test_a_name_is_told_with_its_namespace() -> None:
    request = service_pb2.ReceiveMessageRequest()
    request.group.resource_namespace, request.group.name = "tenant", "g"
    assert names_of(request, "group") == ["tenant%g"]


class OneGroup(Nobody):
    """Lets consumers of group `g` do what they do to the group, and nothing else."""

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        if (rule.action, rule.kind, list(names)) != (Action.SUB, Kind.GROUP, ["g"]):
            raise NotAuthorizedError(Denial.FORBIDDEN, f"{rule.kind.name} {', '.join(names)}")


@pytest.mark.parametrize(
    "name", ["ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"]
)
def test_a_consumer_is_asked_about_its_group_and_its_topic(name: str) -> None:
    service = SERVICES[0]
    bound = methods(service, Everything(service), authorized(OneGroup(), RPCS))
    (method,) = [each for each in bound if each.path.endswith(f"/{name}")]
    request = method.request_of(b"")
    request.group.name = "g"
    asked_of = request.message_queue if name == "ReceiveMessage" else request
    asked_of.topic.name = "t"

    async def call() -> None:
        answer = method.call(request, ELSEWHERE)
        if method.coroutine:
            await answer

    with pytest.raises(RpcError, match="TOPIC t"):
        asyncio.run(call())


def test_metrics_are_asked_about() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        return [b"figures"]

    statuses: list[str] = []
    nobody = metrics_calls.authorized(Nobody(), app)
    (text,) = nobody({"REMOTE_ADDR": "192.0.2.7"}, lambda status, headers: statuses.append(status))
    assert (statuses, text) == (["403 Forbidden"], b"metrics: is for nobody\n")
    assert metrics_calls.authorized(TokenPolicy(None), app) is app


def test_a_secret_is_not_shown() -> None:
    assert "secret" not in repr(Principal("h", False, "Bearer secret"))


def test_rules_are_of_all_kinds() -> None:
    rules = [*RPCS.values(), *BROKER_REQUESTS.values(), *NAME_SERVER_REQUESTS.values()]
    assert {each.action for each in rules} == set(Action)
    assert {each.kind for each in rules} == set(Kind)
