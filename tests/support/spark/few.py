"""Sessions that know few of a lake's tables and views: each costs Spark statements, whatever is asked."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from structured_streaming import sql
from structured_streaming.catalog import lake_views
from structured_streaming.tables import REPUT_PROGRESS, Table
from structured_streaming.union import tables as union_tables
from structured_streaming.views import VIEWS


def know_only(patched: pytest.MonkeyPatch, tables: Iterable[Table], *views: str) -> None:
    """Lakes that are registered from here on have these tables, the progress, and these views; typed tables as ever."""
    known = {table.name: table for table in (*tables, REPUT_PROGRESS)}
    patched.setattr(sql, "TABLES", known)
    patched.setattr(union_tables, "TABLES", known)
    patched.setattr(lake_views, "VIEWS", tuple(view for view in VIEWS if view.name in views))
