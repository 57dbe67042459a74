"""Every action of the monitor by its keys, on a real stack: receipts in the log, and a replay that is byte-equal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.integration.conftest import Stack
from textual.pilot import Pilot

from oven_controller.log.command_result import CommandResult
from oven_controller.protocol.messages import Receipt
from oven_controller.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_controller.runs.local_run import LocalRun
from oven_controller.runs.log_sources import exported
from oven_controller.runs.run_access import RunAccess
from oven_tui.app import MonitorApp
from oven_tui.screens.choice import ChoiceScreen
from oven_tui.screens.confirm import ConfirmScreen
from oven_tui.screens.knob import KnobScreen
from oven_tui.widgets.header import About

pytestmark = pytest.mark.e2e

ADVISER = '''
"""Would have the clip at 2, or at 1."""
from oven_agents import Agent

class Adviser(Agent):
    moves = ("grad.clip",)
    speciality = ("grad.clip",)

    def vote(self, window):
        value = 2.0 if window.knobs["grad.clip"].number <= 1.0 else 1.0
        return window.propose("grad.clip", value, confidence=0.95, why="it swings")
'''


class Person:
    """Somebody at the keys of a monitor."""

    def __init__(self, app: MonitorApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        async with asyncio.timeout(60):
            while not true():
                await self.pilot.pause(0.01)

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause()

    async def on(self, page: type) -> None:
        """Until that page is shown, mounted and heard."""
        await self.until(lambda: isinstance(self.app.screen, page) and self.app.screen.is_running)
        await self.pilot.pause()

    async def choose(self, wanted: str) -> None:
        """From a list, by walking down to it."""
        await self.on(ChoiceScreen)
        page = self.app.screen
        assert isinstance(page, ChoiceScreen)
        ids = [choice.id for choice in page.choices]
        assert wanted in ids, ids
        await self.press(*("j" for _ in range(ids.index(wanted))), "enter")

    async def confirm(self, *keys: str) -> CommandResult:
        await self.on(ConfirmScreen)
        return await self.given(*(keys or ("enter",)))

    async def given(self, *keys: str) -> CommandResult:
        """What comes of the command that the keys give."""
        before = set(self.app.view.given.by_id)
        await self.press(*keys)
        await self.until(lambda: self.new(before))
        (result,) = self.new(before)
        await self.until(lambda: result.whole or result.failed or result.waited, result.command.action)
        return result

    def new(self, before: set[str]) -> list[CommandResult]:
        return [one for name, one in self.app.view.given.by_id.items() if name not in before]

    def shows(self, words: str) -> bool:
        return words in "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())


@asynccontextmanager
async def monitor(access: RunAccess, *, control: bool = True) -> AsyncIterator[Person]:
    app = MonitorApp(About(access.run), access, control=control)
    async with app.run_test(size=(140, 40)) as pilot:
        person = Person(app, pilot)
        await person.until(lambda: app.view.run.started and app.view.run.tick > 2)
        yield person


def steered(stack: Stack, run: str, *sets: str) -> RunAccess:
    """A stack whose learner has a knob of each kind, and an agent that always wants something."""
    stack.install({"learner": "oven_services:steered"})
    (stack.folder / "adviser.py").write_text(ADVISER)
    wanted = ("agents=[{name: adviser.py}]", "kg=false", "rules.autonomy=advise", "rules.cooldown_ticks=1", *sets)
    stack.up(run, *(part for text in wanted for part in ("--set", text)), until="learner  toy")
    return LocalRun(stack.run_folder(run))


async def test_every_action_by_its_keys(stack: Stack) -> None:
    access = await asyncio.to_thread(steered, stack, "acts")
    async with monitor(access) as person:
        app = person.app
        run = app.view.run
        given: list[CommandResult] = []

        async def done(result: CommandResult) -> CommandResult:
            assert result.stage == "done", (result.command, result.line())
            await person.until(lambda: person.shows("✔ step") or person.shows("✔ done"))
            given.append(result)
            return result

        await person.until(lambda: run.advised)
        await person.press("g", "a")
        if isinstance(app.screen, ChoiceScreen):
            await person.press("enter")
        approved = await done(await person.confirm("r", *"fine", "enter"))
        assert approved.decision is not None and approved.decision.of and approved.command.reason == "fine"
        await person.press("e")
        await person.choose("grad.clip")
        await person.on(KnobScreen)
        await person.press(*"500")
        await person.until(lambda: person.shows("the mesh would refuse: 500 cannot be set for grad.clip"))
        await person.press("backspace", "backspace", "backspace", "3")
        assert (await done(await person.given("enter"))).receipt.after == 3.0  # type: ignore[union-attr]
        for knob, keys in (("sampling.warmth", "L"), ("data.mixture", "jl"), ("teacher.active", "l")):
            await person.press("e")
            await person.choose(knob)
            await person.on(KnobScreen)
            await person.press(*keys)
            await done(await person.given("enter"))
        assert run.knobs["sampling.warmth"] == 0.6 and run.knobs["teacher.active"] == "large"
        assert run.knobs["data.mixture"] == {"easy": 0.45, "hard": 0.55}

        await person.press("p")
        await done(await person.confirm())
        await person.until(lambda: run.held)
        await person.press("p")
        await done(await person.confirm("y"))
        await person.until(lambda: not run.held)

        await person.press("w")
        kept = (await done(await person.confirm())).receipt
        assert kept is not None
        await person.until(lambda: run.step > kept.step + 2)
        await person.press("b")
        await person.choose(str(kept.tick))
        back = (await done(await person.confirm())).receipt
        assert back is not None and back.after == float(kept.step)
        await person.press("B")
        forward = (await done(await person.confirm())).receipt
        assert forward is not None and forward.after == back.before
        await person.press("b")
        await person.choose("newest")
        await done(await person.confirm())

        for keys, words in (("x", "muted"), ("x", "not muted")):
            await person.press(keys)
            await person.choose("adviser")
            assert words in (await done(await person.confirm())).outcome()
        for key in ("T", "t"):
            await person.press(key)
            await person.choose("adviser")
            await person.choose("grad.clip")
            await done(await person.confirm())
        for level in ("observe", "advise"):
            await person.press("o")
            await person.choose("grad.clip")
            await person.choose(level)
            await done(await person.confirm())

        await person.until(lambda: any(not run.lapsed(one) for one in run.advised.values()))
        await person.press("g", "v")
        if isinstance(app.screen, ChoiceScreen):
            await person.press("enter")
        await done(await person.confirm())

        await person.press("X")
        await done(await person.confirm())
        assert {one.command.action for one in given} == {
            "approve", "set", "hold", "resume", "mute", "unmute", "trust", "distrust", "autonomy", "veto", "stop"
        }  # fmt: skip
    up = stack.started[0]
    code, said = await asyncio.to_thread(stack.end_of, up)
    assert code == 0, said
    events = list(exported(stack.run_folder("acts")))
    logged = {event.body.id for event in events if isinstance(event.body, OperatorCommand)}
    answered = {event.body.command for event in events if isinstance(event.body, CommandAnswer | Receipt)}
    assert {one.command.id for one in given} == logged and logged <= answered
    code, said = await asyncio.to_thread(stack.command, "replay", "acts")
    assert (code, "byte for byte" in said) == (0, True), said
