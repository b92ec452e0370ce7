"""JSON bodies by JSON Schema, read by Arrow many at a time.

Bodies are lines of one text. Each begins with `{` and ends with `}`; line ends within become tabs, which like them are white
space outside of strings and refused inside. So at the beginning of each line the parser stands between objects, or has failed:
as many objects as lines means one for each. Where Arrow refuses the text, it is read in parts, down to the body that does not
fit, which Arrow says why of. Whether a body fits is thus decided by Arrow's parser alone, and is the same whatever bodies are
beside it.

Beyond JSON's own rules: a field that stands twice does not fit where it has a column, nor does an integer that is written as
1.0 or 1e3, or beyond 64 bits. Fields without a column are passed over, whatever they hold.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from structured_streaming.rows.arrays import GREATEST_MS, LEAST_MS
from structured_streaming.typed.declaration import Schema
from structured_streaming.typed.decoded import ANY, Decoded, cut
from structured_streaming.typed.fields import TypedField, joined, list_leaves
from structured_streaming.typed.json_schema import JsonSchema, Node

_TAB, _LINE_END, _RETURN = 9, 10, 13
_WHITE = " \t\r\n"
_IN_ROW = re.compile(r" in row (\d+)$")
_COLUMN = re.compile(
    r"JSON parse error: Column\((?P<place>/.*)\) (?:changed from (?P<is_to>\w+) to (?P<found>\w+)|was specified twice)$",
    re.DOTALL,
)
_CONVERTED = re.compile(r"Failed to convert JSON to (?P<kind>\w+), couldn't parse:(?P<text>.*)$", re.DOTALL)
_PARSE = "JSON parse error: "
_TOO_BIG = f"{_PARSE}Number too big to be stored in double."
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DATE_TIME = f"^{_DATE}[T ]{_TIME}$"
Bools = NDArray[np.bool_]


class JsonBodies:
    """See `Decoder`. Raises SchemaError."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._versions = [(each.version, JsonSchema(each.text)) for each in schemas]
        fields: list[TypedField] = []
        raw: list[TypedField] = []
        for _, schema in self._versions:
            fields = joined(fields, schema.fields)
            raw = joined(
                raw, [TypedField(name, each.node.raw) for name, each in schema.root.children.items()]
            )
        self.fields = fields
        self.left_out = self._versions[-1][1].left_out
        self.bytes_of_lists = 8 * max(list_leaves(each.type) for each in fields) // 2  # `0,`
        self._raw = pa.schema([(each.name, each.type) for each in raw])
        self._final = pa.schema([(each.name, each.type) for each in fields])

    def decode(self, bodies: pa.BinaryArray, version: int = ANY) -> Decoded:
        """See `Decoder.decode`."""
        reasons: list[str | None] = [None] * len(bodies)
        lines, rows = _lines(bodies, reasons)
        found, fit = [self._raw.empty_table()], [np.empty(0, dtype=np.int64)]
        for begin, end, parsed in self._parsed(lines):
            if isinstance(parsed, str):
                reasons[int(rows[begin])] = cut(parsed)
            else:
                found.append(parsed)
                fit.append(rows[begin:end])
        raw, at = pa.concat_tables(found).combine_chunks(), np.concatenate(fit)
        chosen = [each for each in self._versions if version in (ANY, each[0])]
        versions, values = self._judged(chosen, raw, at, reasons)
        places = np.full(len(bodies), -1, dtype=np.int64)
        places[at] = np.arange(len(at))
        bad = np.array([reason is not None for reason in reasons], dtype=bool)
        taken = values.take(pa.array(np.where(bad, 0, places), pa.int64(), mask=bad))
        all_versions = np.zeros(len(bodies), dtype=np.int64)
        all_versions[at] = versions
        return Decoded(taken, all_versions.tolist(), reasons)

    def _parsed(self, lines: pa.StringArray) -> Iterator[tuple[int, int, pa.Table | str]]:
        """Tables of ranges of lines, or why a single line is not read."""
        todo = [(0, len(lines))] if len(lines) else []
        while todo:
            begin, end = todo.pop()
            try:
                yield begin, end, self._parse(lines.slice(begin, end - begin))
            except pa.ArrowException as error:
                if end - begin == 1:
                    yield begin, end, self._why(lines.slice(begin, 1), _IN_ROW.sub("", str(error)))
                    continue
                hint = _IN_ROW.search(str(error))
                bad = begin + int(hint[1]) if hint else end
                cuts = [begin, bad, bad + 1, end] if bad < end else [begin, (begin + end) // 2, end]
                todo += [part for part in reversed(list(itertools.pairwise(cuts))) if part[0] < part[1]]

    def _why(self, line: pa.StringArray, said: str) -> str:
        """What Arrow said of a single line, in this module's words."""
        if (column := _COLUMN.match(said)) is not None:
            place = column["place"][1:].replace("/[]", "[]").replace("/", ".")
            return (
                f"{place} is {column['found']}, not {column['is_to']}"
                if column["found"]
                else f"{place} stands twice"
            )
        if (converted := _CONVERTED.match(said)) is not None:
            place = self._unconverted(line, list(self._raw), pa.schema)
            named = "integer of 64 bits" if converted["kind"] == "int64" else converted["kind"]
            return f"{place} is no {named}: {converted['text']}"
        if said == _TOO_BIG:
            return "it has a number that is too big"
        return f"it is no JSON: {said.removeprefix(_PARSE)}" if said.startswith(_PARSE) else said

    def _unconverted(
        self, line: pa.StringArray, fields: list[pa.Field], within: Callable[[list[pa.Field]], pa.Schema]
    ) -> str:
        """The place of the first field that Arrow does not convert, found by parts; `within`: these fields in their place."""
        while len(fields) > 1:
            half = fields[: len(fields) // 2]
            fields = half if self._fails(line, within(half)) else fields[len(half) :]
        (field,) = fields
        place, kind = str(field.name), field.type
        wraps: list[Callable[[pa.DataType], pa.DataType]] = []
        while pa.types.is_list(kind):
            place, kind = f"{place}[]", kind.value_type
            wraps.append(pa.list_)
        if not pa.types.is_struct(kind):
            return place

        def deeper(some: list[pa.Field]) -> pa.Schema:
            wrapped: pa.DataType = pa.struct(some)
            for wrap in wraps:
                wrapped = wrap(wrapped)
            return within([field.with_type(wrapped)])

        return f"{place}.{self._unconverted(line, list(kind), deeper)}"

    def _fails(self, line: pa.StringArray, schema: pa.Schema) -> bool:
        try:
            self._parse(line, schema)
        except pa.ArrowException:
            return True
        return False

    def _parse(self, lines: pa.StringArray, schema: pa.Schema | None = None) -> pa.Table:
        """By a part of the schema, if one is given. Raises pa.ArrowException."""
        schema = self._raw if schema is None else schema
        offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset :][: len(lines) + 1]
        text = lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        found = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        if found.num_rows != len(lines):
            raise pa.ArrowInvalid(f"it is {found.num_rows} JSON values, one is expected")
        return found.select(schema.names)

    def _judged(
        self,
        chosen: Sequence[tuple[int, JsonSchema]],
        raw: pa.Table,
        at: NDArray[np.int64],
        reasons: list[str | None],
    ) -> tuple[NDArray[np.int64], pa.Table]:
        """The newest version that each row fits, 0 for none; the values with dates made of texts. Adds reasons."""
        versions = np.zeros(raw.num_rows, dtype=np.int64)
        columns = {name: raw[name].combine_chunks() for name in raw.column_names}
        columns = {
            name: each.chunk(0) if isinstance(each, pa.ChunkedArray) else each
            for name, each in columns.items()
        }
        for number, (version, schema) in enumerate(reversed(chosen)):
            left = versions == 0
            if not left.any():
                break
            misfits = _Misfits(raw.num_rows)
            for name, child in schema.root.children.items():
                misfits.look(columns[name], child.node, child.required, name)
            versions[left & ~misfits.bad] = version
            if number == 0:
                newest = misfits
        for row in np.flatnonzero(versions == 0).tolist():
            reasons[int(at[row])] = cut(newest.reason(row))
        values = [_final(columns[field.name], field.type) for field in self._final]
        return versions, pa.table(values, self._final)


def _lines(bodies: pa.BinaryArray, reasons: list[str | None]) -> tuple[pa.StringArray, NDArray[np.int64]]:
    """Bodies that may be JSON objects, each a line, and which they are; the others get a reason."""
    rows = np.arange(len(bodies), dtype=np.int64)
    texts, valid = _texts(bodies)
    _refuse(rows, ~valid, "it is no UTF-8 text", reasons)
    texts = pc.utf8_trim(texts, characters=_WHITE)
    objects = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")).to_numpy(zero_copy_only=False)
    _refuse(rows, valid & ~objects, "it is no JSON object", reasons)
    holds_nul = pc.match_substring(texts, "\0").to_numpy(zero_copy_only=False)
    _refuse(rows, valid & objects & holds_nul, "it holds a NUL character", reasons)
    kept = np.flatnonzero(valid & objects & ~holds_nul)
    lines = pc.binary_join_element_wise(texts.take(pa.array(kept)), "", "\n")
    return _with_tabs(lines), kept


def _texts(bodies: pa.BinaryArray) -> tuple[pa.StringArray, Bools]:
    """Bodies as texts, empty where they are none, and which are."""
    try:
        return bodies.cast(pa.string()), np.ones(len(bodies), dtype=bool)
    except pa.ArrowInvalid:
        pass
    if len(bodies) == 1:
        return pa.array([""], pa.string()), np.zeros(1, dtype=bool)
    middle = len(bodies) // 2
    (first, good), (second, fine) = _texts(bodies[:middle]), _texts(bodies[middle:])
    return pa.concat_arrays([first, second]), np.concatenate([good, fine])


def _with_tabs(lines: pa.StringArray) -> pa.StringArray:
    """Line ends within bodies become tabs; the last character of each stays."""
    if not len(lines):
        return lines
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset :][: len(lines) + 1]
    first = int(offsets[0])
    text = np.frombuffer(lines.buffers()[2], dtype=np.uint8)[first : int(offsets[-1])].copy()
    text[(text == _LINE_END) | (text == _RETURN)] = _TAB
    text[offsets[1:] - first - 1] = _LINE_END
    return pa.StringArray.from_buffers(
        len(lines), pa.py_buffer((offsets - first).astype(np.int32)), pa.py_buffer(text)
    )


def _refuse(rows: NDArray[np.int64], which: Bools, reason: str, reasons: list[str | None]) -> None:
    for row in rows[which].tolist():
        reasons[row] = reason


class _Misfits:
    """Which of some rows do not fit a version, and why the first field of each does not."""

    def __init__(self, count: int) -> None:
        self.bad = np.zeros(count, dtype=bool)
        self._why: list[tuple[Bools, str]] = []

    def reason(self, row: int) -> str:
        return next(text for which, text in self._why if which[row])

    def look(self, values: pa.Array, node: Node, required: bool, place: str) -> None:
        """Looks at a field of each row, and at what is in it."""
        self._look(values, node, required, place, np.arange(len(values)))

    def _look(
        self, values: pa.Array, node: Node, required: bool, place: str, rows: NDArray[np.int64]
    ) -> None:
        """`rows`: which row each value is of."""
        null = values.is_null().to_numpy(zero_copy_only=False)
        if required and not node.nullable:
            self._note(null, f"{place} is required", rows)
        if node.enum is not None:
            self._note(
                ~null & ~_one_of(values, node.enum), f"{place} is none of the values that it may have", rows
            )
        if node.type != node.raw and node.item is None and not node.children:
            self._note(~null & ~_is_date(values, node.type), f"{place} is no {_named(node.type)}", rows)
        elif pa.types.is_floating(values.type):
            self._note(
                ~null & ~np.isfinite(pc.fill_null(values, 0).to_numpy()), f"{place} is no finite number", rows
            )
        if node.children:
            inner = pc.filter(values, pc.is_valid(values))
            for name, child in node.children.items():
                self._look(
                    pc.struct_field(inner, name), child.node, child.required, f"{place}.{name}", rows[~null]
                )
        if node.item is not None:
            parents = pc.list_parent_indices(values).to_numpy()
            self._look(pc.list_flatten(values), node.item, False, f"{place}[]", rows[parents])

    def _note(self, which: Bools, text: str, rows: NDArray[np.int64]) -> None:
        if not which.any():
            return
        bad = np.zeros(len(self.bad), dtype=bool)
        bad[rows[which]] = True
        self.bad |= bad
        self._why.append((bad, text))


def _one_of(values: pa.Array, enum: tuple[object, ...]) -> Bools:
    """Which values are of the enum; one of another type is none that they can be."""
    kinds: tuple[type, ...] = (str,)
    if pa.types.is_boolean(values.type):
        kinds = (bool,)
    elif not pa.types.is_string(values.type):
        kinds = (int, float)
    fitting = [
        each for each in enum if isinstance(each, kinds) and isinstance(each, bool) == (kinds == (bool,))
    ]
    if pa.types.is_integer(values.type):
        fitting = [each for each in fitting if isinstance(each, int) and -(1 << 63) <= each < 1 << 63]
    found: Bools = pc.is_in(values, pa.array(fitting, values.type)).to_numpy(zero_copy_only=False)
    return found


def _is_date(texts: pa.StringArray, kind: pa.DataType) -> Bools:
    found: Bools = _dates(texts, kind).is_valid().to_numpy(zero_copy_only=False)
    return found


def _dates(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Times of texts as RFC 3339 has them; null where one is none, or of a year before 1 or after 9999."""
    whole = pa.types.is_date(kind)
    texts = pc.utf8_upper(texts)
    matching = pc.match_substring_regex(texts, f"^{_DATE}$" if whole else _DATE_TIME)
    texts = pc.if_else(matching, texts, pa.scalar(None, pa.string()))
    if not whole:
        texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    found = _cast(texts, kind)
    per_ms = 1000 if not whole else 1
    least, greatest = (
        (LEAST_MS, GREATEST_MS + 1)
        if not whole
        else (LEAST_MS // 86_400_000, (GREATEST_MS + 1) // 86_400_000)
    )
    number = found.cast(pa.int32()).cast(pa.int64()) if whole else found.cast(pa.int64())
    known = pc.and_(pc.greater_equal(number, least * per_ms), pc.less(number, greatest * per_ms))
    return pc.if_else(known, found, pa.scalar(None, kind))


def _cast(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Null where a text is no date, such as 30 February."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
        middle = len(texts) // 2
        return pa.concat_arrays([_cast(texts[:middle], kind), _cast(texts[middle:], kind)])


def _named(kind: pa.DataType) -> str:
    return "date" if pa.types.is_date(kind) else "date-time"


def _final(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as read, as those of their column: texts of dates are dates."""
    if values.type == kind:
        return values
    if pa.types.is_struct(kind):
        children = [_final(pc.struct_field(values, field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind):
        offsets = pa.array(
            np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy())]),
            pa.int32(),
        )
        return pa.ListArray.from_arrays(
            offsets, _final(pc.list_flatten(values), kind.value_type), type=kind, mask=values.is_null()
        )
    return _dates(values, kind)
