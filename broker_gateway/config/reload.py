"""Options changed while the broker runs: checked as at start, then told to the parts that can take them.

The original's `updateBrokerConfig` sets any option; most are read only once, at start. Here the answer says which
took effect, and which wait for the next start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from broker_gateway.config.gateway import GROUPS, GatewayConfig, config_of
from broker_gateway.config.options import LINE_BREAK
from broker_gateway.runtime.errors import OptionError
from broker_gateway.runtime.files import write_whole
from broker_gateway.runtime.shielded import shielded

log = structlog.get_logger(__name__)

RELOADABLE = frozenset(
    {
        "accessMessageInMemoryMaxRatio",
        "ackThreadPoolQueueCapacity",
        "adminBrokerThreadPoolQueueCapacity",
        "allowRecallWhenBrokerNotWriteable",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerFastFailureEnable",
        "brokerPermission",
        "cleanFileForciblyEnable",
        "clientManagerThreadPoolQueueCapacity",
        "consumerFallbehindThreshold",
        "consumerManagerThreadPoolQueueCapacity",
        "defaultTopicQueueNums",
        "deleteFileBatchMax",
        "deleteWhen",
        "disableConsumeIfConsumerReadSlowly",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "enableMixedMessageType",
        "enablePopMessageThreshold",
        "enablePropertyFilter",
        "endTransactionPoolQueueCapacity",
        "fileReservedTime",
        "heartbeatThreadPoolQueueCapacity",
        "initPopOffsetByCheckMsgInMem",
        "lakeAutoCreateTopics",
        "lakeLogLevel",
        "lakeMaxAutoCreatedGroupQueues",
        "lakeMaxAutoCreatedGroups",
        "lakeMaxErasedRecords",
        "lakeMaxInFlightPerQueue",
        "lakeMaxPendingTimerBytes",
        "lakeMaxPendingTimers",
        "lakeMaxPendingTransactionBytes",
        "lakeMaxPendingTransactions",
        "loadBalanceThreadPoolQueueCapacity",
        "longPollingEnable",
        "maxDelayTimeMills",
        "messageIndexEnable",
        "namesrvAddr",
        "osPageCacheBusyTimeOutMills",
        "popInflightMessageThreshold",
        "priorityOrderAsc",
        "pullThreadPoolQueueCapacity",
        "queryThreadPoolQueueCapacity",
        "recallMessageEnable",
        "rejectTransactionMessage",
        "retryMaxTimes",
        "sendThreadPoolQueueCapacity",
        "serverChannelMaxIdleTimeSeconds",
        "shortPollingTimeMills",
        "startAcceptSendRequestTimeStamp",
        "syncFlushTimeout",
        "timerMaxDelaySec",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "waitTimeMillsInAckQueue",
        "waitTimeMillsInAdminBrokerQueue",
        "waitTimeMillsInHeartbeatQueue",
        "waitTimeMillsInPullQueue",
        "waitTimeMillsInSendQueue",
        "waitTimeMillsInTransactionQueue",
    }
)
"""Options whose change takes effect at once."""
MAX_OPTIONS = 1000
"""In one change."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a change did: option to its old and new value. `kept` is where it was written, None: nowhere."""

    effective: Mapping[str, tuple[str, str]]
    at_next_start: Mapping[str, tuple[str, str]]
    warnings: tuple[str, ...]
    kept: Path | None


class NotKeptError(OptionError):
    """A change cannot be written into the configuration file."""


class Configuration:
    """The options in force. `current` is replaced as a whole; listeners take what they need from it.

    `file` is the one that the broker was started with: a change is written there, so that it outlives a restart.
    """

    def __init__(self, config: GatewayConfig, file: Path | None = None) -> None:
        self.current = config
        self._in_force = config
        """As `current`, but for what takes effect at the next start."""
        self._file = file
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[GatewayConfig], None]] = []

    def bound(self, *, listen_port: int | None = None, grpc_port: int | None = None) -> GatewayConfig:
        """Tells the ports that were taken, where free ones were asked for."""
        broker, store, proxy = self.current.broker, self.current.store, self.current.proxy
        if listen_port is not None:
            broker = broker.model_copy(update={"listen_port": listen_port})
            if store.ha_listen_port == 0 and listen_port < 65535:
                store = store.model_copy(update={"ha_listen_port": listen_port + 1})
        if grpc_port is not None:
            proxy = proxy.model_copy(update={"grpc_server_port": grpc_port})
        self.current = self.current.model_copy(update={"broker": broker, "store": store, "proxy": proxy})
        self._in_force = self.current
        return self.current

    def on_change(self, listener: Callable[[GatewayConfig], None]) -> None:
        """Calls `listener` after every change with the options in force, on the event loop."""
        self._listeners.append(listener)

    async def apply(self, given: Mapping[str, str]) -> Changes:
        """Changes options: all of them or, with an OptionError that names the bad one, none.

        What is in `configBlackList` cannot be changed. The file, if there is one, is written before anything takes
        effect; changes that come together are made one after the other, each to its end even if the caller is
        cancelled: file and broker say the same.
        """
        return await shielded(self._apply(given))

    async def _apply(self, given: Mapping[str, str]) -> Changes:
        async with self._changing:
            return await self._change(given)

    async def _change(self, given: Mapping[str, str]) -> Changes:
        self._check(given)
        before = self.current.options()
        asked = {name: value for name, value in before.items() if value} | dict(given)
        config, warnings = config_of(asked)
        config = config.model_copy(update={"overridden": self.current.overridden})
        after = config.options()
        changed = {name: (old, after[name]) for name, old in before.items() if after[name] != old}
        kept = await asyncio.to_thread(self._keep, given)
        self.current = config
        self._in_force = _changed(self._in_force, config)
        for listener in self._listeners:
            try:
                listener(self._in_force)
            except Exception:  # the others hear of it all the same
                log.exception("a part of the broker did not take the changed options")
        said = tuple(each for each in warnings if _about(each, given))
        effective = {name: each for name, each in changed.items() if name in RELOADABLE}
        later = {name: each for name, each in changed.items() if name not in RELOADABLE}
        log.info("options changed", effective=sorted(effective), at_next_start=sorted(later))
        return Changes(effective, later, said, kept)

    def _check(self, given: Mapping[str, str]) -> None:
        if len(given) > MAX_OPTIONS:
            raise OptionError(f"{len(given)} options in one change, at most {MAX_OPTIONS} are taken")
        black_list = self.current.broker.config_black_list
        for name in [*filter(None, map(str.strip, black_list.split(";"))), "configBlackList"]:
            if name in given:
                raise OptionError(f"option {name} cannot be changed while the broker runs (configBlackList)")
        for name, value in given.items():
            if re.search(r"[\r\n]", name + value):
                raise OptionError(f"option {name[:80]!r}: a line break is not allowed in a name or value")

    def _keep(self, given: Mapping[str, str]) -> Path | None:
        """Makes the file say these options, beside the lines that were there; what is in force already, too."""
        if self._file is None:
            return None
        try:
            before = self._file.read_text(encoding="utf-8-sig")
            if (after := changed_text(before, given)) != before:
                write_whole(self._file, after)
        except (OSError, UnicodeDecodeError) as error:
            raise NotKeptError(
                f"the change cannot be kept in {self._file}, which cannot be written: {error}"
            ) from error
        return self._file


def _changed(in_force: GatewayConfig, config: GatewayConfig) -> GatewayConfig:
    """The options in force, with those of `config` that take effect at once."""
    groups = {}
    for name, options in GROUPS.items():
        new = getattr(config, name)
        fields = [each for each, field in options.model_fields.items() if (field.alias or each) in RELOADABLE]
        groups[name] = getattr(in_force, name).model_copy(
            update={each: getattr(new, each) for each in fields}
        )
    return in_force.model_copy(update=groups)


def changed_text(text: str, given: Mapping[str, str]) -> str:
    """The file's text with these options; its other lines, comments too, stay as they are."""
    left = dict(given)
    lines = []
    for line in LINE_BREAK.split(text.removesuffix("\n")) if text else []:
        name = line.partition("=")[0].strip()
        if name in given and not line.lstrip().startswith(("#", "!")):
            if name not in left:
                continue  # named twice: the last one counted
            line = f"{name}={left.pop(name)}"
        lines.append(line)
    lines += [f"{name}={value}" for name, value in left.items()]
    return "\n".join(lines) + "\n"


def _about(warning: str, names: Iterable[str]) -> bool:
    """Whether a warning is of one of these options: older ones were said before."""
    return any(warning.startswith((f"option {name}=", f"option {name} ")) for name in names)
