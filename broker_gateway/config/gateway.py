"""The broker's options: RocketMQ's names in a `key=value` file, our own with the prefix `lake`.

Precedence: command line, environment (`LAKEBROKER_<name>`), file, default. Each group is one frozen,
validated class; an attribute is the option's name in snake case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from broker_gateway.config.broker_options import BrokerOptions, ServerOptions
from broker_gateway.config.catalogue import ROWS
from broker_gateway.config.lake_options import LakeOptions
from broker_gateway.config.options import OptionGroup as _Group
from broker_gateway.config.options import (
    given_options,
    load_groups,
    option_names,
    unknown_variables,
)
from broker_gateway.config.other_options import OtherOptions, values_of
from broker_gateway.config.proxy_options import ProxyOptions
from broker_gateway.config.registration import RegistrationOptions
from broker_gateway.config.store_options import StoreOptions
from broker_gateway.runtime.errors import ModeError, OptionError

_PREFIX = "LAKEBROKER_"
_OWN_VARIABLES = re.compile(r"NAMESRV_.*|GATEWAY|TOKEN|TOKEN_FILE|LAKE|EVIDENCE|FUZZ_KEEP")
"""Behind the prefix, what is no option: the name server's options, and variables of commands and tests."""

GROUPS: dict[str, type[_Group]] = {
    "broker": BrokerOptions,
    "server": ServerOptions,
    "store": StoreOptions,
    "proxy": ProxyOptions,
    "registration": RegistrationOptions,
    "lake": LakeOptions,
}
IMPORTANT = [  # the original's, of the groups it prints, and ours
    "brokerName",
    "brokerClusterName",
    "brokerIP1",
    "namesrvAddr",
    "storePathRootDir",
    "flushDiskType",
    "grpcServerPort",
    "listenPort",
    "recoverConcurrently",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "msgTraceTopicName",
    "traceTopicEnable",
    "rejectTransactionMessage",
    "fetchNameSrvAddrByDnsLookup",
    "fetchNamesrvAddrByAddressServer",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "aclEnable",
    "lakeLocation",
]


class GatewayConfig(BaseModel):
    """All groups; `other` are options of RocketMQ that have no effect here, where they differ from its default."""

    model_config = ConfigDict(frozen=True)

    broker: BrokerOptions
    server: ServerOptions
    store: StoreOptions
    proxy: ProxyOptions
    registration: RegistrationOptions
    lake: LakeOptions
    other: dict[str, str] = {}
    overridden: frozenset[str] = frozenset()
    """Options given on the command line or in the environment, which count before the file."""

    def options(self) -> dict[str, str]:
        """Every option by its RocketMQ name, as text."""
        shown = {}
        for group in (self.broker, self.server, self.store, self.proxy, self.registration, self.lake):
            for name, value in group.model_dump(mode="json", by_alias=True).items():
                text = "" if value is None else str(value)
                shown[name] = text.lower() if isinstance(value, bool) else text
        return shown | values_of(self.other, shown)

    def shown(self) -> dict[str, str]:
        """`options`, secrets hidden."""
        return {
            name: ROWS[name].shown(value) if name in ROWS else value for name, value in self.options().items()
        }


def load_config(
    file: Path | None, overrides: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[GatewayConfig, list[str]]:
    """The configuration, and a warning for every option without effect. Raises OptionError for a bad value."""
    effective = option_names(GROUPS)
    given = given_options({**effective, **ROWS}, file, overrides, _PREFIX, environment)
    if (address := environment.get("NAMESRV_ADDR")) is not None:
        given.setdefault("namesrvAddr", address)
    config, warnings = config_of(given)
    warnings += unknown_variables({*effective, *ROWS}, _PREFIX, _OWN_VARIABLES, environment)
    overridden = frozenset(
        name for name in effective if name in overrides or f"{_PREFIX}{name}" in environment
    )
    return config.model_copy(update={"overridden": overridden}), warnings


def config_of(given: Mapping[str, str]) -> tuple[GatewayConfig, list[str]]:
    """The configuration with these options. Raises OptionError."""
    effective = option_names(GROUPS)
    others = OtherOptions(effective)
    _check_modes(given)
    parts, warnings = load_groups(GROUPS, given, others)
    warnings += _set_role(parts)
    return GatewayConfig(**parts, other=others.kept), warnings


def _check_modes(given: Mapping[str, str]) -> None:
    on = [
        given.get(name, "").strip().lower() == "true"
        for name in ("enableControllerMode", "enableDLegerCommitLog")
    ]
    if all(on):
        raise ModeError(
            "enableControllerMode and enableDLegerCommitLog must not both be true; neither is built yet"
        )


def _set_role(parts: dict[str, Any]) -> list[str]:
    """What follows from the broker's role and port, as in the original."""
    broker, store, warnings = parts["broker"], parts["store"], []
    if store.broker_role != "ASYNC_MASTER":
        raise OptionError(
            f"option brokerRole={store.broker_role} is refused: replication to slaves is not built yet "
            "(allowed: ASYNC_MASTER)"
        )
    if broker.broker_id != 0:
        warnings.append(f"option brokerId={broker.broker_id} is set to 0, as every master's")
        parts["broker"] = broker.model_copy(update={"broker_id": 0})
    if store.ha_listen_port == 0 and 0 < broker.listen_port < 65535:
        parts["store"] = store.model_copy(update={"ha_listen_port": broker.listen_port + 1})
    return warnings
