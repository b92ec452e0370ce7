"""Moved; imports from here go soon."""

from lakebroker_testing.real_rocketmq import *  # noqa: F403
