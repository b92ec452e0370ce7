"""Options of `lakebroker sidecar`: what it is told, or finds in the real broker's own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.config.options import read_file
from broker_gateway.runtime.errors import OptionError
from store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels

PORT = 8091
"""Not 8081, which is that of RocketMQ's proxy, often on the same host."""
CLUSTER = "DefaultCluster"
"""RocketMQ's default."""
SETTINGS = (
    "grpcBindAddress",
    "grpcServerPort",
    "grpcShutdownTimeSeconds",
    "lakeLogFormat",
    "lakeLogLevel",
    "lakeMaxConnectionsPerAddress",
    "lakeTokenFile",
    "lakeTransport",
    "serverChannelMaxIdleTimeSeconds",
    "tlsCertPath",
    "tlsKeyPath",
)
"""Options of the gateway that its server has here too."""
_STATE_SUFFIX = ".lakebroker"


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """`folders` of the broker's log, none where it is in the store's `commitlog`; `delay_levels` in ms, None where they are not
    known; `gateway`: the options of `SETTINGS`."""

    store: Path
    state: Path
    broker: str
    cluster: str
    folders: tuple[Path, ...]
    delay_levels: tuple[int, ...] | None
    gateway: GatewayConfig


def sidecar_options(
    *,
    store: Path | None,
    state: Path | None,
    broker: str,
    cluster: str,
    delay_levels: str,
    file: Path | None,
    settings: Mapping[str, str],
) -> tuple[SidecarOptions, list[str]]:
    """What was given goes before what the broker's file says; with warnings. Raises OptionError."""
    found = read_file(file) if file is not None else {}
    root = store or (Path(found["storePathRootDir"]) if found.get("storePathRootDir") else None)
    if root is None:
        raise OptionError("the broker's store is not known; give --store, its storePathRootDir")
    name = broker or found.get("brokerName", "")
    if not name:
        raise OptionError(
            "the broker's name is not known: its store does not tell it; give --broker NAME, or --config with a file that has "
            "brokerName"
        )
    for setting in settings:
        if setting not in SETTINGS:
            raise OptionError(f"option {setting} means nothing to a sidecar (allowed: {', '.join(SETTINGS)})")
    levels = delay_levels or found.get("messageDelayLevel", "")
    if file is not None:
        levels = levels or DEFAULT_DELAY_LEVELS
    config, warnings = load_config(
        None, {"grpcServerPort": str(PORT), "tlsTestModeEnable": "false", **settings}
    )
    options = SidecarOptions(
        root,
        state or Path(f"{root.resolve()}{_STATE_SUFFIX}"),
        name,
        cluster or found.get("brokerClusterName", CLUSTER),
        _folders(found),
        _levels(levels),
        config,
    )
    return options, warnings


def _folders(found: Mapping[str, str]) -> tuple[Path, ...]:
    """Those of the log: several are divided by commas, and some may be for reading only."""
    if not found.get("storePathCommitLog"):
        return ()
    named = f"{found['storePathCommitLog']},{found.get('readOnlyCommitLogStorePaths', '')}"
    return tuple(Path(each.strip()) for each in named.split(",") if each.strip())


def _levels(text: str) -> tuple[int, ...] | None:
    try:
        return parse_delay_levels(text) if text else None
    except ValueError as error:
        raise OptionError(f"option messageDelayLevel={text}: {error}") from error
