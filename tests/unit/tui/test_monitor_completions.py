"""The pane of sampled completions: what it shows, its keys, and texts that would steer a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.sampled import hostile, judged, stored
from textual.pilot import Pilot
from textual.widgets import Footer, Input

from oven_core.protocol.completion_messages import SampledGroup, StoredGroup
from oven_core.terminal_text import clean
from oven_tui.app import MonitorApp
from oven_tui.model.completion_page import lay_out_page, summary_row
from oven_tui.model.sampled_groups import MAX_GROUPS, SampledGroups
from oven_tui.screens.sampled_completions import CompletionScreen
from oven_tui.widgets.group_widgets import GroupList, GroupPage
from oven_tui.widgets.header import RunFacts

GROUPS = [judged(step, step % 4) for step in (10, 20, 30)]


@asynccontextmanager
async def pane(
    groups: list[StoredGroup], size: tuple[int, int] = (120, 35)
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    app = MonitorApp(RunFacts("demo", "grpo", "", ""))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.query(Footer))
        app.sampled.add(groups)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, CompletionScreen) and app.screen.query(GroupPage))
        await pilot.pause()
        yield app, pilot


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await pilot.pause()


def words(app: MonitorApp) -> str:
    """What stands on the screen."""
    shown = app.screen.query_one(GroupPage)
    height = shown.size.height
    lines = ["".join(segment.text for segment in shown.render_line(y)) for y in range(height)]
    return "\n".join([str(shown.border_title), *lines])


def listed(app: MonitorApp) -> list[int]:
    return [row.group.step for row in app.screen.query_one(GroupList).shown_rows]


async def test_it_follows_the_newest_and_goes_back_and_forth() -> None:
    async with pane(stored(*GROUPS)) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, CompletionScreen)
        assert listed(app) == [10, 20, 30] and "step 30 (tick 31), group 3 of 4" in words(app)
        assert "critic 0.8: right and short" in words(app) and "exact 1" in words(app)
        assert "style – (deadline)" in words(app) and "reward –" in words(app) and "adv –" in words(app)
        assert "5 more completions of this group" in words(app)
        await pilot.press("k")
        assert "step 20" in words(app)
        app.sampled.add([StoredGroup(seq=4, time="", group=judged(40))])
        screen.redraw()
        assert "step 20" in words(app) and listed(app)[-1] == 40  # it no longer follows
        await pilot.press("end")
        assert "step 40" in words(app)
        await pilot.press("g")
        assert "step 10" in words(app)
        await pilot.press("n", "b")
        assert "step 20" in words(app) and "a b c d" in words(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, CompletionScreen)


async def test_a_filter_can_be_set_and_cleared() -> None:
    async with pane(stored(*GROUPS)) as (app, pilot):
        await pilot.press("slash")
        app.screen.query_one(Input).value = "step:15-"
        await pilot.press("enter")
        assert listed(app) == [20, 30]
        await pilot.press("slash")
        app.screen.query_one(Input).value = "nothing-has-this"
        await pilot.pause()
        assert listed(app) == [] and "nothing matches" in words(app)
        await pilot.press("escape")
        assert listed(app) == [10, 20, 30] and isinstance(app.screen, CompletionScreen)


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
@pytest.mark.parametrize("beside", [False, True])
async def test_hostile_texts_at_every_size(size: tuple[int, int], beside: bool) -> None:
    async with pane(stored(hostile(7)), size) as (app, pilot):
        await pilot.press(*(["b"] if beside else []), "space", "pagedown", "pageup", "home")
        assert clean(app.export_screenshot().replace("\n", "")).isprintable()
        await pilot.resize_terminal(101, 30)
        await pilot.pause()
        assert "996,000 characters omitted" in "".join(
            text for line in lay_out_page(hostile(7), 90, side_by_side=False) for text, _ in line
        )


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("width", [10, 31, 78, 160])
@pytest.mark.parametrize("group", [*GROUPS[:1], hostile(1), judged(2).model_copy(update={"completions": ()})])
def test_every_line_fits_and_is_clean(group: SampledGroup, width: int, beside: bool) -> None:
    from rich.cells import cell_len

    for line in lay_out_page(group, width, side_by_side=beside):
        text = "".join(text for text, _ in line)
        assert cell_len(text) <= width and clean(text) == text
    assert sum(cell_len(text) for text, _ in summary_row(group, 28)) == 28


def test_sampled_groups_are_bounded_and_deduplicated() -> None:
    groups = SampledGroups()
    groups.add(stored(*(judged(step) for step in range(1, MAX_GROUPS + 11))))
    groups.add(stored(judged(1)))
    assert len(groups.groups) == MAX_GROUPS and groups.groups[-1].group.step == MAX_GROUPS + 10
    huge = judged(1).model_copy(update={"prompt": judged(1).prompt.model_copy(update={"text": "x" * (9 << 20)})})
    groups.add([StoredGroup(seq=1000 + n, time="", group=huge) for n in range(3)])
    assert [group.seq for group in groups.groups] == [1002]
