"""An input line for a filter, which opens over the footer."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class FilterBox(Horizontal):
    """An input line for a filter. It posts `Changed` on every change, and `Closed` when the user closes it."""

    class Changed(Message):
        def __init__(self, box: FilterBox, words: str) -> None:
            super().__init__()
            self.box, self.words = box, words

    class Submitted(Changed):
        """The user pressed Enter."""

    class Closed(Message):
        """The user closed the filter."""

    def __init__(self, subject: str, example: str, *, id: str, stays: bool = False) -> None:
        """`stays` keeps the box visible while it filters, for screens that show the filter nowhere else."""
        super().__init__(id=id, classes="filter")
        self._subject, self._stays = subject, stays
        self._input = Input(placeholder=example, select_on_focus=False, compact=True)

    def compose(self) -> ComposeResult:
        yield Static(f"{self._subject}: ", markup=False)
        yield self._input
        yield Static(" enter: ok  esc: clear", markup=False)

    def open(self) -> None:
        self.add_class("-open")
        self._input.focus()

    def clear(self) -> bool:
        """Clear the filter and close it. Return whether there was anything to clear."""
        was_active = bool(self._input.value.strip()) or self.has_class("-open")
        self._input.value = ""
        self._close()
        return was_active

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        self.post_message(self.Changed(self, message.value.strip()))

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.post_message(self.Submitted(self, message.value.strip()))
        self._close()

    def _close(self) -> None:
        if self.has_class("-open"):
            self.set_class(self._stays and bool(self._input.value.strip()), "-open")
            self.post_message(self.Closed())
