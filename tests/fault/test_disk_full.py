"""A disk that fills up: sends are refused by name, receiving and acknowledging go on, and room makes it well."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway, ProcessError
from tests.support.waiting import LIMIT_S, wait_until

DISK = 24 << 20
FILES = 500
SEGMENT = 1 << 20
BODY = b"x" * 50_000


class SmallDisk:
    """A tmpfs in a mount namespace of its own, kept by a process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        script = f'mount -t tmpfs -o size={DISK},nr_inodes={FILES} none "$1" && echo mounted && exec sleep infinity'
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n", "no user namespace, or no tmpfs in it"

    def path(self, name: str) -> Path:
        """A file on the disk, seen from outside."""
        return Path(f"/proc/{self._holder.pid}/root{self.folder}") / name

    def fill(self, leave: int = 0) -> None:
        """Fills the disk with a file but for `leave` bytes."""
        with self.path("ballast").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                file.truncate(max(0, file.tell() - leave))

    def fill_names(self) -> None:
        """Makes empty files until there may be no more."""
        self.path("names").mkdir()
        with contextlib.suppress(OSError):
            for number in range(FILES):
                self.path(f"names/{number}").touch()

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


def broker(folder: Path, disk: SmallDisk, segment: int = SEGMENT, **options: str) -> Gateway:
    return Gateway(
        folder,
        **OPTIONS,
        storePathRootDir=str(disk.path("store")),
        mappedFileSizeCommitLog=str(segment),
        cleanFileForciblyEnable="false",
        cleanResourceInterval="100",
        **options,
    )


def send_until_refused(client: Client) -> tuple[list[str], str]:
    """Ids of what was taken, and why the next was not."""
    taken: list[str] = []
    for _ in range(2000):
        answer = client.send("t", BODY)
        if answer.status.code != pb.OK:
            assert answer.status.code == pb.INTERNAL_SERVER_ERROR
            return taken, answer.status.message
        taken.append(answer.entries[0].message_id)
        time.sleep(0.005)
    raise AssertionError("never refused")


def take_all(client: Client) -> set[str]:
    """Receives and acknowledges everything."""
    seen: set[str] = set()
    while messages := client.receive("t", "g", invisible_ms=60_000)[1]:
        assert client.ack("t", "g", *messages).status.code == pb.OK
        seen |= {m.system_properties.message_id for m in messages}
    return seen


def wait_for_room(client: Client) -> None:
    """Until a send is taken again."""
    wait_until(lambda: client.send("t", BODY).status.code == pb.OK)


def test_a_disk_fuller_than_the_watermark(tmp_path: Path, disk: SmallDisk) -> None:
    disk.path("ballast").write_bytes(bytes(12 << 20))
    with broker(tmp_path / "gateway", disk) as gateway:
        client = Client(gateway.address)
        taken, why = send_until_refused(client)
        assert "diskSpaceWarningLevelRatio" in why
        assert str(disk.folder) in why
        assert take_all(client) == set(taken)
        assert client.send("t", BODY).status.code != pb.OK
        disk.path("ballast").unlink()
        wait_for_room(client)
        client.channel.close()
        assert gateway.terminate() == 0


def test_no_room_at_all_and_a_start_without_it(tmp_path: Path, disk: SmallDisk) -> None:
    with broker(tmp_path / "gateway", disk, diskSpaceWarningLevelRatio="99") as gateway:
        client = Client(gateway.address)
        first = [client.send("t", BODY).entries[0].message_id for _ in range(5)]
        disk.fill()
        taken, why = send_until_refused(client)
        assert "make room" in why
        assert take_all(client) == {*first, *taken}
        client.channel.close()
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        assert client.receive("t", "g")[1] == []
        assert client.send("t", BODY).status.code != pb.OK
        disk.path("ballast").unlink()
        wait_for_room(client)
        assert len(take_all(client)) == 1
        client.channel.close()
        assert gateway.terminate() == 0


def test_a_log_of_before_that_has_no_room_to_say_whose_it_is(tmp_path: Path, disk: SmallDisk) -> None:
    """For its bytes, or for one more name. Only a start can make room in it."""
    options = {
        **OPTIONS,
        "storePathRootDir": str(tmp_path / "root"),
        "storePathCommitLog": str(disk.path("log")),
        "mappedFileSizeCommitLog": str(SEGMENT),
    }
    other = {"storePathRootDir": str(tmp_path / "other-root")}
    (tmp_path / "other-root" / "commitlog").mkdir(parents=True)  # a store whose option is wrong
    owner = disk.path("log/.lakebroker/owner.json")
    no_room = "has no room for what says whose it is"
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        sent = {client.send("t", BODY).entries[0].message_id for _ in range(5)}
        client.channel.close()
        assert gateway.terminate() == 0
        shutil.rmtree(owner.parent)
        disk.fill()
        gateway.start()
        with pytest.raises(ProcessError, match="another process has"):
            Gateway(tmp_path / "other", **options | other).start()
        client = Client(gateway.address)
        assert take_all(client) == sent
        client.channel.close()
        assert gateway.terminate() == 0
        said = gateway.log.read_text()
        assert no_room in said
        assert not owner.exists()
        disk.path("ballast").unlink()
        shutil.rmtree(owner.parent, ignore_errors=True)
        disk.fill_names()
        gateway.start()
        assert gateway.terminate() == 0
        assert no_room in gateway.log.read_text().removeprefix(said)
        assert not owner.exists()
        shutil.rmtree(disk.path("names"))
        gateway.start()
        assert owner.exists()
        assert gateway.terminate() == 0


def test_a_change_that_is_refused_is_not_in_force_and_the_stop_is_clean(
    tmp_path: Path, disk: SmallDisk
) -> None:
    async def fill_the_log(port: int) -> str:
        """Creates groups until one is refused; its name."""
        client = RemotingClient()
        address = f"127.0.0.1:{port}"
        try:
            for number in range(20_000):
                name = f"g{number}-" + "x" * 105
                body = json.dumps({"groupName": name}).encode()
                put = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
                answer = await client.invoke(address, put, LIMIT_S)
                if answer.code != ResponseCode.SUCCESS:
                    assert "could not be written to the log, and is not done" in (answer.remark or "")
                    asked = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
                    shown = await client.invoke(address, asked, LIMIT_S)
                    assert shown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                    return name
        finally:
            await client.close()
        raise AssertionError("never refused")

    with broker(tmp_path / "gateway", disk, diskSpaceWarningLevelRatio="99") as gateway:
        client = Client(gateway.address)
        assert client.send("t", BODY).status.code == pb.OK
        disk.fill()
        send_until_refused(client)  # what is left is too small for a message, but still holds groups
        client.channel.close()
        refused = asyncio.run(fill_the_log(gateway.remoting_port))
        assert gateway.terminate() == 0
        log = gateway.log.read_text()
        assert log.count("the last snapshot could not be written") == 1
        assert "Traceback" not in log
        disk.path("ballast").unlink()
        gateway.start()
        client = Client(gateway.address)
        assert client.send("t", BODY).status.code == pb.OK
        client.channel.close()

        async def known() -> int:
            remoting = RemotingClient()
            try:
                asked = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": refused})
                return (await remoting.invoke(f"127.0.0.1:{gateway.remoting_port}", asked, LIMIT_S)).code
            finally:
                await remoting.close()

        assert asyncio.run(known()) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert gateway.terminate() == 0


def test_a_disk_smaller_than_a_segment_is_named_before_anything_opens(
    tmp_path: Path, disk: SmallDisk
) -> None:
    gateway = broker(tmp_path, disk, 4 * DISK)
    with pytest.raises(ProcessError, match=r"96 MiB \(mappedFileSizeCommitLog\)"):
        gateway.start()
    assert gateway.process is not None
    assert gateway.process.returncode == 254
    assert "serving" not in gateway.log.read_text()
    assert not disk.path("store").exists()


def test_too_few_open_files_are_named_before_anything_opens(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, limits={resource.RLIMIT_NOFILE: (64, 64)}, **OPTIONS)
    with pytest.raises(ProcessError, match=r"may open 64 files.*LimitNOFILE="):
        gateway.start()
    assert gateway.process is not None
    assert gateway.process.returncode == 254
    assert not gateway.store.exists()
