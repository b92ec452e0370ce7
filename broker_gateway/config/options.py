"""Options of a process: groups of them as frozen, validated classes, read from `key=value` files with RocketMQ's names."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from broker_gateway.runtime.errors import OptionError, reason

LINE_BREAK = re.compile(r"\r\n|\r|\n")
"""Java's; str.splitlines knows more, which may stand in a value."""
_RANGE = ("greater_than_equal", "less_than_equal", "enum", "literal_error", "string_pattern_mismatch")
"""Errors that say no more than what is allowed."""
_MOST_PATH_BYTES = 4096
_MOST_NAME_BYTES = 255
"""Linux's PATH_MAX and NAME_MAX."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


def is_integer(text: str) -> bool:
    """Whether Java reads it as a number: no fraction, no underscores, not thousands of digits."""
    return _INTEGER.fullmatch(text) is not None


def _needed(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("a path is needed; give one, or leave the option out")
    return value


def _possible(value: Path | None) -> Path | None:
    """What a system call takes as a path."""
    text = os.fsencode(value) if value is not None else b""
    if b"\0" in text:
        raise ValueError("a path has no NUL character; leave it out")
    if len(text) >= _MOST_PATH_BYTES or any(len(part) > _MOST_NAME_BYTES for part in text.split(b"/")):
        raise ValueError(
            f"a path has less than {_MOST_PATH_BYTES:,} bytes, and a name in it at most {_MOST_NAME_BYTES}"
        )
    return value


def _unset_when_empty(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


Port = Annotated[int, Field(ge=0, le=65535)]
NeededPath = Annotated[Path, BeforeValidator(_needed), AfterValidator(_possible)]
OptionalPath = Annotated[Path | None, BeforeValidator(_unset_when_empty), AfterValidator(_possible)]


def camel(name: str) -> str:
    """The option of an attribute."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class OptionGroup(BaseModel):
    """An attribute is an option's name in snake case."""

    model_config = ConfigDict(frozen=True, alias_generator=camel, populate_by_name=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _as_java_reads_it(cls, value: object, info: ValidationInfo) -> object:
        """Of text, what Java takes for a boolean or an integer."""
        if not isinstance(value, str) or info.field_name is None:
            return value
        wanted, text = cls.model_fields[info.field_name].annotation, value.strip()
        if wanted is bool:
            if text.lower() not in ("true", "false"):
                raise ValueError("it is not a boolean")
            return text.lower() == "true"
        if wanted is int:
            if not is_integer(text):
                raise ValueError("it is not an integer")
            return int(text)
        return value


_G = TypeVar("_G", bound=OptionGroup)


def option_names(groups: Mapping[str, type[OptionGroup]]) -> dict[str, str]:
    """The group of every option."""
    return {
        field.alias or name: group
        for group, options in groups.items()
        for name, field in options.model_fields.items()
    }


def parse_properties(text: str, source: str) -> dict[str, str]:
    """`key=value` lines; `#` begins a comment line. Raises OptionError; `source` says where the text is from."""
    options = {}
    for number, line in enumerate(LINE_BREAK.split(text), 1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise OptionError(f"{source}, line {number}: {line!r} is no key=value")
        options[key.strip()] = value.strip()
    return options


def read_file(path: Path) -> dict[str, str]:
    """The options in a file. Raises OptionError."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors put a byte order mark before it
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the configuration file {path} cannot be read: {reason(error)}") from error
    return parse_properties(text, str(path))


def unknown_variables(
    names: Collection[str], prefix: str, own: re.Pattern[str] | None, environment: Mapping[str, str]
) -> list[str]:
    """A warning for every variable with the prefix that names no option; `own` are others that have a meaning.

    Those in capitals that are like no option are others' too: Kubernetes sets some for a service of our name.
    """
    warnings = []
    capitals = {name.upper(): name for name in names}
    for variable in environment:
        name = variable.removeprefix(prefix)
        if name == variable or name in names or (own is not None and own.fullmatch(name)):
            continue
        if name == name.upper() and name not in capitals:
            continue
        hint = _nearest(capitals.get(name, name), names, prefix)
        warnings.append(f"environment variable {variable} names no option and has no effect{hint}")
    return warnings


def _nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


class Others(Protocol):
    """Options that belong to no group."""

    def names(self) -> Collection[str]: ...

    def take(self, name: str, value: str) -> str | None:
        """What to warn of. Raises OptionError for a bad value."""


def given_options(
    names: Iterable[str],
    file: Path | None,
    overrides: Mapping[str, str],
    prefix: str,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """What was given. Precedence: overrides, environment (`prefix` and the name), file. Raises OptionError."""
    given = read_file(file) if file is not None else {}
    for name in names:
        if (value := environment.get(f"{prefix}{name}")) is not None:
            given[name] = value
    given.update(overrides)
    return given


def load_groups(
    groups: Mapping[str, type[OptionGroup]], given: Mapping[str, str], others: Others | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Every group by its name, and a warning for every option without effect. Raises OptionError, which names all bad
    values, one a line."""
    known = option_names(groups)
    elsewhere: Collection[str] = others.names() if others is not None else ()
    warnings, problems = [], []
    grouped: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in given.items():
        group = known.get(name)
        if group is not None:
            grouped[group][name] = value
        elif others is not None and name in elsewhere:
            try:
                warning = others.take(name, value)
            except OptionError as error:
                problems.append(str(error))
                continue
            if warning is not None:
                warnings.append(warning)
        else:
            hint = _nearest(name, [*known, *elsewhere])
            warnings.append(f"option {name} is unknown and has no effect{hint}")
    parts = {}
    for name, options in groups.items():
        try:
            parts[name] = validated(options, grouped[name], name)
        except OptionError as error:
            problems.append(str(error))
    if problems:
        raise OptionError("\n".join(problems))
    return parts, warnings


def validated(options: type[_G], given: Mapping[str, Any], group: str) -> _G:
    """The group with these options. Raises OptionError, which names each option that is wrong and its value, one a line."""
    try:
        return options.model_validate(dict(given))
    except ValidationError as error:
        problems: dict[str, str] = {}
        for problem in error.errors():
            name = str(problem["loc"][0]) if problem["loc"] else group
            problems.setdefault(name, _said(problem, allowed_values(options).get(name, "")))
        bad = error.errors()[0]["input"]
        lines = [f"option {name}={given.get(name, bad)}: {said}" for name, said in problems.items()]
        raise OptionError("\n".join(lines)) from error


def _said(problem: ErrorDetails, allowed: str) -> str:
    """What is wrong with an option, once."""
    if allowed and problem["type"] in _RANGE:
        return f"allowed: {allowed}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{message} (allowed: {allowed})" if allowed else message


@lru_cache(maxsize=32)
def allowed_values(options: type[OptionGroup]) -> Mapping[str, str]:
    """What each option of a group may be, in words; empty where anything goes."""
    schema = options.model_json_schema(by_alias=True)
    shared = schema.get("$defs", {})
    return {name: _allowed(field, shared) for name, field in schema.get("properties", {}).items()}


def _allowed(field: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    if "allowed" in field:
        return str(field["allowed"])
    if (reference := field.get("$ref")) is not None:
        return _allowed(shared[reference.rpartition("/")[2]], shared)
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if field.get("type") == "boolean":
        return "true or false"
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None:
        return f"{least} to {most}"
    if least is not None:
        return f"{least} or more"
    return str(field["pattern"]) if "pattern" in field else ""
