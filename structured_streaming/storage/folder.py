"""What a lake needs of the place where its files are: the one interface of local folders and object stores. Nothing
else of the Spark side opens, links, renames or syncs a file of a lake."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class FileStatus(NamedTuple):
    """Of a file: bytes, and when it was written last, seconds since the epoch."""

    size: int
    modified: float


class NewFile(Protocol):
    """A file that is being written. Calls raise OSError."""

    @property
    def target(self) -> Any:
        """Where Arrow writes it: a path, or a file object."""

    def finish(self) -> int:
        """Makes what was written durable, under its name; its bytes."""

    def discard(self) -> None:
        """Leaves nothing of it."""


class Folder(Protocol):
    """A lake, a table or a table's log. Calls raise OSError; what one made is durable when it returns."""

    @property
    def uri(self) -> str:
        """As Delta's libraries take it."""

    @property
    def spark_uri(self) -> str:
        """As Spark takes it."""

    @property
    def parent(self) -> Folder:
        """The folder that it is in."""

    def child(self, name: str) -> Folder:
        """A folder in it, which need not be there."""

    def exists(self) -> bool:
        """Whether it is there."""

    def obstacle(self) -> Folder | None:
        """A file that stands where it, or a folder above it, would be made."""

    def is_file(self) -> bool:
        """Whether something is there that is no folder."""

    def make(self) -> None:
        """Makes it, and those above it that are missing."""

    def names(self) -> list[str]:
        """What is in it. Raises FileNotFoundError."""

    def has(self, name: str) -> bool:
        """Whether something of that name is there."""

    def stamp(self, name: str) -> Hashable | None:
        """Tells a file from another of its name; None when it is not there."""

    def status(self, name: str) -> FileStatus | None:
        """Of a file; None when it is not there."""

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError."""

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        """The content of one file after the other, up to the first that is not there."""

    def readable(self, name: str) -> Any:
        """Where Arrow reads a file: a path, or a file object. Raises FileNotFoundError where it has looked already."""

    def arrow_filesystem(self) -> Any:
        """With what Arrow reads the files of the table here, by the names that its log has: its own, with no Python in it."""

    def put_if_absent(self, name: str, content: bytes) -> None:
        """Puts a file whole. Raises FileExistsError when somebody else was first."""

    def replace(self, name: str, content: bytes) -> None:
        """Puts a file whole, over one that may be there."""

    def take(self, name: str, source: Folder, *, links: bool) -> bool:
        """A file of another folder, which nobody ever writes to again, under the name that it has there: whole or not at all.
        Where it `links` and the two are on one file system, both are the same file, and it says so. Raises FileNotFoundError."""

    def open_new(self, name: str) -> NewFile:
        """Begins a file."""

    def make_durable(self, names: Iterable[str]) -> None:
        """Files of other writers, and their names; those that are gone are passed over."""

    def make_all_durable(self) -> None:
        """What anybody put below it so far, however much that is; costs what is not durable yet."""

    def remove(self, name: str) -> None:
        """Removes a file; one that is gone is removed already."""

    def remove_all(self) -> None:
        """Removes it with all that is in it."""

    def create(self, name: str, fill: Callable[[str], None]) -> None:
        """A folder that `fill` makes at the uri that it is given: here whole or not at all. One that another process made
        meanwhile stays."""

    def derive(self, inputs: Iterable[str], make: Callable[[str], None], results: Sequence[str]) -> None:
        """Lets `make` work on the parent, or on a copy of it with nothing but `inputs` in a folder of this name; the
        `results` that it leaves there are then here, each durable before the next one."""

    def scratch_name(self) -> str:
        """For a new file in it that a crash may leave and nothing needs then: `remove_scratch` removes it."""

    def remove_scratch(self, older_s: float) -> None:
        """Removes what a crash left that long ago, in seconds; younger ones may be another writer's."""

    def scratch(self) -> AbstractContextManager[Folder]:
        """A folder on this machine for files that nobody needs at the end, when it is removed."""
