"""Every option of RocketMQ 5.5.0's broker: its type, its default, and what becomes of it here.

Data only, by group; what an effective option does is said where it is defined (`broker_gateway/config/gateway.py`).
"""

from __future__ import annotations

from broker_gateway.config.catalogue import auth, broker, client, server, store
from broker_gateway.config.catalogue.row import Row

TABLE: dict[str, tuple[Row, ...]] = {
    "broker": broker.ROWS,
    "server": server.ROWS,
    "client": client.ROWS,
    "store": store.ROWS,
    "auth": auth.ROWS,
}
"""The groups of the original; some names stand in two of them."""
ROWS: dict[str, Row] = {row.name: row for rows in TABLE.values() for row in rows}
