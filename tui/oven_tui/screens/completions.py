"""The page of sampled completions: a list of sampled groups, and the chosen group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import ClassVar, TypeAlias

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Footer

from oven_core.errors import OvenError
from oven_core.protocol.completion_messages import StoredGroup
from oven_tui.bindings import bindings
from oven_tui.model.sampled_groups import SampledGroups
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.group_page import GroupList, GroupPage

Source: TypeAlias = Callable[[], AsyncIterator[list[StoredGroup]]]
"""Yields stored and new groups. Raises OvenError if there are none."""


SLIM = 72
"""Columns below which the list of groups is hidden. Its keys still work."""


class CompletionScreen(ModalScreen[None]):
    """Follows the newest group until the user moves to another."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("completions")

    def __init__(self, groups: SampledGroups, source: Source | None) -> None:
        """`source`: reads the groups; None in tests, which fill `groups`."""
        super().__init__()
        self._groups, self._source = groups, source
        self._filter = ""
        self._follows, self._beside = True, False
        self._chosen = 0  # a sequence of the stream
        self._message = "no sample yet: one comes every few steps"

    def on_resize(self) -> None:
        """A narrow terminal has room for one of the two."""
        self.set_class(self.size.width < SLIM, "-slim")

    def compose(self) -> ComposeResult:
        with Container(id="sampled"):
            yield GroupList(id="groups")
            yield GroupPage()
        yield FilterBox("groups", "step:10-90 member:exact prompt:sort word !word", id="sample-filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(GroupPage).focus()
        self.call_after_refresh(self.redraw)
        if self._source is not None:
            self.run_worker(self._read(self._source), exit_on_error=True)

    async def _read(self, source: Source) -> None:
        try:
            async for groups in source():
                self._groups.take(groups)
                self.redraw()
            self._message = "the stack is down; it kept no sample"
        except (OvenError, OSError) as error:
            self._message = str(error)
        self.redraw()

    def redraw(self) -> None:
        rows = self._groups.shown(self._filter)
        if self._follows and rows:
            self._chosen = rows[-1].seq
        cursor = self._cursor(rows)
        message = "nothing matches; escape shows all" if self._filter and self._groups.groups else self._message
        self.query_one(GroupList).show(rows, cursor)
        self.query_one(GroupPage).show(rows[cursor] if rows else None, self._beside, message)

    def _cursor(self, rows: Sequence[StoredGroup]) -> int:
        """Return the position of the chosen group, or of the next one that passes the filter."""
        return next((number for number, stored in enumerate(rows) if stored.seq >= self._chosen), len(rows) - 1)

    def _choose(self, index: int) -> None:
        """Show the group at a position of the list; at the end follow the newest."""
        if rows := self._groups.shown(self._filter):
            index = max(0, min(index, len(rows) - 1))
            self._chosen, self._follows = rows[index].seq, index == len(rows) - 1
            self.redraw()

    def action_step(self, by: int) -> None:
        self._choose(self._cursor(self._groups.shown(self._filter)) + by)

    def action_first(self) -> None:
        self._choose(0)

    def on_group_list_moved(self) -> None:
        self._choose(self.query_one(GroupList).cursor)

    def action_newest(self) -> None:
        self._follows = True
        self.redraw()

    def action_beside(self) -> None:
        self._beside = not self._beside
        self.redraw()

    def action_copy(self) -> None:
        if (stored := self.query_one(GroupList).chosen()) is not None:
            self.app.copy_to_clipboard(stored.model_dump_json())
            self.app.notify(f"step {stored.group.step}: copied as JSON", timeout=3)

    def action_scroll(self, pages: int) -> None:
        shown = self.query_one(GroupPage)
        shown.scroll_relative(y=pages * max(1, shown.size.height - 1), animate=False, force=True)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(("completions",)))

    def action_filter(self) -> None:
        self.query_one(FilterBox).open()

    def action_leave(self) -> None:
        """Clear the filter if there is one, otherwise go back to the run."""
        if not self.query_one(FilterBox).clear():
            self.dismiss()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        self._filter = message.words
        self.redraw()

    def on_filter_box_closed(self) -> None:
        self.query_one(GroupPage).focus()
