"""Loads what installed packages plug in: the entry points of `api/extensions.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

import structlog

from broker_gateway.api.extensions import Extensions
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.errors import HostError
from structured_streaming.without_pandas import let_pandas_in

log = structlog.get_logger(__name__)


def load_extensions(config: GatewayConfig) -> Extensions:
    """What installed packages offer. Raises HostError, which names the entry point that cannot be used."""
    installed = entry_points().select  # looks into every installed package
    return Extensions(
        _load(config, installed, "lakebroker.authenticators", ("authenticate",)),
        _load(config, installed, "lakebroker.interceptors", ("before", "after")),
        _load(config, installed, "lakebroker.append_hooks", ("before_append",)),
        _load(config, installed, "lakebroker.metrics_sinks", ("publish",)),
    )


def _load(
    config: GatewayConfig, installed: Callable[..., EntryPoints], group: str, methods: Sequence[str]
) -> tuple[Any, ...]:
    loaded = []
    for point in sorted(installed(group=group), key=lambda each: each.name):
        let_pandas_in()  # it may use it
        extension = _made(point, config)
        missing = [name for name in methods if not callable(getattr(extension, name, None))]
        if missing:
            raise HostError(
                f"the extension {point.name} ({point.value}) of {group} has no method {', '.join(missing)}; "
                "mend or uninstall it"
            )
        log.info("extension loaded", group=group, name=point.name, value=point.value)
        loaded.append(extension)
    return tuple(loaded)


def _made(point: EntryPoint, config: GatewayConfig) -> Any:
    try:
        return point.load()(config)
    except Exception as error:
        raise HostError(
            f"the extension {point.name} ({point.value}) of {point.group} cannot be loaded: "
            f"{type(error).__name__}: {error}; mend or uninstall it"
        ) from error
