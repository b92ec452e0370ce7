"""Compiled functions (numba), and their machine code kept on disk.

`compiled` and `inlined` stand for numba's `njit`. Code is kept in a file for each function and signature, named by a
digest of all that went into it: bytecode, the values of every constant it uses, of whichever module, those of the
functions it calls, and the versions of numba, numpy and Python. So code that was compiled for another layout of rows
or records is never found, and no file has to be removed by hand. A file holds a checksum: one that is torn or
damaged is compiled again. Nothing here fails for want of a folder: code is then compiled in each process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba import njit
from numba.core import serialize
from numba.core.compiler import CompileResult

from store.errors import StoreError
from store.kernels.code_folders import CODE_FOLDERS, CodeFolders, read_own

Function = TypeVar("Function", bound=Callable[..., Any])
log = logging.getLogger(__name__)
_MAGIC = b"LKCODE1\n"
_VERSIONS = (numba.__version__, llvmlite.__version__, np.__version__, sys.version)
_SUFFIX = ".code"
_BUILTINS = (abs, bool, float, int, len, max, min, range, zip)


class Compiling:
    """What became of the compiled functions of this process."""

    def __init__(self) -> None:
        self.loaded = 0
        self.compiled = 0
        self.seconds = 0.0
        """Spent on compiling, those called by others counted once."""
        self._under_way: set[int] = set()
        self._began = 0.0
        self._told = False

    def begin(self, function: object) -> None:
        if not self._under_way:
            self._began = time.monotonic()
        self._under_way.add(id(function))

    def end(self, name: str, function: object) -> None:
        self.compiled += 1
        self._under_way.discard(id(function))
        if not self._under_way:
            spent = time.monotonic() - self._began
            self.seconds += spent
            log.info("compiled %s in %.1f s", name, spent)

    def not_kept(self) -> None:
        """Says once that each process compiles anew."""
        if not self._told:
            self._told = True
            wanted = ", ".join(map(str, CODE_FOLDERS.wanted())) or "a folder of the store"
            log.warning(
                "compiled code cannot be kept in %s: every start compiles, which takes some seconds of CPU; "
                "name a folder to write to in lakeCompiledCodePath",
                wanted,
            )


COMPILING = Compiling()


def compiled(function: Function) -> Function:
    """The function, compiled when it is first called with arguments of a kind."""
    return cast(Function, _keeping(njit(function)))


def inlined(function: Function) -> Function:
    """`compiled`, and put into the functions that call it."""
    return cast(Function, _keeping(njit(inline="always")(function)))


def check_bytes(what: str, found: object, plain: object) -> None:
    """Raises StoreError when what compiled code made is not what the plain code makes."""
    if found != plain:
        raise StoreError(
            f"the compiled {what} writes other bytes than the plain one, which is used instead; "
            "remove the folder of compiled code (lakeCompiledCodePath) and restart"
        )


def _keeping(dispatcher: Any) -> Any:
    if hasattr(dispatcher, "py_func"):  # with NUMBA_DISABLE_JIT it is the function itself
        dispatcher._cache = _Kept(dispatcher)
    return dispatcher


class _Kept:
    """What numba asks for code before it compiles a function, and gives it afterwards (its `_Cache`)."""

    cache_path = None

    def __init__(self, dispatcher: Any, folders: CodeFolders = CODE_FOLDERS) -> None:
        self._dispatcher = dispatcher
        self._folders = folders
        self._name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"

    def load_overload(self, signature: object, target: Any) -> Any:
        """The code for a signature; None when none is kept."""
        target.refresh()
        name = self._file_name(signature, target.codegen())
        for folder in self._folders.readable() if name else ():
            payload = _read(folder / name)
            if payload is None:
                continue
            try:
                found = CompileResult._rebuild(target, *pickle.loads(payload))  # type: ignore[no-untyped-call]
            except Exception as error:  # of a numba that writes it otherwise: whatever its parts raise
                log.warning(
                    "compiled code in %s is not used: %s: %s", folder / name, type(error).__name__, error
                )
                continue
            COMPILING.loaded += 1
            return found
        COMPILING.begin(self)
        return None

    def save_overload(self, signature: object, result: Any) -> None:
        """Keeps what was just compiled, where it can be kept."""
        COMPILING.end(self._name, self)
        if result.library.has_dynamic_globals or any(not each.can_cache for each in result.lifted):
            return
        name = self._file_name(signature, result.codegen)
        folders = self._folders.writable() if name else []
        if not folders:
            COMPILING.not_kept()
            return
        payload = serialize.dumps(result._reduce())  # type: ignore[no-untyped-call]
        for folder in folders:
            try:
                _write(folder / name, payload)
                self._remove_others(folder)
            except OSError as error:
                log.warning("compiled code cannot be kept in %s: %s", folder, error)

    def enable(self) -> None:
        """As numba's: nothing to do."""

    def disable(self) -> None:
        """As numba's: nothing to do."""

    def flush(self) -> None:
        """As numba's: what was compiled otherwise has another name."""

    def _file_name(self, signature: object, codegen: Any) -> str:
        """Of the code for a signature on this kind of processor; empty when it cannot be kept."""
        try:
            stem = self._stem()
        except TypeError as error:
            log.error("the code of %s cannot be kept: %s", self._name, error)
            return ""
        kind = hashlib.sha256(repr((str(signature), codegen.magic_tuple())).encode()).hexdigest()[:16]
        return f"{stem}-{kind}{_SUFFIX}"

    def _stem(self) -> str:
        return f"{self._name}-{stamp(self._dispatcher)[:32]}"

    def _remove_others(self, folder: Path) -> None:
        """Removes what was kept for the function as it was before."""
        stem = self._stem()
        for path in folder.glob(f"{self._name}-*{_SUFFIX}"):
            if not path.name.startswith(stem):
                path.unlink(missing_ok=True)


def stamp(dispatcher: Any) -> str:
    """A digest of all that a compiled function is made of. Raises TypeError for what has no value to compare."""
    digest = hashlib.sha256(repr(_VERSIONS).encode())
    _add_function(digest, dispatcher, set())
    return digest.hexdigest()


def _add_function(digest: Any, dispatcher: Any, seen: set[int]) -> None:
    if id(dispatcher) in seen:
        digest.update(b"again")
        return
    seen.add(id(dispatcher))
    function = dispatcher.py_func
    if function.__closure__:
        raise TypeError(
            f"{function.__qualname__} uses variables of the function around it; make them arguments"
        )
    digest.update(repr(sorted(dispatcher.targetoptions.items(), key=lambda each: str(each[0]))).encode())
    _add_code(digest, function.__code__, function.__globals__, seen)


def _add_code(digest: Any, code: types.CodeType, names: dict[str, Any], seen: set[int]) -> None:
    digest.update(repr((code.co_code, code.co_names, code.co_varnames, code.co_argcount)).encode())
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            _add_code(digest, value, names, seen)
        else:
            _add_value(digest, "a constant", value, seen)
    for name in code.co_names:
        if name in names:
            digest.update(name.encode())
            _add_value(digest, name, names[name], seen)


def _add_value(digest: Any, name: str, value: Any, seen: set[int]) -> None:
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype.descr, value.shape)).encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (tuple, frozenset)):
        parts = value if isinstance(value, tuple) else sorted(value, key=repr)
        digest.update(f"{len(parts)} of".encode())
        for each in parts:
            _add_value(digest, name, each, seen)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        digest.update(repr((type(value).__name__, value)).encode())
    elif isinstance(value, types.ModuleType) and hasattr(value, "__version__"):
        digest.update(repr((value.__name__, value.__version__)).encode())
    elif hasattr(value, "py_func"):
        _add_function(digest, value, seen)
    elif isinstance(value, numba.types.ExternalFunction):  # found by its name when the code is loaded
        digest.update(repr((value.symbol, str(value.sig))).encode())
    elif value in _BUILTINS:
        digest.update(value.__name__.encode())
    else:
        remedy = (
            "import what it needs of that by name"
            if isinstance(value, types.ModuleType)
            else "make it a number, text, an array or a tuple of these"
        )
        raise TypeError(
            f"compiled code uses {name}, a {type(value).__name__}: {remedy}, or give it as an argument"
        )


def _read(path: Path) -> bytes | None:
    """What a file of code holds; None when it is not there or not whole."""
    try:
        whole = read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("compiled code in %s cannot be read: %s", path, error)
        return None
    at = len(_MAGIC) + hashlib.sha256().digest_size
    payload = whole[at:]
    if whole[:at] != _MAGIC + hashlib.sha256(payload).digest():
        log.warning("compiled code in %s is damaged and is made anew", path)
        return None
    return payload


def _write(path: Path, payload: bytes) -> None:
    staged = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
