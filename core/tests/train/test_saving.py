"""When a run saves, what a failed save does, and that writing in the background changes neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.policy.checkpoint.store import Checkpoints, verify
from ramet.policy.errors import CheckpointError
from ramet.train.saving import Saver
from ramet.train.training import _restore


class Disk:
    """State is a number; writing it can be held, or fail. Only what the run does not wait for is copied."""

    def __init__(self) -> None:
        self.state = 0
        self.full = False
        self.free = threading.Event()
        self.free.set()

    async def stage(self, waited_for: bool) -> Callable[[Path], None]:
        copied = self.state

        def write(folder: Path) -> None:
            state = self.state if waited_for else copied
            assert self.free.wait(10)
            if self.full:
                raise CheckpointError("no space")
            (folder / "state").write_text(str(state))

        return write


def save(
    folder: Path, story: Callable[[Saver, Disk], Coroutine[Any, Any, None]], *, in_background: bool, every: int = 1
) -> dict[str, str]:
    """What stands on disk after the story: checkpoint -> its state."""

    async def run() -> None:
        disk = Disk()
        checkpoints = Checkpoints(folder, keep=9)
        await story(Saver(checkpoints, disk.stage, every=every, last=9, saved=0, in_background=in_background), disk)

    asyncio.run(asyncio.wait_for(run(), 20))
    found = sorted(folder.glob("step_*"))
    assert [verify(one) for one in found] == [[] for _ in found]
    return {one.name: (one / "state").read_text() for one in found}


async def written(saver: Saver) -> None:
    """Wait for the running save without asking how it went."""
    if saver._in_progress is not None:
        await asyncio.wait([saver._in_progress[1]])


async def steps(saver: Saver, disk: Disk, *numbers: int) -> None:
    for number in numbers:
        disk.state = number * 10
        await saver.save_if_due(number, None)


@pytest.mark.parametrize("in_background", [False, True])
def test_every_nth_step_and_the_last_one_are_saved_with_their_own_state(tmp_path: Path, in_background: bool) -> None:
    async def story(saver: Saver, disk: Disk) -> None:
        await steps(saver, disk, *range(1, 10))

    saved = save(tmp_path, story, in_background=in_background, every=4)
    assert saved == {"step_000004": "40", "step_000008": "80", "step_000009": "90"}


def test_in_the_background_the_run_goes_on_and_its_state_may_change_while_it_is_written(tmp_path: Path) -> None:
    async def story(saver: Saver, disk: Disk) -> None:
        disk.free.clear()
        await steps(saver, disk, 1)
        assert saver.saved == 0
        disk.state = 999
        disk.free.set()
        await saver.save(1)
        assert saver.saved == 1

    assert save(tmp_path, story, in_background=True) == {"step_000001": "10"}


@pytest.mark.parametrize("in_background", [False, True])
def test_one_failed_save_is_warned_of_with_its_step_and_two_in_a_row_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_background: bool
) -> None:
    async def story(saver: Saver, disk: Disk) -> None:
        await steps(saver, disk, 1)
        await written(saver)
        disk.full = True
        await steps(saver, disk, 2)
        await written(saver)
        disk.full = False
        await steps(saver, disk, 3)
        await written(saver)
        disk.full = True
        with pytest.raises(CheckpointError, match="2 saves in a row failed, so the run stops: no space"):
            for step in (4, 5, 6):
                await steps(saver, disk, step)
                await written(saver)

    assert save(tmp_path, story, in_background=in_background) == {"step_000001": "10", "step_000003": "30"}
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == [
        "CHECKPOINT OF STEP 2 NOT SAVED", "CHECKPOINT OF STEP 4 NOT SAVED",
    ]  # fmt: skip
    assert "a kill now loses the work after step 3" in said[1]


@pytest.mark.parametrize("in_background", [False, True])
def test_the_last_save_is_not_forgiven_and_what_stands_on_disk_is_not_written_again(
    tmp_path: Path, in_background: bool
) -> None:
    async def story(saver: Saver, disk: Disk) -> None:
        await steps(saver, disk, 8)
        await saver.save(8)
        await saver.save(8)
        disk.full = True
        with pytest.raises(CheckpointError, match="no space"):
            await steps(saver, disk, 9)

    assert save(tmp_path, story, in_background=in_background) == {"step_000008": "80"}


@pytest.mark.parametrize("full", [False, True])
def test_a_run_that_something_else_ends_lets_its_last_save_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    async def story(saver: Saver, disk: Disk) -> None:
        await steps(saver, disk, 1)
        await written(saver)
        disk.free.clear()
        await steps(saver, disk, 2)
        ending = asyncio.create_task(saver.end())
        await asyncio.sleep(0.05)
        assert not ending.done()
        disk.full = full
        disk.free.set()
        await ending
        await saver.end()

    saved = save(tmp_path, story, in_background=True)
    assert saved == {"step_000001": "10"} | ({} if full else {"step_000002": "20"})
    said = [record.getMessage() for record in caplog.records]
    assert said == (["CHECKPOINT OF STEP 2 NOT SAVED: no space; the newest is of step 1"] if full else [])


def test_a_resume_hashes_its_checkpoint_beside_the_loop() -> None:
    threads: list[int] = []
    checkpoints = SimpleNamespace(newest=lambda: threads.append(threading.get_ident()))
    tracker = SimpleNamespace(rewind=lambda step: None)
    state = asyncio.run(_restore(checkpoints, None, tracker, None, "data"))  # type: ignore[arg-type]
    assert state.step == 0 and threads and threads[0] != threading.get_ident()
