"""A schema registry on this machine, with the answers of Confluent's, of any manners."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SUBJECT = "orders-value"


class SchemaRegistry:
    """Subjects, of which `url` is one. `answer` may be replaced; `wants` is the header `authorization` that it takes, empty: any.

    `asked` has the paths, `headers` what came with `authorization`. `files` has descriptors of Protobuf by id.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, wants: str = "") -> None:
        self.subjects: dict[str, dict[int, dict[str, Any]]] = {SUBJECT: {}}
        self.files: dict[int, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        self.wants = wants
        self.answer: Callable[[str], tuple[int, bytes]] = self.own_answer
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.headers.append(self.headers["authorization"])
                status, content = registry.answer(self.path)
                if registry.wants and self.headers["authorization"] != registry.wants:
                    status = 401
                    content = f'{{"error_code":401,"message":"got {self.headers["authorization"]}"}}'.encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", content.decode())
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.base = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.base}/subjects/{SUBJECT}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self,
        number: int,
        schema: Any,
        kind: str = "AVRO",
        subject: str = SUBJECT,
        references: Sequence[tuple[str, str, int]] = (),
    ) -> None:
        """A version more of a subject; `references` are name, subject and version."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        its = self.subjects.setdefault(subject, {})
        given = {"subject": subject, "version": len(its) + 1, "id": number, "schema": text}
        if kind != "AVRO":  # as Confluent's leaves it out
            given["schemaType"] = kind
        if references:
            given["references"] = [
                {"name": name, "subject": of, "version": version} for name, of, version in references
            ]
        its[len(its) + 1] = given

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def own_answer(self, path: str) -> tuple[int, bytes]:
        place, _, query = path.partition("?")
        parts = place.split("/")[1:]
        if parts[0] == "subjects" and parts[2:] == ["versions"] and parts[1] in self.subjects:
            return 200, json.dumps(sorted(self.subjects[parts[1]])).encode()
        if parts[0] == "subjects" and len(parts) == 4 and parts[3].isdigit():
            found = self.subjects.get(parts[1], {}).get(int(parts[3]))
            if found is not None:
                return 200, json.dumps(found).encode()
        if parts[:2] == ["schemas", "ids"] and query == "format=serialized" and int(parts[2]) in self.files:
            file = base64.b64encode(self.files[int(parts[2])]).decode()
            return 200, json.dumps({"schema": file}).encode()
        return 404, b'{"error_code":40401,"message":"Subject not found."}'
