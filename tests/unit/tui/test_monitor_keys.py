"""The monitor under its keys, without a terminal and without a bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import get_args

import pytest
from tests.support.monitor_log import recorded
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Footer

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_tui.app import MonitorApp
from oven_tui.apps.overlay_app import OverlayApp
from oven_tui.apps.play_app import PlayApp
from oven_tui.key_bindings import key_text
from oven_tui.model.commands import BY_ID, COMMANDS, Scope
from oven_tui.model.decision_entries import DecisionEntry
from oven_tui.screens.decision_detail import DecisionScreen
from oven_tui.screens.help import MONITOR_SCOPES, HelpScreen, TextScreen
from oven_tui.screens.log_console import ConsoleLines, ConsoleScreen
from oven_tui.screens.questions import ChoiceScreen, ConfirmScreen, KnobScreen
from oven_tui.screens.sampled_completions import CompletionScreen
from oven_tui.widgets.charts import Chart
from oven_tui.widgets.decision_list import DecisionList
from oven_tui.widgets.header import Header, RunFacts
from oven_tui.widgets.run_list import RunList

EVENTS = recorded()
ABOUT = RunFacts("demo", "grpo", "drill:lr-low", "everything was made slow")


@asynccontextmanager
async def monitor(
    events: list[Event], size: tuple[int, int] = (120, 35)
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    app = MonitorApp(ABOUT)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.query(Header) and app.query(Footer))
        app.set_link("connected", "")
        app.add_events(events)
        app.paint()
        await pilot.pause()
        yield app, pilot


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    """A pause ends when the process is idle, which it also seems while other processes have the cores."""
    async with asyncio.timeout(60):
        await pilot.pause()
        while not true():
            await pilot.pause(0.01)


def screen_text(app: MonitorApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def shown(app: MonitorApp, word: str) -> bool:
    return word in screen_text(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 35), (200, 60), (40, 12), (20, 5)])
async def test_it_draws_at_any_size_and_rows_are_as_wide_as_the_terminal(size: tuple[int, int]) -> None:
    async with monitor(EVENTS, size) as (app, _):
        strips = app.screen._compositor.render_strips()
        assert {strip.cell_length for strip in strips} == {size[0]}
        if size[0] >= 80:
            text = screen_text(app)
            for word in ("demo", "DRILL lr-low", "reward", "eval/accuracy", "optimizer.lr_scale", "malformed"):
                assert word in text


async def test_what_agents_write_cannot_steer_the_terminal() -> None:
    async with monitor(EVENTS, (200, 60)) as (app, pilot):
        await pilot.press("enter")
        await pilot.pause()
        assert "\x1b" not in screen_text(app)


async def test_a_frozen_view_stays_while_data_arrives_and_end_thaws_it() -> None:
    async with monitor(EVENTS[:140]) as (app, pilot):
        await pilot.press("space")
        before = app.query_one(Chart).drawn_rows
        app.add_events(EVENTS[140:177])
        app.paint()
        await until(pilot, lambda: "FROZEN +37" in screen_text(app))
        assert app.query_one(Chart).drawn_rows == before
        await pilot.press("end")
        await until(pilot, lambda: app.shown is app.view)
        await until(pilot, lambda: "FROZEN" not in screen_text(app))


async def test_the_list_follows_its_tail_until_somebody_moves_up() -> None:
    async with monitor(EVENTS[:150]) as (app, pilot):
        decisions = app.query_one(DecisionList)
        await pilot.press("k")
        here = decisions.cursor
        app.add_events(EVENTS[150:])
        app.paint()
        await pilot.pause()
        assert decisions.cursor == here
        await pilot.press("end")
        assert decisions.cursor == len(app.view.rows()) - 1
        await pilot.press("g")
        assert decisions.cursor == 0


async def test_enter_opens_the_ballot_with_votes_evidence_and_receipt() -> None:
    async with monitor(EVENTS, (120, 60)) as (app, pilot):
        decisions = app.query_one(DecisionList)
        first = next(n for n, entry in enumerate(app.view.rows()) if isinstance(entry, DecisionEntry))
        decisions.move_to(first)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DecisionScreen))
        evidence = ("lr_too_low", "kg:3f5a9c0d1e2b4a67", "symptom:slow_progress")
        for word in ("1 → 4", *evidence, "applied", "0.9", "reputation"):
            await until(pilot, partial(shown, app, word))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DecisionScreen))


async def test_every_kind_of_entry_opens() -> None:
    async with monitor(EVENTS) as (app, pilot):
        kinds = {type(entry): index for index, entry in enumerate(app.view.rows())}
        assert len(kinds) == 3
        for index in kinds.values():
            app.query_one(DecisionList).move_to(index)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, DecisionScreen))
            await pilot.press("escape")


async def test_data_that_arrives_under_a_ballot_is_drawn_behind_it() -> None:
    async with monitor(EVENTS[:150]) as (app, pilot):
        await pilot.press("enter")
        app.set_link("reconnecting", "the server went away")
        app.add_events(EVENTS[150:])
        app.paint()
        await pilot.press("escape")
        await until(pilot, lambda: "reconnecting" in screen_text(app))
        assert f"tick {app.view.run.tick}" in screen_text(app)


BOARDS = (MonitorApp, DecisionList, ConsoleLines, RunList, OverlayApp, PlayApp)
PAGES = (ConsoleScreen, CompletionScreen, TextScreen, HelpScreen, ConfirmScreen, ChoiceScreen, KnobScreen)
SHOWN = (*BOARDS, *PAGES)


def test_a_key_has_one_meaning_where_it_is_heard() -> None:
    for scopes in (("monitor", "decisions"), ("paper", "help"), *((scope,) for scope in get_args(Scope))):
        keys = [key for command in COMMANDS if command.scope in scopes for key in command.key_names()]
        assert len(keys) == len(set(keys))
    assert len(BY_ID) == len(COMMANDS)


async def test_help_has_every_command_of_the_table_and_the_classes_have_its_bindings() -> None:
    async with monitor(EVENTS, (120, 100)) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen) and "Filter the decisions" in screen_text(app))
        text = screen_text(app)
        for command in COMMANDS:
            assert command.scope not in MONITOR_SCOPES or (command.help in text and key_text(command) in text)
        bindings = [b for kind in SHOWN for b in kind.BINDINGS]
        assert {b.id for b in bindings if isinstance(b, Binding)} == set(BY_ID)


async def test_y_copies_the_row_as_json_and_vim_keys_move() -> None:
    async with monitor(EVENTS) as (app, pilot):
        decisions = app.query_one(DecisionList)
        last = decisions.cursor
        await pilot.press("ctrl+u")
        assert decisions.cursor < last
        await pilot.press("ctrl+d", "g", "j")
        assert decisions.cursor == 1
        for index, entry in enumerate(app.view.rows()):
            decisions.move_to(index)
            await pilot.press("y")
            copied = json.loads(app.clipboard)
            assert copied["event"] == entry.seq
            if isinstance(entry, DecisionEntry):
                assert Decision.model_validate(copied["decision"]) == entry.decision


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("reconnecting", "reconnecting it is gone"),
        ("refused", "key refused it is gone"),
        ("no mesh", "no mesh: no decisions are made"),
        ("unreadable", "cannot read the log: it is gone"),
        ("down", "stack is down"),
    ],
)
async def test_the_monitor_shows_the_state_of_the_connection(link: str, words: str) -> None:
    async with monitor(EVENTS) as (app, pilot):
        app.set_link(link, "it is gone")
        app.paint()
        await until(pilot, lambda: words in screen_text(app))
