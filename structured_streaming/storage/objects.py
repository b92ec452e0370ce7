"""A lake's files in an object store: what is put is there whole and durable when the store has answered.

Stores are S3 and what speaks as it does, Google's and Azure's. Where they are and how they are entered is taken from the
environment, by the names that Delta's own libraries read as well (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), or from
the role of the machine.

There are no folders, only names with slashes: nothing is to be made, and a table begins to be there with its first commit.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from structured_streaming.errors import ObjectError, StoreAwayError
from structured_streaming.storage.arrow_clients import arrow_client
from structured_streaming.storage.folder import FileStatus, Folder
from structured_streaming.storage.local import SCRATCH_PREFIX, temporary_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "abfss": "abfss"}
"""Of locations, and what Spark's file systems call them."""
_CONNECT_S, _REQUEST_S, _RETRY_S, _RETRIES = 5, 30, 20, 4
_WHOLE_BYTES = 1 << 20
"""Objects up to that size are read at once."""
_AHEAD_BYTES = 1 << 20
"""Parquet's readers ask for each column of each row group by itself, many of which are a few kilobytes and follow each other."""
_COPIED_BYTES = 4 << 20
"""At a time."""
_READERS = 16
_SAID = 500
_AWAY = re.compile(r"HTTP error: (?!builder error)|status code: (?:429|5(?!01|05)\d\d)\b")
"""In an error's text, after some tries: no connection, no answer, or one that says to come later. 501 and 505 stay as they are."""
_UNTRUSTED = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""In an error's text: the server's certificate is refused, and why."""
_TRUE = ("1", "true", "yes", "on")


class ObjectFolder:
    """See `Folder`. The names in the store that begin with `key` and a slash; those of the whole store where it is empty.

    `root` is the store's URL without a path. Needs the package obstore.
    """

    def __init__(self, root: str, key: str) -> None:
        self._root = root
        self._key = key
        self._store = _store(root, os.environ.get("AWS_ENDPOINT_URL", ""))

    def __str__(self) -> str:
        return self.uri

    @property
    def uri(self) -> str:
        return f"{self._root}/{self._key}" if self._key else self._root

    @property
    def spark_uri(self) -> str:
        scheme, _, rest = self.uri.partition("://")
        return f"{SCHEMES[scheme]}://{rest}"

    @property
    def parent(self) -> ObjectFolder:
        return ObjectFolder(self._root, self._key.rpartition("/")[0])

    def child(self, name: str) -> ObjectFolder:
        return ObjectFolder(self._root, self._of(name))

    def exists(self) -> bool:
        import obstore

        with _as_os_errors():
            return any(page for page in obstore.list(self._store, self._key or None, chunk_size=1))

    def obstacle(self) -> None:
        """A name is no hindrance to names that begin with it."""

    def make(self) -> None:
        """Nothing is to be made."""

    def is_file(self) -> bool:
        return bool(self._key) and self._head(self._key) is not None

    def names(self) -> list[str]:
        import obstore

        with _as_os_errors():
            found = obstore.list_with_delimiter(self._store, self._key or None)
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        if not paths:
            raise FileNotFoundError(f"{self} holds nothing")
        return [path.rpartition("/")[2] for path in paths]

    def has(self, name: str) -> bool:
        return self._head(self._of(name)) is not None

    def stamp(self, name: str) -> tuple[Any, ...] | None:
        found = self._head(self._of(name))
        return None if found is None else (found["e_tag"], found["last_modified"], found["size"])

    def status(self, name: str) -> FileStatus | None:
        found = self._head(self._of(name))
        return None if found is None else FileStatus(found["size"], found["last_modified"].timestamp())

    def read(self, name: str) -> bytes:
        import obstore

        with _as_os_errors():
            return bytes(obstore.get(self._store, self._of(name)).bytes())

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        todo, window = iter(names), 1
        with ThreadPoolExecutor(_READERS) as pool:
            while batch := list(itertools.islice(todo, window)):
                for content in pool.map(self._read_if_there, batch):
                    if content is None:
                        return
                    yield content
                window = min(2 * window, _READERS)

    def readable(self, name: str) -> io.BufferedIOBase | io.RawIOBase:
        found = self._head(self._of(name))
        if found is None:
            raise FileNotFoundError(f"{self}/{name} is not there")
        if found["size"] <= _WHOLE_BYTES:
            return io.BytesIO(self.read(name))
        return io.BufferedReader(_Reader(self._store, self._of(name), found["size"]), _AHEAD_BYTES)

    def arrow_filesystem(self) -> Any:
        return arrow_client(self.uri, _CONNECT_S, _REQUEST_S)

    def put_if_absent(self, name: str, content: bytes) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with _as_os_errors():
                obstore.put(self._store, self._of(name), content, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # ours, where the answer to an earlier try was lost
            if self.read(name) != content:
                raise FileExistsError(f"{self}/{name} is there already") from error

    def replace(self, name: str, content: bytes) -> None:
        import obstore

        with _as_os_errors():
            obstore.put(self._store, self._of(name), content, use_multipart=False)

    def take(self, name: str, source: Folder, *, links: bool) -> bool:
        found = source.readable(name)
        file = self.open_new(name)
        try:
            with open(found, "rb") if isinstance(found, str) else found as content:
                while part := content.read(_COPIED_BYTES):
                    file.write(part)
            file.finish()
        except BaseException:
            file.discard()
            raise
        return False

    def open_new(self, name: str) -> ObjectFile:
        return ObjectFile(self._store, self._of(name))

    def make_durable(self, names: Iterable[str]) -> None:
        """All that is there is durable."""

    def make_all_durable(self) -> None:
        """All that is there is durable."""

    def remove(self, name: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError), _as_os_errors():
            obstore.delete(self._store, self._of(name))

    def remove_all(self) -> None:
        import obstore

        with _as_os_errors():
            for page in obstore.list(self._store, self._key):
                obstore.delete(self._store, [each["path"] for each in page])

    def create(self, name: str, fill: Callable[[str], None]) -> None:
        # what makes the table be there is one object, its first commit
        try:
            fill(self.child(name).uri)
        except Exception:
            if not self.child(name).exists():  # else another process was faster
                raise

    def derive(self, inputs: Iterable[str], make: Callable[[str], None], results: Sequence[str]) -> None:
        make(self.parent.uri)

    def scratch_name(self) -> str:
        return f"{SCRATCH_PREFIX}{os.urandom(16).hex()}"

    def remove_scratch(self, older_s: float) -> None:
        """A crash leaves none that this needs to look for: a name that is put and removed at once, at a start."""

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Folder]:
        with temporary_folder() as folder:
            yield folder

    def _of(self, name: str) -> str:
        return f"{self._key}/{name}" if self._key else name

    def _head(self, key: str) -> Any:
        import obstore

        try:
            with _as_os_errors():
                return obstore.head(self._store, key)
        except FileNotFoundError:
            return None

    def _read_if_there(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None


class ObjectFile(io.RawIOBase):
    """See `NewFile`. Sent in parts while it is written; there is no object before `finish`."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        import obstore

        super().__init__()
        self._size = 0
        with _as_os_errors():
            self._upload = obstore.open_writer(store, key)

    @property
    def target(self) -> ObjectFile:
        return self

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _as_os_errors():
            self._upload.write(data)
        self._size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def finish(self) -> int:
        with _as_os_errors():
            self._upload.close()
        return self._size

    def discard(self) -> None:
        """What was sent is no object; the store's rule for unfinished uploads removes it."""


class _Reader(io.RawIOBase):
    """An object of `size` bytes, of which ranges are asked for."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        import obstore

        left = max(self._size - self._at, 0)
        length = left if size < 0 else min(size, left)
        if not length:
            return b""
        with _as_os_errors():
            found = bytes(obstore.get_range(self._store, self._key, start=self._at, length=length))
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(memoryview(buffer).nbytes)
        memoryview(buffer)[: len(found)] = found
        return len(found)


def object_folder(url: str) -> ObjectFolder:
    """The folder that a URL names, whose scheme is one of `SCHEMES`. Raises ImportError where obstore is not installed."""
    parts = urlsplit(url)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    key = "/".join(part for part in parts.path.split("/") if part)
    return ObjectFolder(f"{scheme}://{parts.netloc}", key)


@functools.lru_cache(maxsize=16)
def _store(root: str, _endpoint: str) -> ObjectStore:
    """One client for a store: its connections are kept. Another one when the endpoint has changed since."""
    from obstore.store import from_url

    plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in _TRUE
    with _as_os_errors():
        return from_url(
            root,
            client_options={
                "connect_timeout": datetime.timedelta(seconds=_CONNECT_S),
                "timeout": datetime.timedelta(seconds=_REQUEST_S),
                "allow_http": plain,
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": datetime.timedelta(seconds=_RETRY_S),
            },
        )


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """A store's errors become ObjectErrors of one line; StoreAwayError where it did not answer, or not now. AlreadyExistsError and
    FileNotFoundError stay."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError:
        raise
    except (BaseError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        text = str(error)  # of an OSError, where the end of an upload failed
        if (untrusted := _UNTRUSTED.search(text)) is not None:
            raise ObjectError(
                f"{_said(text)}: the certificate is refused ({untrusted[1]}); its authority must be among those that this machine "
                "trusts"
            ) from error
        raise (StoreAwayError if _AWAY.search(text) else ObjectError)(_said(text)) from error


def _said(text: str) -> str:
    """Of an answer in XML its code and message: the rest may repeat who asked, and how it was signed."""
    said = " ".join(text.split("Debug source", 1)[0].split())
    said, _, answer = said.partition("<?xml")
    told = [found[1] for tag in ("Code", "Message") if (found := re.search(f"<{tag}>(.*?)</{tag}>", answer))]
    if told:
        said += ": ".join(told)
    if said.endswith("builder error"):
        said += " (an address with http:// asks for AWS_ALLOW_HTTP=true)"
    return said[:_SAID]
