"""Extensions that cannot be loaded are named with the reason; a start ends then: `tests/integration/gateway/test_extending.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from broker_gateway.app.plug_ins import load_extensions
from broker_gateway.config.gateway import load_config
from broker_gateway.runtime.errors import HostError
from structured_streaming.without_pandas import leave_pandas_out
from tests.support.packages.installed import install

BAD = """
def broken(config):
    raise ValueError("no licence")


class Useless:
    def __init__(self, config):
        pass
"""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("example_bad:broken", "cannot be loaded: ValueError: no licence"),
        ("example_bad:missing", "cannot be loaded: AttributeError"),
        ("example_none:x", "cannot be loaded: ModuleNotFoundError"),
        ("example_bad:Useless", "has no method before, after"),
    ],
)
def test_an_extension_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    install(tmp_path, "example_bad", BAD, {"lakebroker.interceptors": {"bad": value}})
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *sys.path]
    )  # syspath_prepend has setuptools look at all packages
    with pytest.raises(HostError, match=re.escape(f"the extension bad ({value})")) as refused:
        load_extensions(load_config(None, {}, {})[0])
    assert message in str(refused.value)


def test_pandas_is_let_in_for_an_extension_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    leave_pandas_out()
    without = [*sys.meta_path]
    config = load_config(None, {}, {})[0]
    load_extensions(config)
    assert sys.meta_path == without
    install(tmp_path, "example_bad", BAD, {"lakebroker.interceptors": {"bad": "example_bad:broken"}})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(HostError):
        load_extensions(config)
    assert sys.meta_path != without
