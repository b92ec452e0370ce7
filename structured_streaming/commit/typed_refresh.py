"""Schemas that messages name by the ids of a registry become versions of their topic's declaration.

An id that the subject does not have, or whose schema no column of the table can hold, is remembered as refused, with the reason
that its messages get. So an id is asked for once, whatever sends it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from structured_streaming.commit.typed_lake import TypedTables
from structured_streaming.errors import LakeError
from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.registry.subject import Registered, Registry
from structured_streaming.typed.declaration import MOST_REFUSED, Declaration
from structured_streaming.typed.decoded import cut
from structured_streaming.typed.topic import TypedTopic


def refreshed(
    lake: TypedTables, declared: Declaration, unknown: Iterable[int], access: RegistryAccess = NOTHING
) -> Declaration:
    """Asks the registry of a declaration, and notes what of its subject is new, and which of some ids are not there.

    Raises RegistryAwayError, LakeError.
    """
    asked = Registry(declared.registry, declared.newest.message, access)
    return noted(lake, declared, unknown, asked.schemas([schema.id for schema in declared.schemas]))


def noted(
    lake: TypedTables, declared: Declaration, unknown: Iterable[int], found: Sequence[Registered]
) -> Declaration:
    """The declaration with what its registry answered when it was asked for some ids. Raises LakeError."""
    wanted = sorted(set(unknown))
    return lake.alter(declared.table, lambda now: with_registered(now, found, wanted))


def with_registered(
    declared: Declaration, found: Iterable[Registered], unknown: Iterable[int]
) -> Declaration:
    """A declaration with schemas of its subject, and with those ids refused that are none of them."""
    refused = dict(declared.refused)
    for form, schema, problem in found:
        if any(schema.id == known.id for known in declared.schemas):
            continue
        try:
            if problem:
                raise LakeError(problem)
            if form != declared.format:
                raise LakeError(f"it is {form}, the topic's schemas are {declared.format}")
            more = declared.evolved(dataclasses.replace(schema, version=declared.newest.version + 1))
            TypedTopic(more)
        except LakeError as error:
            refused[schema.id] = cut(str(error))
        else:
            declared = more
            refused.pop(schema.id, None)
    known_ids = {schema.id for schema in declared.schemas}
    for number in unknown:
        if number not in known_ids:
            refused.setdefault(number, "it is none of the subject's")
    return dataclasses.replace(declared, refused=tuple(sorted(refused.items())[:MOST_REFUSED]))
