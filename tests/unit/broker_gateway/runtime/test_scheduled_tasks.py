"""Scheduled tasks: they run, fail, and say how it went."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker_gateway.observability.broker_statistics import BrokerStatistics
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.scheduled_tasks import ScheduledTask, ScheduledTasks, until_midnight_s
from tests.support.waiting import LoopClock, until


async def ran(task: ScheduledTask, times: int) -> None:
    await until(lambda: task.runs >= times, every_s=0.001)


def test_a_task_that_fails_is_tried_again_and_its_error_is_kept() -> None:
    async def scenario() -> None:
        tasks, count = ScheduledTasks(), 0

        def work() -> None:
            nonlocal count
            count += 1
            if count == 1:
                raise OSError("no disk")

        tasks.add("flaky", 0.001, work)
        (task,) = tasks.all()
        assert (task.runs, task.last_ms) == (0, 0)
        tasks.start()
        await ran(task, 2)
        assert task.failures == 1
        assert task.last_error == "OSError: no disk"
        assert 0 < task.last_error_ms <= task.last_ms <= time.time() * 1000
        await tasks.stop()
        runs = task.runs
        await LoopClock().move(60)
        assert task.runs == runs

    asyncio.run(scenario())


def test_tasks_may_be_coroutines_and_be_added_later() -> None:
    async def scenario() -> None:
        tasks = ScheduledTasks()
        tasks.start()

        async def work() -> None:
            await asyncio.sleep(0.002)

        tasks.add("later", lambda: 0.001, work)
        with pytest.raises(ValueError, match="'later'"):
            tasks.add("later", 1, work)
        (task,) = tasks.all()
        await ran(task, 1)
        assert task.took_s > 0.001
        await tasks.stop()

    asyncio.run(scenario())


def test_midnight_is_within_a_day() -> None:
    assert 1 <= until_midnight_s() <= 25 * 3600
    then = time.localtime(time.time() + until_midnight_s() + 1)
    assert (then.tm_hour, then.tm_min) == (0, 0)


def test_statistics_tell_today_from_yesterday() -> None:
    metrics = Metrics()
    statistics = BrokerStatistics(metrics)
    metrics.sent("t", 1, 10, 100, 0.1)
    metrics.received("t", "g", 4, 40)
    assert (statistics.put_today, statistics.put_yesterday) == (10, 0)
    statistics.record()
    metrics.sent("t", 1, 1, 10, 0.1)
    assert (statistics.put_today, statistics.put_yesterday) == (1, 10)
    assert (statistics.get_today, statistics.get_yesterday) == (0, 4)
    statistics.record()
    assert (statistics.put_today, statistics.put_yesterday, statistics.get_yesterday) == (0, 1, 0)
