"""The official Java client's producer and lite push consumer: the same program against a real proxy and against a gateway."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.suite.evidence import LONG
from tests.support.rocketmq.foreign_clients import LITE
from tests.support.rocketmq.lite_brokers import FEW, TOPIC, WILDCARD, Made, ours, real

SEEN = """\
wrong name: BadRequestException
wildcard subscribes: InternalErrorException
subscribed [a, c] {a=[1/1, 3/1], c=[4/1]}
beyond the quota: LiteSubscriptionQuotaExceededException
subscribed [a, b, c] {a=[1/1, 3/1], b=[2/1], c=[4/1]}
without a {a=[1/1, 3/1], b=[2/1, 6/1], c=[4/1]}
from the start {a=[1/1, 1/1, 3/1, 3/1, 5/1], b=[2/1, 6/1], c=[4/1]}
from the end {a=[1/1, 1/1, 3/1, 3/1, 5/1], b=[2/1, 6/1], c=[4/1], e=[9/1]}
failed once {a=[1/1, 1/1, 3/1, 3/1, 5/1], b=[2/1, 6/1], c=[4/1], e=[9/1], f=[bad 10/1, bad 10/2]}
wildcard {a=[1/1, 3/1, 5/1], b=[2/1, 6/1], c=[4/1], e=[7/1, 8/1, 9/1], f=[bad 10/1, bad 10/2]}
"""


@pytest.mark.parametrize(
    "broker", [pytest.param(real, marks=LONG, id="rocketmq"), pytest.param(ours, id="lakebroker")]
)
def test_a_lite_push_consumer_sees_the_same(tmp_path: Path, broker: Made) -> None:
    command = LITE()
    with broker(tmp_path / "broker") as side:
        done = subprocess.run(
            [*command, side.address, TOPIC, FEW, WILDCARD],
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == SEEN
