"""Registration with one name server: kept up in a task of its own, so that one that is slow delays no other.

| when | what is sent |
|---|---|
| at first, after a failure, after a topic was deleted | every topic |
| a topic changed | that topic (`enableSingleTopicRegister`: its route alone) |
| the connection ended, so that the name server forgot us | every topic, a second later |
| every period | every topic; with `forceRegister=false` only when the name server's data version differs |
| at the end | that the broker leaves |
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from broker_gateway.cluster import requests
from broker_gateway.cluster.registered_topics import RegisteredTopics
from broker_gateway.config.registration import RegistrationOptions
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError, RequestError
from broker_gateway.transport.remoting.client import RemotingClient

log = structlog.get_logger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 10.0
"""Between attempts at a name server that did not take a registration."""
SINGLE_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 3.0
MOST_CHANGED = 400
"""Topics that go as changes; where more changed, all are registered."""


class Registrar:
    """Keeps the name server at `address` informed from `start` to `stop`."""

    def __init__(
        self,
        address: str,
        client: RemotingClient,
        registered_topics: RegisteredTopics,
        options: RegistrationOptions,
    ) -> None:
        self.address = address
        self._client = client
        self._registered_topics = registered_topics
        self._options = options
        self._changed: dict[str, None] = {}
        self._all = True
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wait_s = FIRST_WAIT_S
        self._whole_at = 0.0
        """When every topic is due again, by the event loop's clock."""
        self.registered: bool | None = None
        """How the last attempt went; None before the first."""

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Registers from now on, or once an earlier registrar has left (`after`)."""
        self._task = asyncio.create_task(self._run(after), name=f"registration at {self.address}")

    async def stop(self) -> None:
        """Says that the broker leaves; takes `LEAVE_TIMEOUT_S` at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            command = requests.unregister_broker(self._registered_topics.identity)
            await self._answered(command, LEAVE_TIMEOUT_S)
        except RemotingError as error:
            log.warning("the broker could not unregister", name_server=self.address, error=str(error))
        else:
            log.info("unregistered", name_server=self.address)
        self._client.disconnect(self.address)

    def changed(self, topic: str) -> None:
        """A topic was made, changed or deleted."""
        if len(self._changed) < MOST_CHANGED and self._registered_topics.topic(topic) is not None:
            self._changed[topic] = None
        else:
            self._all = True
        self._wake.set()

    def lost(self) -> None:
        """The connection to the name server ended."""
        asyncio.get_running_loop().call_later(FIRST_WAIT_S, self.register_anew)

    def register_anew(self) -> None:
        """Every topic is registered again."""
        self._all = True
        self._wake.set()

    async def heartbeat(self) -> None:
        """A sign of life that is not answered."""
        registered_topics = self._registered_topics
        if self._options.compatible_with_old_name_srv:
            command = requests.query_data_version(registered_topics.identity, registered_topics.version)
        else:
            command = requests.broker_heartbeat(registered_topics.identity)
        with contextlib.suppress(RemotingError):  # registration says when a name server is away
            await self._client.invoke_one_way(self.address, command, 1.0)

    async def _run(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        force = True
        while True:
            try:
                await self._round(force)
            except RemotingError as error:
                self._failed(error)
                # a topic that changes meanwhile does not hurry it: the name server is away
                await asyncio.sleep(self._wait_s)
                self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)
                force = True
                continue
            except Exception:
                log.exception("a registration failed; it is tried again", name_server=self.address)
                await asyncio.sleep(LONGEST_WAIT_S)
                force = True
                continue
            self._succeeded()
            force = not await self._period_ended() or self._options.force_register

    async def _period_ended(self) -> bool:
        """Waits until every topic is due again (True) or something is to be told before (False).

        What is told in between does not put that off: a name server may have dropped what it knew, and takes a topic's
        route alone for no sign of life.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._whole_at:
            try:
                async with asyncio.timeout_at(self._whole_at):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                return False
        self._all = True
        return True

    async def _round(self, force: bool) -> None:
        self._wake.clear()
        changed, self._changed = list(self._changed), {}
        every, self._all = self._all, False
        try:
            if every or not self.registered:
                await self._register_all(force)
                self._whole_at = asyncio.get_running_loop().time() + self._options.period_s
            else:
                await self._register_some(changed)
        except BaseException:
            self._all = True
            raise

    async def _register_all(self, force: bool) -> None:
        whole = await self._registered_topics.whole()
        if not force and len(whole) == 1 and not await self._differs():
            return
        for command in whole:
            await self._register(command)

    async def _register_some(self, changed: list[str]) -> None:
        topics = [topic for name in changed if (topic := self._registered_topics.topic(name)) is not None]
        if not topics:
            return
        if not self._options.enable_single_topic_register:
            await self._register(self._registered_topics.some(topics))
            return
        for topic in topics:
            command = requests.register_topic(
                self._registered_topics.identity, self._registered_topics.one(topic)
            )
            await self._answered(command, SINGLE_TIMEOUT_S)

    async def _register(self, command: Command) -> None:
        answer = await self._answered(command, self._options.register_broker_timeout_mills / 1000)
        if answer.body:
            self._registered_topics.ordered(KVTable.decode(answer.body))

    async def _differs(self) -> bool:
        """Whether the name server holds other topics than ours; one that cannot say so does."""
        command = requests.query_data_version(
            self._registered_topics.identity, self._registered_topics.version
        )
        try:
            answer = await self._answered(command, self._options.register_broker_timeout_mills / 1000)
        except RemotingError as error:
            log.debug("no answer to a query of the data version", name_server=self.address, error=str(error))
            return True
        return answer.ext_fields.get("changed", "true").lower() != "false"

    async def _answered(self, command: Command, timeout_s: float) -> Command:
        answer = await self._client.invoke(self.address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            remark = (answer.remark or "")[:300]
            raise RequestError(f"{self.address} refused request {command.code}: {answer.code} {remark}")
        return answer

    def _failed(self, error: RemotingError) -> None:
        if self.registered is not False:
            log.warning(
                "a name server does not take the registration; it is tried again until it does",
                name_server=self.address,
                error=str(error),
            )
        self.registered = False

    def _succeeded(self) -> None:
        if not self.registered:
            log.info("registered", name_server=self.address, broker=self._registered_topics.identity.address)
        self.registered = True
        self._wait_s = FIRST_WAIT_S
