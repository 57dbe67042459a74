"""Sampled completions as monitor and command line read them: live, over a restart, from elsewhere, and afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from tests.integration.tui.test_monitor import folder, serving  # noqa: F401
from tests.support.sampled import hostile, judged

from oven_controller.cli.log import print_completions
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError
from oven_core.protocol.completion_messages import SampledGroup, StoredGroup
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_completions
from oven_core.security.credentials import Credentials
from oven_core.terminal_text import clean
from oven_runs.access.completion_reader import follow_groups, newest_groups
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.home.run_folder import RunFolder
from oven_tui.completion_feed import sampled_groups

LIMIT_S = 60.0


async def publish(bus: Bus, *groups: SampledGroup) -> None:
    for group in groups:
        await bus.publish(Subjects("r").completions, group.wire())
    await bus.flush()


class Listener:
    """What a feed yields, until somebody has heard enough."""

    def __init__(self, run: RunFolder) -> None:
        self.groups: list[StoredGroup] = []
        self._run, self._more = run, asyncio.Event()

    async def __aenter__(self) -> Listener:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        async for groups in sampled_groups(LocalRun(self._run)):
            self.groups += groups
            self._more.set()

    async def until(self, step: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not self.groups or self.groups[-1].group.step != step:
                self._more.clear()
                await self._more.wait()


@pytest.mark.slow
async def test_live_over_a_restart_from_elsewhere_and_after(
    folder: RunFolder,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    local = LocalRun(folder)
    with folder.hold():
        async with contextlib.AsyncExitStack() as around:
            first = await around.enter_async_context(contextlib.AsyncExitStack())
            _, bus = await first.enter_async_context(serving(folder))
            await streams.create(bus.jetstream, "r")
            await serve_completions(bus, "r")
            with pytest.raises(ConfigError, match=r"run 'r' stores no completions: .*completions.every=10"):
                await newest_groups(local, 5)
            await streams.create_completions(bus.jetstream, "r")
            assert await newest_groups(local, 5) == []
            await bus.publish(Subjects("r").completions, b"\xff{")  # not a message: passed over
            await publish(bus, *(judged(step) for step in range(1, 71)))
            groups = await newest_groups(local, 5)
            assert [stored_group.group.step for stored_group in groups] == [66, 67, 68, 69, 70]
            monitor = Credentials.load(folder.server.creds / "monitor.nk")
            assert await newest_groups(RemoteRun("r", folder.info().url, monitor), 4) == groups[1:]
            listener = await around.enter_async_context(Listener(folder))
            await listener.until(70)
            await publish(bus, judged(71))
            await listener.until(71)
            await first.aclose()
            _, bus = await around.enter_async_context(serving(folder))  # another port, the same store
            await serve_completions(bus, "r")
            await publish(bus, hostile(72))
            await listener.until(72)
            assert [stored_group.group.step for stored_group in listener.groups] == [*range(7, 73)]
            async with contextlib.aclosing(follow_groups(local, 3)) as batches:
                assert [stored_group.group.step for stored_group in await anext(batches)] == [70, 71, 72]
    capsys.readouterr()
    await print_completions(local, last=2, as_json=True, follow=True)  # its stack is down
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["group"]["step"] for line in lines] == [71, 72] and all(line.isascii() for line in lines)
    await print_completions(local, last=2, as_json=False, follow=False)
    output = capsys.readouterr().out
    assert all(clean(line) == line for line in output.split("\n"))
    assert "critic 0.8: right and short" in output and "996,000 characters omitted" in output
    assert "reward –, advantage –" in output and "5 more completions of this group" in output
