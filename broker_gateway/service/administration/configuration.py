"""The broker's options as administrators see and change them while it runs.

Only options in `CHANGEABLE` can be changed: those that the running broker reads anew. A change is in the configuration file
(given with -c) before it counts; without a file it holds until the broker stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from broker_gateway.config import GROUPS, GatewayConfig
from broker_gateway.errors import OptionError
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.nameserver.files import write_whole
from broker_gateway.options import option_names, parse_properties, validated
from broker_gateway.remoting.codes import ResponseCode
from broker_gateway.remoting.errors import RequestError

log = structlog.get_logger(__name__)

CHANGEABLE = frozenset(
    {
        "autoCreateTopicEnable",
        "autoCreateSubscriptionGroup",
        "defaultTopicQueueNums",
        "retryMaxTimes",
        "fileReservedTime",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "cleanFileForciblyEnable",
        "deleteFileBatchMax",
    }
)
MAX_BODY = 1 << 20


class Configuration:
    """`apply` is given the changed configuration; `config` is the one that holds."""

    def __init__(self, config: GatewayConfig, apply: Callable[[GatewayConfig], None], now_ms: int) -> None:
        self.config = config
        self.version = DataVersion(0, 0, now_ms)
        self._apply = apply
        self._writing = asyncio.Lock()

    def shown(self) -> str:
        """Every option as `key=value` lines."""
        return "".join(f"{name}={value}\n" for name, value in sorted(self.config.options().items()))

    def version_json(self) -> str:
        return json.dumps(self.version.to_json(), separators=(",", ":"))

    async def change(self, body: bytes, now_ms: int) -> None:
        """Changes the options in `key=value` lines, all or none. Raises RequestError naming the option."""
        if len(body) > MAX_BODY:
            raise RequestError(
                f"options of {len(body)} bytes: {MAX_BODY} are allowed", ResponseCode.INVALID_PARAMETER
            )
        try:
            given = parse_properties(body.decode("utf-8"), "the request")
        except (UnicodeDecodeError, OptionError) as error:
            raise RequestError(f"string2Properties error: {error}") from error
        async with self._writing:
            changed = changed_config(self.config, given)
            if self.config.file is not None and given:
                await self._keep(self.config.file, given)
            elif given:
                log.warning("options changed until the broker stops: there is no configuration file (-c)")
            self.config = changed
            self._apply(changed)
            self.version = self.version.next(now_ms)
        log.info("options changed", options=sorted(given))

    async def _keep(self, file: Path, given: Mapping[str, str]) -> None:
        try:
            text = await asyncio.to_thread(file.read_text)
            await asyncio.to_thread(write_whole, file, changed_text(text, given))
        except (OSError, UnicodeDecodeError) as error:
            log.error("the configuration file cannot be written", file=str(file), error=str(error))
            raise RequestError(f"{file} cannot be written: {error}; nothing was changed") from error


def changed_config(config: GatewayConfig, given: Mapping[str, str]) -> GatewayConfig:
    """The configuration with these options. Raises RequestError."""
    known = option_names(GROUPS)
    for name in given:
        if name not in known:
            raise RequestError(f"option {name[:80]} is unknown", ResponseCode.INVALID_PARAMETER)
        if name not in CHANGEABLE:
            raise RequestError(
                f"option {name} cannot be changed while the broker runs; change it in the configuration and restart",
                ResponseCode.NO_PERMISSION,
            )
        if name in config.overridden:
            raise RequestError(
                f"option {name} was given on the command line or in the environment, which counts before the file;"
                " change it there and restart",
                ResponseCode.NO_PERMISSION,
            )
    groups = {}
    for group, options in GROUPS.items():
        some = {name: value for name, value in given.items() if known[name] == group}
        if some:
            before = getattr(config, group).model_dump(by_alias=True)
            try:
                groups[group] = validated(options, {**before, **some}, group)
            except OptionError as error:
                raise RequestError(str(error), ResponseCode.INVALID_PARAMETER) from error
    return config.model_copy(update=groups)


def changed_text(text: str, given: Mapping[str, str]) -> str:
    """The file's text with these options; its other lines, comments too, stay as they are."""
    left = dict(given)
    lines = []
    for line in text.splitlines():
        name = line.partition("=")[0].strip()
        if name in given and not line.lstrip().startswith(("#", "!")):
            if name not in left:
                continue  # named twice: the last one counted
            line = f"{name}={left.pop(name)}"
        lines.append(line)
    lines += [f"{name}={value}" for name, value in left.items()]
    return "\n".join(lines) + "\n"
