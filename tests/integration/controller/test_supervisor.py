"""Keeping real processes up: a crash, a crash loop, a wrong setting, and an end in the middle of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from tests.integration.conftest import WAIT_S

from oven_runs.process.child_process import Child
from oven_runs.process.supervisor import Backoff, Restartable, SupervisedProcess

QUICK = Backoff(first_s=0.01, factor=2, cap_s=0.03, healthy_after_s=1000, max_failures=5)
PAUSE = "import signal; print('error: told so'); signal.pause()"


class Stage:
    """A process that is kept up, with all that was told and noted of it."""

    def __init__(self, folder: Path, programs: list[str]) -> None:
        self.folder = folder
        self.programs = programs  # one a life; the last for all that follow
        self.lines: list[str] = []
        self.pids: list[int] = []
        self.news = asyncio.Condition()
        self.starts = 0

    async def start(self) -> Child:
        program = self.programs[min(self.starts, len(self.programs) - 1)]
        self.starts += 1
        return await Child.start("p", [sys.executable, "-u", "-c", program], self.folder / "p.log")

    def ready(self) -> Awaitable[None]:
        size = (self.folder / "p.log").stat().st_size
        return self._ready(size)

    async def _ready(self, size: int) -> None:
        while (self.folder / "p.log").stat().st_size == size:
            await asyncio.sleep(0.01)

    def tell(self, line: str) -> None:
        self.lines.append(line)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():
                await asyncio.sleep(0.01)

    def has_line(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@asynccontextmanager
async def supervising(
    folder: Path, programs: list[str], policy: Backoff = QUICK
) -> AsyncIterator[tuple[Stage, SupervisedProcess]]:
    stage = Stage(folder, programs)
    child = await stage.start()
    stage.pids.append(child.pid)
    restartable = Restartable("p", stage.start, stage.ready, lambda: "nothing is lost")
    supervised = SupervisedProcess(restartable, child, stage.tell, lambda _name, pid: stage.pids.append(pid), policy)
    try:
        yield stage, supervised
    finally:
        await supervised.end(5)
        assert not any(psutil.pid_exists(pid) for pid in stage.pids)


async def test_a_killed_process_is_reported_and_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path, [PAUSE]) as (stage, supervised):
        psutil.Process(supervised.child.pid).kill()
        await stage.until(lambda: stage.has_line("p is back after"))
        assert (
            "p ended (killed by SIGKILL): nothing is lost until it is back; restarting it in 0.01 s" in stage.lines[0]
        )
        assert supervised.child.pid == stage.pids[1] and len(stage.pids) == 2
        assert supervised.child.returncode is None


async def test_a_crash_loop_is_restarted_with_growing_delays_and_given_up(tmp_path: Path) -> None:
    async with supervising(tmp_path, ["exit(7)"]) as (stage, supervised):
        await stage.until(lambda: supervised.has_given_up)
        assert len(stage.pids) == QUICK.max_failures
        waits = [line.split("starting it in ")[1].split(" s")[0] for line in stage.lines[:-1]]
        assert waits == ["0.01", "0.02", "0.03", "0.03"]
        assert "p ended (exit code 7), 5 times in a row; giving up on it: nothing is lost; see " in stage.lines[-1]


async def test_delays_start_over_after_a_long_life(tmp_path: Path) -> None:
    always_well = Backoff(first_s=0.01, healthy_after_s=0, max_failures=2)
    async with supervising(tmp_path, [PAUSE], always_well) as (stage, supervised):
        for life in range(4):
            psutil.Process(supervised.child.pid).kill()
            await stage.until(lambda: sum("p is back after" in line for line in stage.lines) == life + 1)  # noqa: B023
        assert not stage.has_line("in a row")


async def test_a_process_with_a_wrong_setting_is_not_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path, ["print('error: no key in JUDGE_KEY'); exit(2)"]) as (stage, supervised):
        await stage.until(lambda: supervised.has_given_up)
        assert stage.lines[0].startswith("p ended (exit code 2): no key in JUDGE_KEY; it is not restarted")
        assert len(stage.pids) == 1


async def test_supervision_can_end_during_a_delay_or_a_start(tmp_path: Path) -> None:
    patient = Backoff(first_s=600, cap_s=600)
    async with supervising(tmp_path, ["exit(1)"], patient) as (stage, _supervised):
        await stage.until(lambda: stage.has_line("starting it in 600 s"))
    async with supervising(tmp_path, ["exit(1)", "import signal; signal.pause()"]) as (stage, _supervised):
        await stage.until(lambda: len(stage.pids) == 2)
