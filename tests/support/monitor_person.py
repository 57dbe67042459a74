"""A person at the keys of a monitor that runs in this process, on a real run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from textual.pilot import Pilot

from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult
from oven_tui.app import MonitorApp
from oven_tui.screens.questions import ChoiceScreen, ConfirmScreen
from oven_tui.widgets.header import RunFacts

LIMIT_S = 60


class Person:
    def __init__(self, app: MonitorApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.results: list[CommandResult] = []
        """What was done, in order."""

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not true():
                await asyncio.sleep(0.1)

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, each after the monitor handled the one before."""
        await self.pilot.press(*keys)

    async def on(self, page: type) -> None:
        """Wait until that page is shown, mounted and idle."""
        await self.until(lambda: isinstance(self.app.screen, page) and self.app.screen.is_running)
        await self.pilot.pause()

    async def choose(self, *wanted: str) -> None:
        """Choose an option from one list or several lists in a row, by moving down to it."""
        for id_ in wanted:
            await self.on(ChoiceScreen)
            page = self.app.screen
            assert isinstance(page, ChoiceScreen)
            ids = [choice.id for choice in page.choices]
            assert id_ in ids, ids
            await self.press(*("j" for _ in range(ids.index(id_))), "enter")
            await self.until(partial(self._has_left, page))

    def _has_left(self, page: object) -> bool:
        return self.app.screen is not page

    async def confirm(self, *keys: str) -> CommandResult:
        """Answer the question and return the command's result."""
        await self.on(ConfirmScreen)
        return await self.give(*(keys or ("enter",)))

    async def give(self, *keys: str) -> CommandResult:
        """Press the keys that give a command and return its result once its row has it."""
        before = set(self.app.view.commands.by_id)
        await self.press(*keys)
        await self.until(lambda: len(self.app.view.commands.by_id) > len(before))
        (result,) = [command for name, command in self.app.view.commands.by_id.items() if name not in before]
        await self.until(lambda: result.is_final or result.failure or result.wait_text)
        self.results.append(result)
        return result

    async def done(self, *keys: str) -> Any:
        """Answer the question and return the receipt, or the mesh's answer if there is no receipt."""
        result = await self.confirm(*keys)
        assert result.stage == "done", (result.command, result.line())
        return result.receipt or result.answer

    def text(self) -> str:
        """Return the text on the screen."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def sees(self, words: str) -> None:
        await self.until(lambda: words in self.text())


@asynccontextmanager
async def at_monitor(access: RunAccess, *, control: bool = True) -> AsyncIterator[Person]:
    """Yield the monitor once it knows the run's newest step."""
    app = MonitorApp(RunFacts(access.run), access, control=control)
    async with app.run_test(size=(110, 30)) as pilot:
        person = Person(app, pilot)
        await person.until(lambda: app.view.run.started and app.view.run.tick > 2)
        yield person
