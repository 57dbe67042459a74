"""The questions before a command: a choice from a list, the confirmation, and a knob's new value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from oven_core.mesh.actuator_values import number, shares
from oven_core.protocol.messages import Value
from oven_core.terminal_text import clean
from oven_runs.log.run_summary import format_value
from oven_tui.bindings import bindings, key_line
from oven_tui.model.cell_text import fit
from oven_tui.model.choices import Choice
from oven_tui.model.commands import Scope
from oven_tui.model.knob_edit import KnobEdit

AGAIN_S = 0.5
"""Seconds between two updates of the figures, because the run continues meanwhile."""
REASON_LENGTH = 2000
"""Characters of a command's reason."""
BAR = 48
"""Cells of the scale between the bounds."""
Reply = TypeVar("Reply")
Lines = list[tuple[str, str]]
"""Words and style of each line."""


class Question(ModalScreen[Reply], Generic[Reply]):
    """A box over the dashboard with a title and the keys."""

    scope: ClassVar[Scope]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        with Vertical(id="question") as box:
            box.border_title = clean(self._title)
            box.border_subtitle = key_line(self.scope)
            yield from self.parts()

    def parts(self) -> Iterator[Widget]:
        """Yield what is in the box."""
        yield Static(id="figures")

    def on_mount(self) -> None:
        self.tell()
        self.set_interval(AGAIN_S, self.tell)

    def tell(self) -> None:
        for static in self.query("#figures").results(Static):
            static.update(Group(*self.figures()))

    def figures(self) -> list[Text]:
        """Return the present figures."""
        return []


class ChoiceScreen(Question[str | None]):
    """Ends with the chosen id; None if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("choice")
    scope = "choice"

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        super().__init__(title)
        self.choices = choices

    def parts(self) -> Iterator[Widget]:
        width = min(36, max((len(choice.name) for choice in self.choices), default=0))
        for_each = ((clean(choice.name).ljust(width) + "  ", clean(choice.detail)) for choice in self.choices)
        yield OptionList(*(Option(Text.assemble((name, "bold"), (detail, "dim"))) for name, detail in for_each))

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[message.option_index].id)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_choose(self) -> None:
        """Choose the first entry if the list is not drawn yet."""
        options = next(iter(self.query(OptionList)), None)
        self.dismiss(self.choices[(options.highlighted if options is not None else 0) or 0].id)

    def action_leave(self) -> None:
        self.dismiss(None)


class ConfirmScreen(Question[str | None]):
    """Ends with the typed reason, which may be empty; None if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("confirm")
    AUTO_FOCUS = ""
    scope = "confirm"

    def __init__(self, title: str, tells: Callable[[], Lines]) -> None:
        """`tells` returns the consequence and the objections."""
        super().__init__(title)
        self._tells = tells
        self._reason = ""

    def parts(self) -> Iterator[Widget]:
        yield from super().parts()
        yield Input(placeholder="why (it is in the log)", id="reason", max_length=REASON_LENGTH)

    def figures(self) -> list[Text]:
        return _styled(self._tells())

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        self._reason = message.value.strip()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.action_answer(True)

    def action_reason(self) -> None:
        self.query_one("#reason").focus()

    def action_answer(self, yes: bool) -> None:
        if not yes and self.focused is not None:
            self.set_focus(None)
            return
        self.dismiss(self._reason if yes else None)


class KnobScreen(Question[Value | bool]):
    """Ends with the value; False if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("knob")
    scope = "knob"

    def __init__(self, edit: KnobEdit, tells: Callable[[Value], Lines]) -> None:
        """`tells` returns the consequence of a value, and the answers to it."""
        super().__init__(f"set {edit.spec.name}")
        self.edit = edit
        self._tells = tells

    def figures(self) -> list[Text]:
        try:
            value = self.edit.value
        except ValueError as error:
            return [*_scale(self.edit, None), Text(f"\n{clean(str(error))}", style="bold red")]
        return [*_scale(self.edit, value), *_styled(self._tells(value))]

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


def _styled(lines: Lines) -> list[Text]:
    return [Text(clean(words), style=style) for words, style in lines if words]


def _scale(edit: KnobEdit, value: Value) -> list[Text]:
    """Return the present and the new value, and their positions between the bounds."""
    spec = edit.spec
    unit = f" {clean(spec.unit)}" if spec.unit else ""
    if spec.kind == "simplex":
        return _mixture(edit, shares(value))
    shown = edit.typed + "▏" if edit.typed else format_value(value)
    head = Text.assemble(("now  ", "dim"), format_value(edit.before) + unit, ("     new  ", "dim"), (shown, "bold"))
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
    bar = Text.assemble((f"{format_value(spec.low)} ", "dim"), "".join(cells), (f" {format_value(spec.high)}", "dim"))
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
