"""The questions that precede a command: a choice from a list, a confirmation, and a knob's new value."""

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
from oven_tui.key_bindings import bindings, key_line
from oven_tui.model.cell_text import fit
from oven_tui.model.command_choices import Choice
from oven_tui.model.commands import Scope
from oven_tui.model.knob_edit import KnobEdit

UPDATE_S = 0.5  # seconds between updates of the figures, which change because the run continues
REASON_LENGTH = 2000  # maximum characters of a command's reason
SCALE_CELLS = 48  # width of a knob's scale
SHARE_CELLS = 24  # width of the bar for a component of a mixture
Answer = TypeVar("Answer")
StyledLines = list[tuple[str, str]]
"""Text and style of each line."""


class QuestionScreen(ModalScreen[Answer], Generic[Answer]):
    """Base class of the questions: a box over the dashboard with a title and its keys."""

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
        """Yield the widgets in the box."""
        yield Static(id="figures")

    def on_mount(self) -> None:
        self.update_figures()
        self.set_interval(UPDATE_S, self.update_figures)

    def update_figures(self) -> None:
        for static in self.query("#figures").results(Static):
            static.update(Group(*self.figures()))

    def figures(self) -> list[Text]:
        """Return the current figures."""
        return []


class ChoiceScreen(QuestionScreen[str | None]):
    """A choice from a list. Its result is the id of the chosen entry, or None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("choice")
    scope = "choice"

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        super().__init__(title)
        self.choices = choices

    def parts(self) -> Iterator[Widget]:
        width = min(36, max((len(choice.name) for choice in self.choices), default=0))
        labels = ((clean(choice.name).ljust(width) + "  ", clean(choice.detail)) for choice in self.choices)
        yield OptionList(*(Option(Text.assemble((name, "bold"), (detail, "dim"))) for name, detail in labels))

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[message.option_index].id)

    def action_move(self, offset: int) -> None:
        options = self.query_one(OptionList)
        if offset > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_choose(self) -> None:
        """Choose the entry under the cursor, or the first one if the list has not been drawn yet."""
        options = next(iter(self.query(OptionList)), None)
        index = options.highlighted if options is not None else None
        self.dismiss(self.choices[index or 0].id)

    def action_leave(self) -> None:
        self.dismiss(None)


class ConfirmScreen(QuestionScreen[str | None]):
    """The confirmation of a command. Its result is the reason, which may be empty, or None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("confirm")
    AUTO_FOCUS = ""
    scope = "confirm"

    def __init__(self, title: str, get_lines: Callable[[], StyledLines]) -> None:
        """`get_lines` returns the command's consequence and objections to it."""
        super().__init__(title)
        self._get_lines = get_lines
        self._reason = ""

    def parts(self) -> Iterator[Widget]:
        yield from super().parts()
        yield Input(placeholder="reason (will be logged)", id="reason", max_length=REASON_LENGTH)

    def figures(self) -> list[Text]:
        return _style_lines(self._get_lines())

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


class KnobScreen(QuestionScreen[Value | bool]):
    """The question for a knob's new value. Its result is the value, or False if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("knob")
    scope = "knob"

    def __init__(self, edit: KnobEdit, get_lines: Callable[[Value], StyledLines]) -> None:
        """`get_lines` returns the consequence of a value and the mesh's answer."""
        super().__init__(f"set {edit.spec.name}")
        self.edit = edit
        self._get_lines = get_lines

    def figures(self) -> list[Text]:
        try:
            value = self.edit.value
        except ValueError as error:
            return [*_draw_scale(self.edit, None), Text(f"\n{clean(str(error))}", style="bold red")]
        return [*_draw_scale(self.edit, value), *_style_lines(self._get_lines(value))]

    def on_key(self, event: Key) -> None:
        if event.character and self.edit.type_character(event.character):
            event.stop()
            self.update_figures()

    def action_move(self, steps: int) -> None:
        self.edit.move(steps)
        self.update_figures()

    def action_pick(self, offset: int) -> None:
        self.edit.pick(offset)
        self.update_figures()

    def action_erase(self) -> None:
        self.edit.erase()
        self.update_figures()

    def action_answer(self, yes: bool) -> None:
        if not yes:
            self.dismiss(False)
            return
        try:
            self.dismiss(self.edit.value)
        except ValueError:
            self.update_figures()  # shows the error


def _style_lines(lines: StyledLines) -> list[Text]:
    return [Text(clean(words), style=style) for words, style in lines if words]


def _draw_scale(edit: KnobEdit, value: Value) -> list[Text]:
    """Return the current and the new value, and their positions between the bounds."""
    spec = edit.spec
    unit = f" {clean(spec.unit)}" if spec.unit else ""
    if spec.kind == "simplex":
        return _draw_mixture(edit, shares(value))
    new_value = edit.typed_text + "▏" if edit.typed_text else format_value(value)
    head = Text.assemble(("now  ", "dim"), format_value(edit.before) + unit, ("     new  ", "dim"), (new_value, "bold"))
    if spec.kind == "choice":
        names = Text("  ")
        for name in spec.choices:
            names.append(f" {clean(name)} ", style="reverse" if name == value else "")
            names.append(" ")
        return [head, names]
    new_position, old_position = edit.position(number(value)), edit.position(number(edit.before))
    if old_position is None and new_position is None:
        return [head]
    cells = ["─"] * SCALE_CELLS
    if old_position is not None:
        cells[round(old_position * (SCALE_CELLS - 1))] = "○"
    if new_position is not None:
        cells[round(new_position * (SCALE_CELLS - 1))] = "●"
    bar = Text.assemble((f"{format_value(spec.low)} ", "dim"), "".join(cells), (f" {format_value(spec.high)}", "dim"))
    bar.append(f"  {spec.scale}", style="dim")
    return [head, bar]


def _draw_mixture(edit: KnobEdit, value: dict[str, float]) -> list[Text]:
    """Return one row per component. The selected component is marked."""
    before, rows = shares(edit.before), list[Text]()
    for index, name in enumerate(edit.spec.choices):
        is_selected = index == edit.component
        share, old_share = value.get(name), before.get(name)
        typed_text = f"  {edit.typed_text}▏" if is_selected and edit.typed_text else ""
        filled = round((share or 0.0) * SHARE_CELLS)
        row = Text("▸ " if is_selected else "  ", style="bold" if is_selected else "")
        row.append(fit(clean(name), 18) + " ")
        row.append("━" * filled, style="bold").append("─" * (SHARE_CELLS - filled), style="dim")
        row.append(f" {share:.3f}" if share is not None else "     –", style="bold" if is_selected else "")
        row.append(f"  was {old_share:.3f}" if old_share is not None else "", style="dim").append(typed_text)
        rows.append(row)
    return rows
