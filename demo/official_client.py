"""Moved; imports from here go soon."""

from lakebroker_testing.official_client import *  # noqa: F403
