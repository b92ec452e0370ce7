"""The broker's options as administrators see and change them while it runs.

Changes go the way of all (`reload.Configuration`); what would not count at once, or would be lost at the next start, is
refused by name before, since the answer has no room to say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import structlog

from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.cluster.broker_config import PUBLIC
from broker_gateway.config.catalogue import ROWS
from broker_gateway.config.options import parse_properties
from broker_gateway.config.reload import RELOADABLE, Configuration, NotKeptError
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.errors import OptionError
from broker_gateway.runtime.shielded import shielded

log = structlog.get_logger(__name__)
MAX_BODY = 1 << 20


class OptionAdministration:
    """Shows and changes the options of `configuration`; `version` counts the changes made here."""

    def __init__(self, configuration: Configuration, options: ShownOptions, now_ms: int) -> None:
        self._configuration = configuration
        self._options = options
        self._shown: tuple[Mapping[str, str], bytes] | None = None
        self.version = DataVersion(0, 0, now_ms)

    def shown(self) -> bytes:
        """Every option as `key=value` lines; as in the original, none of its own without a value."""
        options = self._options.table
        if self._shown is None or self._shown[0] is not options:
            named = (name for name in sorted(options) if options[name] or not _unset(name))
            self._shown = options, _lines(options, named)
        return self._shown[1]

    def public(self) -> bytes:
        """What other machines are told."""
        return _lines(self._options.table, PUBLIC)

    def version_json(self) -> str:
        return json.dumps(self.version.to_json(), separators=(",", ":"))

    async def change(self, body: bytes, now_ms: int) -> None:
        """Changes the options in `key=value` lines, all or none. Raises RequestError naming the option.

        What has begun is done to its end, also when the client goes away.
        """
        await shielded(self._change(body, now_ms))

    async def _change(self, body: bytes, now_ms: int) -> None:
        if len(body) > MAX_BODY:
            raise RequestError(
                f"options of {len(body)} bytes: {MAX_BODY} are allowed", ResponseCode.INVALID_PARAMETER
            )
        try:
            given = parse_properties(body.decode("utf-8"), "the request")
        except (UnicodeDecodeError, OptionError) as error:
            raise RequestError(f"string2Properties error: {error}") from error
        self._check(given)
        try:
            changes = await self._configuration.apply(given)
        except NotKeptError as error:
            log.error("changed options cannot be kept", error=str(error))
            raise RequestError(f"{error}; nothing was changed") from error
        except OptionError as error:
            raise RequestError(str(error), ResponseCode.INVALID_PARAMETER) from error
        if given and changes.kept is None and changes.effective:
            log.warning("options changed until the broker stops: there is no configuration file (-c)")
        self.version = self.version.next(now_ms)

    def _check(self, given: Mapping[str, str]) -> None:
        config, known = self._configuration.current, self._options.table
        for name in given:
            if name not in known:
                raise RequestError(f"option {name[:80]} is unknown", ResponseCode.INVALID_PARAMETER)
            if name not in RELOADABLE:
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


def _unset(name: str) -> bool:
    """Whether the original's option has no value before one is given, or works it out from its host."""
    return name in ROWS and ROWS[name].default is None


def _lines(options: Mapping[str, str], names: Iterable[str]) -> bytes:
    return "".join(f"{name}={options[name]}\n" for name in names if name in options).encode()
