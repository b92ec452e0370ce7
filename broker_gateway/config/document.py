"""`docs/options.md`, from the options themselves: `python -m broker_gateway.config.document > docs/options.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import Enum

from pydantic.fields import FieldInfo

from broker_gateway.config.catalogue import ROWS, TABLE
from broker_gateway.config.catalogue.row import Fate, Row
from broker_gateway.config.gateway import GROUPS
from broker_gateway.config.options import allowed_values
from broker_gateway.config.reload import RELOADABLE

_HEAD = """# Options

Written by `python -m broker_gateway.config.document`; change the options in `broker_gateway/config/` (`*_options.py`, `registration.py`, `catalogue/`) instead.

An option is given as `--set name=value`, as `LAKEBROKER_name=value` in the environment, or as a line `name=value` of the file given with `-c`, in this order of precedence. `-n` stands for `namesrvAddr`, `NAMESRV_ADDR` in the environment is its default. `-p` prints all options with their values, `-m` the important ones. A bad value ends the start with status 253 and is named, with what is allowed. An unknown name is warned about.

*Live*: a change takes effect without a restart.

"""
_GROUP_TITLES = {
    "broker": "Broker",
    "server": "Server",
    "store": "Store",
    "registration": "Registration with name servers, and routes of others",
    "proxy": "gRPC server and metrics (names of RocketMQ's proxy)",
    "lake": "Options that RocketMQ has no name for",
}
_ORIGINAL_TITLES = {
    "broker": "Broker (`BrokerConfig`)",
    "server": "Server (`NettyServerConfig`)",
    "client": "Client (`NettyClientConfig`)",
    "store": "Store (`MessageStoreConfig`)",
    "auth": "Auth (`AuthConfig`)",
}


def options_markdown() -> str:
    """The whole document."""
    return _HEAD + "\n".join([*_effective(), *_others()]) + "\n"


def _effective() -> Iterator[str]:
    yield "## What has an effect\n"
    for group, options in GROUPS.items():
        yield f"### {_GROUP_TITLES[group]}\n"
        yield "| option | default | allowed | what it does |"
        yield "|---|---|---|---|"
        allowed = allowed_values(options)
        for name, field in options.model_fields.items():
            shown = field.alias or name
            yield _line(shown, field, allowed[shown])
        yield ""


def _line(name: str, field: FieldInfo, words: str) -> str:
    default = _default(name, field)
    row = ROWS.get(name)
    text = field.description or ""
    if row is not None and row.default and _text(field.default) != row.default and not field.default_factory:
        text += f" (RocketMQ: {row.default})"
    if name in RELOADABLE:
        text += ". *Live*"
    words = words.replace("|", "\\|")
    return f"| `{name}` | {default} | {f'`{words}`' if '^' in words else words} | {text} |"


def _default(name: str, field: FieldInfo) -> str:
    if name == "brokerIP1":
        return "the first usable address"
    if name == "storePathRootDir":
        return "`~/store`"
    text = _text(field.default)
    return f"`{text}`" if text else ""


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        value = value.value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others() -> Iterator[str]:
    yield "## RocketMQ's other options\n"
    yield (
        "Accepted ones are checked, shown and kept, and a value other than the default is warned about. Refused "
        "ones end the start, with status 253, unless their value is one of those allowed.\n"
    )
    for group, rows in TABLE.items():
        others = [row for row in rows if row.verdict.fate is not Fate.EFFECTIVE]
        if others:
            yield f"### {_ORIGINAL_TITLES[group]}\n"
            yield from _by_verdict(others)


def _by_verdict(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each reason: hundreds of options share a few."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        fate = row.verdict.fate.value
        if row.verdict.allowed:
            fate += f" unless {' or '.join(row.verdict.allowed)}"
        shown = f"`{row.name}` ({row.default})" if row.default else f"`{row.name}`"
        reasons.setdefault((fate, row.verdict.why), []).append(shown)
    yield "| what becomes of them | why | options (default) |"
    yield "|---|---|---|"
    for (fate, why), names in reasons.items():
        yield f"| {fate} | {why} | {', '.join(names)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(options_markdown())
