"""Every option in force as text, made once for each configuration: there are hundreds."""

from __future__ import annotations

from collections.abc import Mapping

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.reload import Configuration


class ShownOptions:
    """Options by their RocketMQ names, secrets hidden."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._made: tuple[GatewayConfig, Mapping[str, str]] | None = None

    @property
    def table(self) -> Mapping[str, str]:
        """The same object as long as the configuration is."""
        current = self._configuration.current
        if self._made is None or self._made[0] is not current:
            self._made = current, current.shown()
        return self._made[1]
