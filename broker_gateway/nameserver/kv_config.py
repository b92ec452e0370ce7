"""The KV table: texts by namespace and key, such as the order configuration of topics. Knows no files.

Its file is the original's `kvConfig.json`: `{"configTable":{NAMESPACE:{KEY:VALUE}}}`.
"""

from __future__ import annotations

from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.java_json import JsonObject

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
MAX_CHARACTERS = 8 << 20
"""Of all namespaces, keys and values, so that a namespace fits one frame."""


class KVConfig:
    """A change makes another table: it is written before it is used."""

    def __init__(self, table: dict[str, dict[str, str]] | None = None) -> None:
        self._table = table or {}
        self._encoded: dict[str, bytes] = {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def listed(self, namespace: str) -> bytes | None:
        """A namespace, encoded as a KVTable, which is done once; None when it never was."""
        found = self._table.get(namespace)
        if found is not None and namespace not in self._encoded:
            self._encoded[namespace] = KVTable(found).encode()
        return self._encoded.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> KVConfig:
        """The table with this value. Raises RequestError when it is full."""
        changed = KVConfig({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})
        if changed._characters() > MAX_CHARACTERS:
            raise RequestError(
                f"the KV table holds at most {MAX_CHARACTERS} characters; delete what is not needed"
            )
        return changed

    def delete(self, namespace: str, key: str) -> KVConfig:
        """The table without this key; the namespace stays, as in the original."""
        if namespace not in self._table:
            return self
        left = {each: value for each, value in self._table[namespace].items() if each != key}
        return KVConfig({**self._table, namespace: left})

    def _characters(self) -> int:
        return sum(
            len(namespace) + sum(len(key) + len(value) for key, value in entries.items())
            for namespace, entries in self._table.items()
        )

    def encode(self) -> str:
        """The file's text."""
        return java_json.dumps({"configTable": self._table}).decode()

    @classmethod
    def decode(cls, data: bytes) -> KVConfig:
        """Raises BodyError."""
        if not data.strip():
            return cls()
        table = JsonObject(java_json.loads(data), "the KV file").object("configTable")
        return cls({namespace: table.text_map(namespace) for namespace in table.members})
