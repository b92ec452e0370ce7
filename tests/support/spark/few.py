"""Sessions that know few of a lake's tables and views: each costs Spark statements, whatever is asked."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from structured_streaming import sql
from structured_streaming.catalog import lake_views
from structured_streaming.tables import REPUT_PROGRESS, TABLES, Table
from structured_streaming.union import tables as union_tables
from structured_streaming.views import VIEWS


def know_only(patched: pytest.MonkeyPatch, tables: Iterable[Table], *views: str) -> None:
    """Lakes that are registered from here on have these tables, the progress, and these views with the tables that they are of; typed
    tables as ever."""
    chosen = tuple(view for view in VIEWS if view.name in views)
    needed = {REPUT_PROGRESS.name, *(table.name for table in tables)}

    def of_view(name: str) -> str:
        needed.add(name)
        return name

    for view in chosen:
        view.over(of_view)
    known = {name: table for name, table in TABLES.items() if name in needed}
    patched.setattr(sql, "TABLES", known)
    patched.setattr(union_tables, "TABLES", known)
    patched.setattr(lake_views, "VIEWS", chosen)
