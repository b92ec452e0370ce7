"""DuckDB's errors in plain words. Those that come while rows are taken are Arrow's, with DuckDB's text."""

from __future__ import annotations

import re

from structured_streaming.errors import LakeError, NotThereError, ReadOnlyError, is_away

_TRACE = re.compile(r"\n(?:At:|Traceback|Stack Trace|The above exception)\b.*", re.DOTALL)
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_FILE = re.compile(
    r"""(?:IO|Invalid Input|Invalid|Serialization) Error: [^'"]*['"](?P<lake>/[^'"]*)/(?P<table>\w+)/(?P<file>[^/'"]+\.parquet)['"]"""
)
_PARQUET = re.compile(
    r"(?![A-Z][\w ]* Error: ).*(don't know what type|variable-length int|TProtocol|TTransport|thrift)",
    re.IGNORECASE | re.DOTALL,
)
"""Errors about a damaged file that do not name it."""
_GONE = re.compile(
    r"IO Error: |Invalid Input Error: arrow_scan: get_next failed\(\): IOError: .*\[errno 2\]",
    re.DOTALL,
)
"""Of DuckDB's own files, and of Arrow's datasets. Told by how they begin: other errors have the texts of messages in them."""
_AWAY = re.compile(
    r"Invalid Input Error: arrow_scan: get_next failed\(\): IOError: .*AWS Error "
    r"(?:NETWORK_CONNECTION|REQUEST_TIMEOUT|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|"
    r"UNKNOWN \(HTTP status (?:429|5\d\d)\))",
    re.DOTALL,
)
"""Of Arrow's datasets: an object store that does not answer, or not now."""
_NO_FUNCTION = "Catalog Error: Scalar Function with name "
_DUCKDB_S = (
    'This is DuckDB\'s SQL: "a name" where Spark has `a name`, unnest(keys) for explode(keys), octet_length(body) for length(body); '
    "`lakebroker sql --engine spark` takes Spark's"
)
_OF_DATA = frozenset(("ALTER", "CREATE", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"))
"""Kinds of statements that Spark has, too, where writing is allowed."""
BEFORE = r"(?>\s+|--[^\n]*\n|/\*.*?\*/)*+"
"""White space and comments. Possessive, as all of a statement has to be: another way to part them would be tried for ever."""
_FIRST_WORD = re.compile(rf"{BEFORE}(\w+)", re.DOTALL)


class CancelledError(LakeError):
    """A statement that was cancelled."""


class UnexplainedError(LakeError):
    """A statement that failed in one of the engine's threads: another one, which DuckDB interrupts for it, may tell of that alone."""


class LakeAwayError(LakeError, NotThereError):
    """A lake that cannot be read now; it may later."""


class FilesGoneError(LakeAwayError):
    """Files that are not there, or cannot be read: of a version that was vacuumed, perhaps."""


class FatalError(LakeError):
    """After it a database answers nothing more. `text` is DuckDB's; `earlier`: another statement met it, before."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"DuckDB met a fatal error, and answers nothing more; start this program anew ({text})"
        )
        self.text = text
        self.earlier = "because of a previous fatal error" in text


def not_a_query(kind: str, statement: str) -> ReadOnlyError:
    """Why a statement does not run; `kind` is the parser's, which calls INSTALL a LOAD, say."""
    if kind in _OF_DATA:
        return ReadOnlyError(kind)
    found = _FIRST_WORD.match(statement)
    word = found[1].upper() if found else kind
    return ReadOnlyError(
        word,
        f"{word} is refused: DuckDB answers queries of the lake here, without other files, extensions and settings",
    )


def plain(error: Exception, line: int = 0) -> LakeError:
    """What it says is wrong; where memory or disk is short, what can be done. `line`: lines that were put before a statement."""
    text = _TRACE.sub("", str(error)).strip()
    if isinstance(error, MemoryError):  # of Arrow, or Python
        text = f"Out of Memory Error: {text or 'a value is too large'}"
    text = _LINE.sub(lambda found: f"LINE {int(found[1]) - line}:", text)
    if text.startswith("INTERRUPT Error"):
        return UnexplainedError("the statement failed, and DuckDB has lost the reason; ask again")
    if text.startswith("FATAL Error"):
        return FatalError(text)
    if text.startswith("Out of Memory Error"):
        short = "temporary folder" if "max_temp_directory_size" in text else "memory"
        return LakeError(
            f"the statement needs more than the {short} that it may use; give it more (--memory, or --temp-folder on a disk "
            f"with more space), or ask for less ({text.splitlines()[0]})"
        )
    if text.startswith(_NO_FUNCTION):
        text = f"{text}\n{_DUCKDB_S}"
    gone = _GONE.match(text) or isinstance(error, FileNotFoundError)
    found = _FILE.match(text)
    if found is not None:
        text = (
            f"table {found['table']}: its file {found['file']} cannot be read ({text.replace(found['lake'] + '/', '')}); "
            "`lakebroker lake check` tells what else is wrong"
        )
    if gone:
        return FilesGoneError(text)
    if _AWAY.match(text) or is_away(error):
        return LakeAwayError(text)
    if found is None and _PARQUET.match(text):
        text = f"a file of the lake is damaged, perhaps ({text}); `lakebroker lake check` tells which"
    return LakeError(text)
