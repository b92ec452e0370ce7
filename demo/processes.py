"""Moved; imports from here go soon."""

from lakebroker_testing.gateway import *  # noqa: F403
