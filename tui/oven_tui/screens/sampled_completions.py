"""The page of sampled completions: a list of sampled groups, and the selected group in full."""

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
from oven_tui.key_bindings import bindings
from oven_tui.model.sampled_groups import SampledGroups
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.group_page import GroupList, GroupPage

GroupSource: TypeAlias = Callable[[], AsyncIterator[list[StoredGroup]]]
"""Yields stored and new groups. Raises OvenError if there are none."""
MIN_LIST_COLUMNS = 72
"""Minimum columns for the list of groups. In narrower terminals it is hidden, but its keys still work."""


class CompletionScreen(ModalScreen[None]):
    """The page of sampled completions. It follows the newest group until the user selects another."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("completions")

    def __init__(self, groups: SampledGroups, source: GroupSource | None) -> None:
        """`source` reads the groups. It is None in tests, which fill `groups`."""
        super().__init__()
        self._groups, self._source = groups, source
        self._filter = ""
        self._follows_newest, self._side_by_side = True, False
        self._selected_seq = 0  # sequence number of the selected group
        self._message = "no sample yet; there is one every few steps"

    def on_resize(self) -> None:
        """Hide the list in a narrow terminal."""
        self.set_class(self.size.width < MIN_LIST_COLUMNS, "-slim")

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
            self.run_worker(self._read_groups(self._source), exit_on_error=True)

    async def _read_groups(self, source: GroupSource) -> None:
        try:
            async for groups in source():
                self._groups.add(groups)
                self.redraw()
            self._message = "the stack is down, and it stored no samples"
        except (OvenError, OSError) as error:
            self._message = str(error)
        self.redraw()

    def redraw(self) -> None:
        rows = self._groups.matching(self._filter)
        if self._follows_newest and rows:
            self._selected_seq = rows[-1].seq
        cursor = self._cursor_position(rows)
        message = "nothing matches; press escape to show all" if self._filter and self._groups.groups else self._message
        self.query_one(GroupList).show(rows, cursor)
        self.query_one(GroupPage).show(rows[cursor] if rows else None, self._side_by_side, message)

    def _cursor_position(self, rows: Sequence[StoredGroup]) -> int:
        """Return the position of the selected group, or of the next group that passes the filter."""
        return next((number for number, stored in enumerate(rows) if stored.seq >= self._selected_seq), len(rows) - 1)

    def _select(self, index: int) -> None:
        """Show the group at a position of the list. At the end of the list, follow the newest group."""
        if rows := self._groups.matching(self._filter):
            index = max(0, min(index, len(rows) - 1))
            self._selected_seq, self._follows_newest = rows[index].seq, index == len(rows) - 1
            self.redraw()

    def action_step(self, offset: int) -> None:
        self._select(self._cursor_position(self._groups.matching(self._filter)) + offset)

    def action_first(self) -> None:
        self._select(0)

    def on_group_list_moved(self) -> None:
        self._select(self.query_one(GroupList).cursor)

    def action_newest(self) -> None:
        self._follows_newest = True
        self.redraw()

    def action_side_by_side(self) -> None:
        self._side_by_side = not self._side_by_side
        self.redraw()

    def action_copy(self) -> None:
        if (stored := self.query_one(GroupList).selected()) is not None:
            self.app.copy_to_clipboard(stored.model_dump_json())
            self.app.notify(f"copied step {stored.group.step} as JSON", timeout=3)

    def action_scroll(self, pages: int) -> None:
        page = self.query_one(GroupPage)
        page.scroll_relative(y=pages * max(1, page.size.height - 1), animate=False, force=True)

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
