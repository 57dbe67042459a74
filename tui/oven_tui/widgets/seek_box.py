"""An input line for a step to go to, opened over the footer."""

from __future__ import annotations

from textual.message import Message
from textual.widgets import Input

from oven_tui.widgets.filter_box import FilterBox


class SeekBox(FilterBox):
    """Posts `Submitted` when a number was entered."""

    class Submitted(Message):
        """The user wants to go to a step."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self) -> None:
        super().__init__("go to step", "a number", id="seek")

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        if message.value.strip().isdigit():
            self.post_message(self.Submitted(int(message.value)))
        self.clear()
