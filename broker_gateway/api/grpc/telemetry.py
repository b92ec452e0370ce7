"""Heartbeat, Telemetry and NotifyClientTermination: what the gateway knows of its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog

from broker_gateway.api.grpc.client_commands import answer_of, written
from broker_gateway.api.grpc.fields import client_id_of, group_name, topic_name
from broker_gateway.api.grpc.settings import KeptSettings
from broker_gateway.api.grpc.status import OK, status_of
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import check_group
from broker_gateway.messaging.client_commands import Sent
from broker_gateway.messaging.clients import ClientSession
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.factory import Messaging
from broker_gateway.messaging.lite_subscriptions import client_quota
from broker_gateway.messaging.outcome import Reason, ServiceError, outcome_of
from broker_gateway.messaging.poll import MAX_BATCH
from broker_gateway.metadata import group_configuration
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.retry_policy import ExponentialPolicy, RetryPolicy
from broker_gateway.protocol.resource_names import resource_name
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

log = structlog.get_logger(__name__)

PRODUCER_MAX_ATTEMPTS = 3
PRODUCER_BACKOFF_MS = (10, 1000, 2.0)
"""First wait and longest wait in ms, and the factor between."""
MAX_SUBSCRIPTIONS = 1024
_LITE_CONSUMERS = ("LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")
_CONSUMERS = ("PUSH_CONSUMER", "SIMPLE_CONSUMER", *_LITE_CONSUMERS)


_LANGUAGES = frozenset(pb.Language.keys())


def _language(context: CallContext) -> str:
    """The client's language as the public API names it; OTHER when it says none of them."""
    language = context.metadata.get("x-mq-language", "").upper()
    return language if language in _LANGUAGES else "OTHER"


class ClientService:
    """Keeps sessions and answers settings."""

    def __init__(self, config: GatewayConfig, core: Core, messaging: Messaging) -> None:
        self._catalog = core.catalog
        self._resources = messaging.resources
        self._clients = messaging.clients
        self._commands = messaging.client_commands
        self._redelivery = messaging.redelivery
        self._lite = messaging.lite_subscriptions
        self._max_lite_topic_size = config.proxy.max_lite_topic_size
        self._max_body_size = config.store.max_message_size
        self._max_invisible_ms = config.proxy.max_invisible_time_mills
        self._polling_ms = config.proxy.grpc_client_consumer_max_long_polling_timeout_millis

    def heartbeat(self, request: rpc.HeartbeatRequest, context: CallContext) -> rpc.HeartbeatResponse:
        """UNRECOGNIZED_CLIENT_TYPE until the client has sent its settings."""
        session = self._clients.known(client_id_of(context), context.peer)
        settings = session.settings if session is not None else None
        if session is None or settings is None:
            raise _unrecognised()
        kind = settings.kind
        if kind in _CONSUMERS:
            check_group(group_name(request.group))
        elif kind != "PRODUCER":
            raise ServiceError(
                Reason.UNRECOGNIZED_CLIENT_TYPE,
                f"client type {kind} is not served yet; use a producer, push or simple consumer",
            )
        if session is self._clients.own(session.client_id, context.peer):
            self._clients.touch(session)
        return rpc.HeartbeatResponse(status=OK)

    def terminated(
        self, request: rpc.NotifyClientTerminationRequest, context: CallContext
    ) -> rpc.NotifyClientTerminationResponse:
        """Forgets the client; what it renewed is due again. One of the same id elsewhere goes on."""
        session = self._clients.own(client_id_of(context), context.peer)
        if session is None or session.settings is None:
            raise _unrecognised()
        if request.HasField("group") and resource_name(request.group):
            check_group(group_name(request.group))
        self._clients.forget(session)
        if session.group:
            self._redelivery.release(session.client_id, session.group)
        return rpc.NotifyClientTerminationResponse(status=OK)

    async def telemetry(
        self, requests: AsyncIterator[rpc.TelemetryCommand], context: CallContext
    ) -> AsyncIterator[rpc.TelemetryCommand]:
        """Answers settings as long as the client's stream lives, and carries commands to it and answers from it."""
        session = self._clients.seen(client_id_of(context), context.peer)
        commands: asyncio.Queue[Sent | rpc.TelemetryCommand | None] = asyncio.Queue()
        session.peer, session.language = context.peer, _language(context)
        self._clients.end_stream(session)  # a new stream of the same client replaces the old one
        session.commands = commands
        reader = asyncio.create_task(self._read(requests, session, commands))
        try:
            while (command := await commands.get()) is not None:
                carried = self._carried(command, session) if isinstance(command, Sent) else command
                if carried is not None:
                    yield carried
                commands.task_done()
        finally:
            reader.cancel()
            if session.commands is commands:
                session.commands = None
            self._commands.stream_ended(session, commands)

    def group_changed(self, group: Group) -> None:
        """Sends new settings to the connected consumers of a group whose configuration changed."""
        for session in self._clients.sessions():
            if session.group != group.name or session.commands is None or not session.takes_commands:
                continue
            if isinstance(session.settings, KeptSettings):
                merged = self._merged(session.settings.parsed())
                session.commands.put_nowait(rpc.TelemetryCommand(status=OK, settings=merged))

    def change_rolled_back(self, _topic: str, group: Group | None) -> None:
        """The same when a change of a group was not journaled, and its configuration is the one before again."""
        if group is not None:
            self.group_changed(group)

    def request_timeout_ms(self, context: CallContext) -> int | None:
        """The request timeout in the client's settings."""
        session = self._clients.known(client_id_of(context), context.peer)
        return None if session is None else session.request_timeout_ms

    async def _read(
        self,
        requests: AsyncIterator[rpc.TelemetryCommand],
        session: ClientSession,
        commands: asyncio.Queue[Sent | rpc.TelemetryCommand | None],
    ) -> None:
        try:
            async for command in requests:
                self._clients.touch(session)
                if command.WhichOneof("command") != "settings":
                    answered = answer_of(command)
                    if answered is not None:
                        self._commands.answered(session, *answered)
                    continue
                try:
                    reply = rpc.TelemetryCommand(status=OK, settings=self._accept(command.settings, session))
                except ServiceError as error:
                    reply = rpc.TelemetryCommand(status=status_of(error))
                except Exception as error:
                    log.exception("settings not accepted", client_id=session.client_id)
                    reply = rpc.TelemetryCommand(status=status_of(error))
                await commands.put(reply)
                await commands.join()  # a client that takes no answers is asked for no more
        finally:
            commands.put_nowait(None)

    def _carried(self, sent: Sent, session: ClientSession) -> rpc.TelemetryCommand | None:
        """A command as the client reads it; None when it cannot be written, which whoever sent it is told."""
        self._commands.carried(sent)
        try:
            return written(sent)
        except Exception as error:
            log.exception(
                "command not sent", client_id=session.client_id, command=type(sent.command).__name__
            )
            self._commands.lost(sent, outcome_of(error).message)
            return None

    def _accept(self, settings: pb.Settings, session: ClientSession) -> pb.Settings:
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            if len(settings.publishing.topics) > MAX_SUBSCRIPTIONS:
                raise ServiceError(
                    Reason.BAD_REQUEST,
                    f"{len(settings.publishing.topics)} topics, at most {MAX_SUBSCRIPTIONS}",
                )
            for topic in settings.publishing.topics:
                self._resources.check_topic(topic_name(topic))
        elif kind == "subscription":
            if len(settings.subscription.subscriptions) > MAX_SUBSCRIPTIONS:
                raise ServiceError(
                    Reason.BAD_REQUEST,
                    f"{len(settings.subscription.subscriptions)} subscriptions, at most {MAX_SUBSCRIPTIONS}",
                )
            group = self._resources.group(group_name(settings.subscription.group), session.peer)
            topics = [topic_name(entry.topic) for entry in settings.subscription.subscriptions]
            for name in topics:
                self._resources.check_topic(name)
        else:
            raise ServiceError(
                Reason.BAD_REQUEST, "the settings hold neither publishing nor subscription; send one of them"
            )
        kept = KeptSettings(settings)
        self._clients.keep(session, kept)
        if kind == "subscription" and kept.kind in _LITE_CONSUMERS:
            self._lite.begin(session, group, topics)
        else:
            self._lite.end(session)
        return self._merged(settings)

    def _merged(self, settings: pb.Settings) -> pb.Settings:
        """The client's settings with what the broker decides laid over them."""
        merged = pb.Settings()
        merged.CopyFrom(settings)
        merged.metric.on = False
        backoff = merged.backoff_policy
        if merged.WhichOneof("pub_sub") == "publishing":
            first, longest, factor = PRODUCER_BACKOFF_MS
            backoff.max_attempts = PRODUCER_MAX_ATTEMPTS
            _set_exponential(backoff, first, longest, factor)
            merged.publishing.max_body_size = self._max_body_size
            merged.publishing.validate_message_type = True
            return merged
        name = resource_name(merged.subscription.group)
        group = self._catalog.group(name) or Group(name)
        backoff.max_attempts = group.max_attempts
        self._set_retries(backoff, group_configuration.policy(group))
        subscription = merged.subscription
        subscription.fifo = group.fifo
        subscription.receive_batch_size = MAX_BATCH
        subscription.long_polling_timeout.FromMilliseconds(self._polling_ms)
        subscription.lite_subscription_quota = client_quota(group)
        subscription.max_lite_topic_size = self._max_lite_topic_size
        return merged

    def _set_retries(self, backoff: pb.RetryPolicy, policy: RetryPolicy) -> None:
        """The group's policy; no wait is longer than the invisible duration that a client may ask for."""
        most = self._max_invisible_ms
        backoff.ClearField("strategy")
        if isinstance(policy, ExponentialPolicy):
            first, longest = min(policy.initial_ms, most), min(policy.max_ms, most)
            _set_exponential(backoff, first, longest, policy.multiplier)
            return
        for wait_ms in policy.next_ms:
            backoff.customized_backoff.next.add().FromMilliseconds(min(wait_ms, most))


def _set_exponential(backoff: pb.RetryPolicy, first_ms: int, longest_ms: int, factor: float) -> None:
    backoff.exponential_backoff.initial.FromMilliseconds(first_ms)
    backoff.exponential_backoff.max.FromMilliseconds(longest_ms)
    backoff.exponential_backoff.multiplier = factor


def _unrecognised() -> ServiceError:
    return ServiceError(
        Reason.UNRECOGNIZED_CLIENT_TYPE,
        "no settings of this client are known; send them over Telemetry first",
    )
