"""Options of a process: groups of them as frozen, validated classes, read from `key=value` files with RocketMQ's names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker_gateway.errors import OptionError

Port = Annotated[int, Field(ge=0, le=65535)]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class OptionGroup(BaseModel):
    """An attribute is an option's name in snake case."""

    model_config = ConfigDict(frozen=True, alias_generator=_camel, populate_by_name=True, extra="forbid")


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
    for number, line in enumerate(text.splitlines(), 1):
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
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the configuration file {path} cannot be read: {error}") from error
    return parse_properties(text, str(path))


def load_groups(
    groups: Mapping[str, type[OptionGroup]],
    file: Path | None,
    overrides: Mapping[str, str],
    prefix: str,
    environment: Mapping[str, str],
    without_effect: Mapping[str, str],
) -> tuple[dict[str, Any], list[str]]:
    """Every group by its name, and a warning for every option nobody knows. Raises OptionError for a bad value.

    Precedence: overrides, environment (`prefix` and the name), file, default. `without_effect`: options that are
    taken and do nothing, with the reason, which is said when one is switched on.
    """
    known = option_names(groups)
    given = read_file(file) if file is not None else {}
    for name in known:
        if (value := environment.get(f"{prefix}{name}")) is not None:
            given[name] = value
    given.update(overrides)
    warnings = []
    grouped: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in given.items():
        group = known.get(name)
        if name in without_effect:
            if value.strip().lower() != "false":
                warnings.append(f"option {name}={value} has no effect: {without_effect[name]}")
        elif group is None:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"option {name} is unknown and has no effect{hint}")
        else:
            grouped[group][name] = value
    return {name: validated(options, grouped[name], name) for name, options in groups.items()}, warnings


def validated(options: type[_G], given: Mapping[str, Any], group: str) -> _G:
    """The group with these options. Raises OptionError, which names the option and its value."""
    try:
        return options.model_validate(dict(given))
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0]) if problem["loc"] else group
        raise OptionError(f"option {name}={problem['input']}: {problem['msg']}") from error
