"""Scheduled work of the broker, and how each last went.

| the original's task | period | here |
|---|---|---|
| `BrokerController` persist consumer offset | 5 s | none: offsets are in the journal with the tick that moved them |
| persist consumer filter, consumer order info | 10 s | none: filters come with each receive, and what FIFO groups have in flight is in the journal |
| broker stats record | midnight | `broker-statistics` |
| protect broker | 3 min | `protect-broker`, with `disableConsumeIfConsumerReadSlowly` |
| print water mark | 1 s | `load-report` |
| dispatch behind bytes | 60 s | `dispatch-lag`: of the lake, since the broker's own index is written with the append |
| refresh of the name server list | `updateNameServerAddrPeriod` | `name-servers`, while `namesrvAddr` names any |
| client housekeeping | 10 s | `housekeeping` |
| fast-failure expiry | 10 ms | none: nothing waits in a queue before it is served; each call is checked when it is read |
| clean expired files | `cleanResourceInterval` | `retention` |
| check self | 10 min | `self-check` (`lakeSelfCheckInterval`) |

Everything runs on the event loop. A task that fails is logged and tried again after its period.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import structlog

from broker_gateway.runtime.clock import now_ms

log = structlog.get_logger(__name__)

REDELIVERY_S = 0.1
PEERS_S = 0.2
HOUSEKEEPING_S = 10.0
PROTECT_BROKER_S = 180.0
LOAD_REPORT_S = 1.0
DISPATCH_LAG_S = 60.0
PUT_OFF_FILES_S = 10.0
Work = Callable[[], Awaitable[None] | None]


@dataclass(slots=True)
class ScheduledTask:
    """A task and its runs. `last_error` is of the newest failure, which later successes leave standing."""

    name: str
    period_s: Callable[[], float]
    work: Work
    runs: int = 0
    failures: int = 0
    last_ms: int = 0
    took_s: float = 0.0
    last_error: str = ""
    last_error_ms: int = 0
    running: asyncio.Task[None] | None = field(default=None, repr=False)


class ScheduledTasks:
    """The tasks of a broker; added before or after `start`."""

    def __init__(self) -> None:
        self._tasks: dict[str, ScheduledTask] = {}
        self._started = False

    def add(self, name: str, period_s: float | Callable[[], float], work: Work) -> None:
        """Runs `work` every `period_s` seconds, the first time after one period."""
        if name in self._tasks:
            raise ValueError(f"there is a task {name!r} already")
        period = period_s if callable(period_s) else lambda: period_s
        task = self._tasks[name] = ScheduledTask(name, period, work)
        if self._started:
            self._run(task)

    def remove(self, name: str) -> None:
        """Ends a task, if there is one of this name."""
        task = self._tasks.pop(name, None)
        if task is not None and task.running is not None:
            task.running.cancel()

    def start(self) -> None:
        self._started = True
        for task in self._tasks.values():
            self._run(task)

    async def stop(self) -> None:
        """Ends all of them; one that is under way is cancelled."""
        self._started = False
        running = [task.running for task in self._tasks.values() if task.running is not None]
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def all(self) -> Iterable[ScheduledTask]:
        """In the order they were added. May be called on another thread."""
        return list(self._tasks.values())

    def _run(self, task: ScheduledTask) -> None:
        task.running = asyncio.create_task(self._repeat(task), name=task.name)

    async def _repeat(self, task: ScheduledTask) -> None:
        while True:
            await asyncio.sleep(task.period_s())
            began = time.perf_counter()
            try:
                doing = task.work()
                if doing is not None:
                    await doing
            except Exception as error:
                task.failures += 1
                task.last_error, task.last_error_ms = f"{type(error).__name__}: {error}"[:500], now_ms()
                log.exception("a scheduled task failed; it is tried again", task=task.name)
            task.runs += 1
            task.took_s = time.perf_counter() - began
            task.last_ms = now_ms()


def until_midnight_s() -> float:
    """Seconds until the next midnight of this host's time zone."""
    now = now_ms() / 1000
    day = time.localtime(now)
    midnight = time.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, 0, 0, 0, 0, 0, -1))
    return max(midnight - now, 1.0)
