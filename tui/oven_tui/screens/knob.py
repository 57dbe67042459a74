"""A knob's new value, typed or moved on its own scale, with the answers of the mesh and its guardrails."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from oven_core.mesh.actuator_values import number, shares
from oven_core.protocol.messages import Value
from oven_core.terminal_text import clean
from oven_runs.log.run_summary import text
from oven_tui.bindings import bindings, key_line
from oven_tui.model.cell_text import fit
from oven_tui.model.knob_edit import KnobEdit

AGAIN_S = 0.5
"""Seconds between two updates of the answers, because the run continues meanwhile."""
BAR = 48
"""Cells of the scale between the bounds."""


class KnobScreen(ModalScreen[Value | bool]):
    """Ends with the value; False if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("knob")

    def __init__(self, edit: KnobEdit, tells: Callable[[Value], list[tuple[str, str]]]) -> None:
        """`tells` returns (words, style) of each line for a value: the consequence, and the answers to it."""
        super().__init__()
        self.edit = edit
        self._tells = tells

    def compose(self) -> ComposeResult:
        with Vertical(id="question") as box:
            box.border_title = clean(f"set {self.edit.spec.name}")
            box.border_subtitle = key_line("knob")
            yield Static(id="knob")

    def on_mount(self) -> None:
        self.tell()
        self.set_interval(AGAIN_S, self.tell)

    def tell(self) -> None:
        """Show the value and the present answers."""
        edit = self.edit
        lines: list[Text]
        try:
            value = edit.value
        except ValueError as error:
            lines = [*_scale(edit, None), Text(f"\n{clean(str(error))}", style="bold red")]
        else:
            lines = _scale(edit, value)
            lines += [Text(clean(words), style=style) for words, style in self._tells(value) if words]
        self.query_one("#knob", Static).update(Group(*lines))

    def on_key(self, event: Key) -> None:
        if event.character and self.edit.type(event.character):
            event.stop()
            self.tell()

    def action_move(self, steps: int) -> None:
        self.edit.move(steps)
        self.tell()

    def action_pick(self, by: int) -> None:
        self.edit.pick(by)
        self.tell()

    def action_rub_out(self) -> None:
        self.edit.rub_out()
        self.tell()

    def action_answer(self, yes: bool) -> None:
        if not yes:
            self.dismiss(False)
            return
        try:
            self.dismiss(self.edit.value)
        except ValueError:
            self.tell()  # it says what is wrong with it


def _scale(edit: KnobEdit, value: Value) -> list[Text]:
    """Return the present and the new value, and their positions between the bounds."""
    spec = edit.spec
    unit = f" {clean(spec.unit)}" if spec.unit else ""
    if spec.kind == "simplex":
        return _mixture(edit, shares(value))
    shown = edit.typed + "▏" if edit.typed else text(value)
    head = Text.assemble(("now  ", "dim"), text(edit.before) + unit, ("     new  ", "dim"), (shown, "bold"))
    if spec.kind == "choice":
        names = Text("  ")
        for name in spec.choices:
            names.append(f" {clean(name)} ", style="reverse" if name == value else "")
            names.append(" ")
        return [head, names]
    here, was = edit.position(number(value)), edit.position(number(edit.before))
    if was is None and here is None:
        return [head]
    cells = ["─"] * BAR
    if was is not None:
        cells[round(was * (BAR - 1))] = "○"
    if here is not None:
        cells[round(here * (BAR - 1))] = "●"
    bar = Text.assemble((f"{text(spec.low)} ", "dim"), "".join(cells), (f" {text(spec.high)}", "dim"))
    bar.append(f"  {spec.scale}", style="dim")
    return [head, bar]


def _mixture(edit: KnobEdit, value: dict[str, float]) -> list[Text]:
    """Return a row per component, the chosen one marked."""
    before, made = shares(edit.before), list[Text]()
    for index, name in enumerate(edit.spec.choices):
        picked = index == edit.component
        share, was = value.get(name), before.get(name)
        typed = f"  {edit.typed}▏" if picked and edit.typed else ""
        filled = round((share or 0.0) * 24)
        row = Text("▸ " if picked else "  ", style="bold" if picked else "")
        row.append(fit(clean(name), 18) + " ")
        row.append("━" * filled, style="bold").append("─" * (24 - filled), style="dim")
        row.append(f" {share:.3f}" if share is not None else "     –", style="bold" if picked else "")
        row.append(f"  was {was:.3f}" if was is not None else "", style="dim").append(typed)
        made.append(row)
    return made
