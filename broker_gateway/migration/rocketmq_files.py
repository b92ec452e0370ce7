"""The files of `config/` as a RocketMQ broker reads and writes them.

| file | holds |
|---|---|
| `topics.json` | topics; one that accepts every message type is MIXED, unless the file said otherwise |
| `subscriptionGroup.json` | consumer groups |
| `consumerOffset.json` | for every group and queue an offset, as `topic@group` |

The original writes numbers as keys without quotes, and keeps the file before as `.bak`, which counts when the
newer one cannot be read. Every file has a data version, which never goes back. What a topic or a group has, and we do not
use, is kept and written as it was: `metadata/topic_configuration.py`, `group_configuration.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.metadata import group_configuration, topic_configuration
from broker_gateway.metadata.catalog import MAX_QUEUES, Catalog, Group, Topic
from broker_gateway.metadata.data_version import DataVersion, DataVersionError, parse_data_version
from broker_gateway.metadata.kept_fields import ConfigurationError
from broker_gateway.runtime.errors import reason
from store.counting import counted
from store.log.segment import sync_folder

CONFIG_FOLDER = "config"
FILES = {
    "topics.json": "topics have the queues that the log knows",
    "subscriptionGroup.json": "groups have the defaults",
    "consumerOffset.json": "a group begins with what its consumers hold, else as a new one",
}
"""What is read, and what becomes of a store without."""
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)')


class ConfigFileError(Exception):
    """A file of `config/` that makes no sense; the text says which, and what to do."""


def write_config(root: Path, catalog: Catalog, offsets: Mapping[QueueKey, int], now_ms: int) -> list[Path]:
    """Writes all of them, each whole or not at all, the old one kept as `.bak`; returns their paths.

    Each gets a data version later than the file before it has, and than the one we know of it. Raises
    ConfigFileError when that cannot be told.
    """
    folder = root / CONFIG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, dict[str, int]] = defaultdict(dict)
    for (group, topic, queue_id), offset in offsets.items():
        table[f"{topic}@{group}"][str(queue_id)] = offset
    files: dict[str, dict[str, Any]] = {
        "topics.json": {
            "topicConfigTable": {
                topic.name: topic_configuration.configuration(topic, exact=True) for topic in catalog.topics()
            }
        },
        "subscriptionGroup.json": {
            "forbiddenTable": {
                group.name: row for group in catalog.groups() if (row := group_configuration.forbidden(group))
            },
            "subscriptionGroupTable": {
                group.name: group_configuration.configuration(group, exact=True) for group in catalog.groups()
            },
        },
        "consumerOffset.json": {"offsetTable": table},
    }
    known = {name: _known_version(folder / name, catalog) for name in files}
    for name, content in files.items():
        content["dataVersion"] = known[name].next(now_ms).to_json()
        _write(folder / name, json.dumps(content, indent=1, sort_keys=True))
    sync_folder(folder)
    return [folder / name for name in files]


@dataclass(slots=True)
class Config:
    """What was read; `offsets` by queue, `versions` by the file's name. `problems` names files that could not be
    read, where the one before was taken, and what is kept without effect.
    """

    topics: list[Topic] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    offsets: dict[QueueKey, int] = field(default_factory=dict)
    versions: dict[str, DataVersion] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_config(root: Path, now_ms: int) -> Config:
    """The files of a broker. Missing ones count as empty; raises ConfigFileError for what makes no sense."""
    folder, found = root / CONFIG_FOLDER, Config()
    for name, row in _table(folder / "topics.json", "topicConfigTable", found).items():
        with _named(folder / "topics.json"):
            kinds, others, problems = topic_configuration.imported(name, row)
        found.problems += problems
        topic = Topic(
            name,
            _number(row, "readQueueNums", name, 16, MAX_QUEUES),
            _number(row, "writeQueueNums", name, 16, MAX_QUEUES),
            _number(row, "perm", name, 6, 7),
            kinds,
            now_ms,
            bool(row.get("order", False)),
            others,
        )
        found.topics.append(topic)
    forbidden: dict[str, dict[str, Any]] = {}
    groups = _table(folder / "subscriptionGroup.json", "subscriptionGroupTable", found, forbidden)
    for name, row in groups.items():
        with _named(folder / "subscriptionGroup.json"):
            others, problems = group_configuration.imported(name, row, forbidden.pop(name, None))
        found.problems += problems
        group = Group(
            name,
            _number(row, "retryMaxTimes", name, 16, (1 << 31) - 1, -1 << 31),
            bool(row.get("consumeMessageOrderly", False)),
            bool(row.get("consumeEnable", True)),
            now_ms,
            others=others,
        )
        found.groups.append(group)
    if forbidden:
        found.problems.append(
            f"forbiddenTable names {counted(len(forbidden), 'group')} that {'is' if len(forbidden) == 1 else 'are'} not there, the first {min(forbidden)!r}: left out"
        )
    for name, row in _table(folder / "consumerOffset.json", "offsetTable", found).items():
        topic_name, _, group_name = name.partition("@")
        if not group_name:
            raise ConfigFileError(f"{folder / 'consumerOffset.json'}: {name!r} is no topic@group")
        for queue_id in row:
            if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                raise ConfigFileError(
                    f"{folder / 'consumerOffset.json'}: {queue_id!r} of {name} is no queue id"
                )
            offset = _number(row, queue_id, name, 0, 1 << 62)
            found.offsets[QueueKey(group_name, topic_name, int(queue_id))] = offset
    return found


def _table(
    path: Path, name: str, found: Config, forbidden: dict[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """The table of a file, or of its `.bak`; its `forbiddenTable` is put into `forbidden`."""
    backup, problems = path.with_suffix(".json.bak"), found.problems
    others = len(problems)
    for each in (path, backup):
        try:
            parsed = json.loads(quoted_keys(each.read_text()))
            if name not in parsed:
                problems.append(f"{each} has no {name}")
                continue
            table = parsed[name]
            if isinstance(table, dict) and all(isinstance(row, dict) for row in table.values()):
                if len(problems) > others and each == backup:
                    problems.append(f"{backup} was taken instead")
                if forbidden is not None:
                    forbidden.update(_forbidden(parsed.get("forbiddenTable")))
                found.versions[path.name] = parse_data_version(parsed.get("dataVersion"))
                return table
            problems.append(f"{each} has no {name} of objects")
        except FileNotFoundError:
            continue
        except RecursionError:
            problems.append(f"{each} cannot be read: too deeply nested")
        except (OSError, ValueError, KeyError, TypeError) as error:  # DataVersionError is a ValueError
            problems.append(f"{each} cannot be read: {reason(error)}")
    if len(problems) > others and not backup.exists() and path.exists():
        raise ConfigFileError(f"{problems[-1]}; restore it from a copy, or remove it to go on without")
    return {}


def _forbidden(table: object) -> dict[str, dict[str, Any]]:
    """The rows of a `forbiddenTable`. Raises ValueError."""
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ValueError("forbiddenTable holds something else than objects")
    return table


def _known_version(path: Path, catalog: Catalog) -> DataVersion:
    """The later of what we keep of a file's data version and what it says, or the file before it."""
    known = catalog.versions.get(path.name, DataVersion())
    for each in (path, path.with_suffix(".json.bak")):
        try:
            parsed = json.loads(quoted_keys(each.read_text()))
            if not isinstance(parsed, dict):
                raise ValueError("it holds no JSON object")
            return max(known, parse_data_version(parsed.get("dataVersion")))
        except FileNotFoundError:
            continue
        except DataVersionError as error:
            raise ConfigFileError(
                f"{each}: {error}; correct it, or remove the file to go on without"
            ) from error
        except (OSError, ValueError) as error:
            raise ConfigFileError(
                f"{each} cannot be read ({error}), so that no later data version can be chosen; "
                "restore it from a copy, or remove it to go on without"
            ) from error
    return known


def quoted_keys(text: str) -> str:
    """Numbers as keys get the quotes that JSON wants; what stands in strings is left alone."""
    return _BARE_KEY.sub(lambda m: m[0] if m[1] is not None else f'{m[2]}"{m[3]}"{m[4]}', text)


def _number(row: Mapping[str, Any], key: str, where: str, default: int, most: int, least: int = 0) -> int:
    value = row.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise ConfigFileError(f"{key} of {where} is {value!r}, expected a number of {least} to {most}")
    return value


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """What a file says and makes no sense, or is too much, is a ConfigFileError of that file."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigFileError(f"{path}: {error}") from error


def _write(path: Path, text: str) -> None:
    staged = path.with_suffix(".json.tmp")
    with staged.open("w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, path.with_suffix(".json.bak"))
    os.replace(staged, path)
