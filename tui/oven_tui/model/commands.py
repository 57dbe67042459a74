"""The table of the monitor's commands, from which its bindings, footer, help and command palette are made.

A new command is a row here and an `action_…` on the class that its scope names. A class takes its rows with
`BINDINGS = bindings("…")` (oven_tui.bindings).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Scope = Literal["monitor", "decisions", "paper", "help", "completions"]
"""Where a command is heard: everywhere in the monitor (the application), in the list of decisions, on a page over the
dashboard that only reads (`paper`), on the help, or on the pane of sampled completions."""
Group = Literal["Window", "Charts", "Decisions", "Completions", "Acting on the run"]
"""Headings of the help, in their order."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the monitor."""

    id: str
    scope: Scope
    keys: str
    """Textual's names of keys, separated by commas: any of them gives the command."""
    action: str
    """Textual's action, with its arguments: `zoom(1)` calls `action_zoom(1)`."""
    words: str
    """What the command palette calls it, and finds it by."""
    help: str
    """A line for the help and the palette."""
    group: Group = "Window"
    footer: str = ""
    """Its word in the footer; empty: it is not there."""
    acts: bool = False
    """Whether it acts on the run: it then needs `--control` and a key that may act."""
    listed: bool = True
    """Whether the palette has it; moving a cursor is quicker by its key."""

    def __post_init__(self) -> None:
        """Raises ValueError for a row from which no binding would follow."""
        if not (self.id and self.keys and self.action and self.words and self.help):
            raise ValueError(f"the command {self.id!r} lacks a key, an action, its words or its line of help")

    def key_names(self) -> tuple[str, ...]:
        """Its keys, one by one."""
        return tuple(key.strip() for key in self.keys.split(","))


COMMANDS: Final = (
    Command(
        "quit", "monitor", "q", "quit", "Close the monitor", "Close the monitor; the run continues", footer="Close"
    ),
    Command("help", "monitor", "question_mark", "help", "Help", "This help", footer="Help"),
    Command(
        "palette", "monitor", "colon,ctrl+p", "command_palette", "Command palette", "Any command by its name",
        footer="Commands", listed=False,
    ),
    Command(
        "freeze", "monitor", "space", "freeze", "Freeze or thaw", "Freeze what is shown; data keeps arriving",
        footer="Freeze",
    ),
    Command(
        "theme", "monitor", "ctrl+t", "theme", "Next theme", "Dark, light, or colours for the colour-blind on either"
    ),
    Command(
        "save", "monitor", "s", "save", "Save a picture", "Save a picture (SVG) into the run's folder", footer="SVG"
    ),
    Command("metrics", "monitor", "m", "metrics(1)", "Next metrics", "The next four metrics", "Charts", "Metrics"),
    Command("metrics.back", "monitor", "M", "metrics(-1)", "Metrics before", "The four metrics before", "Charts"),
    Command(
        "metrics.filter", "monitor", "f", "filter_metrics", "Filter metrics",
        "Charts: only metrics whose names match; escape shows all", "Charts",
    ),
    Command(
        "log_scale", "monitor", "L", "log_scale", "Logarithmic scale", "Charts: logarithmic scale, or linear again",
        "Charts",
    ),
    Command("zoom.in", "monitor", "plus,equals_sign", "zoom(1)", "Zoom in", "Charts: fewer, newer ticks", "Charts"),
    Command("zoom.out", "monitor", "minus", "zoom(-1)", "Zoom out", "Charts: more ticks", "Charts"),
    Command(
        "tail", "monitor", "end,G", "tail", "Follow the newest", "Thaw, and follow the newest decision again",
        "Decisions",
    ),
    Command("filter", "monitor", "slash", "filter", "Filter decisions", "Filter the decisions", "Decisions", "Filter"),
    Command("unfilter", "monitor", "escape", "unfilter", "Clear the filter", "Clear the filter", "Decisions"),
    Command(
        "decisions.open", "decisions", "enter", "open", "Open the ballot",
        "Votes, tally, reason, evidence and receipt", "Decisions", "Ballot",
    ),
    Command(
        "decisions.copy", "decisions", "y", "copy", "Copy the row as JSON",
        "Copy the chosen row as JSON (the terminal's clipboard, by OSC 52)", "Decisions", "Copy",
    ),
    Command("decisions.up", "decisions", "up,k", "move(-1)", "Up", "The decision before", "Decisions", listed=False),
    Command("decisions.down", "decisions", "down,j", "move(1)", "Down", "The next decision", "Decisions", listed=False),
    Command(
        "decisions.half_up", "decisions", "ctrl+u", "half(-1)", "Half a page up", "Half a screenful back", "Decisions",
        listed=False,
    ),
    Command(
        "decisions.half_down", "decisions", "ctrl+d", "half(1)", "Half a page down", "Half a screenful on",
        "Decisions", listed=False,
    ),
    Command(
        "decisions.page_up", "decisions", "pageup,ctrl+b", "page(-1)", "Page up", "A screenful back", "Decisions",
        listed=False,
    ),
    Command(
        "decisions.page_down", "decisions", "pagedown,ctrl+f", "page(1)", "Page down", "A screenful on", "Decisions",
        listed=False,
    ),
    Command(
        "decisions.first", "decisions", "home,g", "first", "First decision", "The first decision", "Decisions",
        listed=False,
    ),
    Command(
        "completions", "monitor", "c", "completions", "Completions",
        "Sampled prompts and completions with their scores", "Completions", "Completions",
    ),
    Command(
        "completions.before", "completions", "up,k,p", "step(-1)", "Group before", "The sampled group before",
        "Completions", "Before",
    ),
    Command(
        "completions.next", "completions", "down,j,n", "step(1)", "Next group", "The next sampled group",
        "Completions", "Next",
    ),
    Command(
        "completions.page_up", "completions", "pageup,ctrl+u", "scroll(-1)", "Page up", "A screenful back",
        "Completions", listed=False,
    ),
    Command(
        "completions.page_down", "completions", "pagedown,ctrl+d", "scroll(1)", "Page down",
        "A screenful on", "Completions", listed=False,
    ),
    Command(
        "completions.first", "completions", "home,g", "first", "First group", "The oldest group that is kept",
        "Completions", listed=False,
    ),
    Command(
        "completions.newest", "completions", "end,G", "newest", "Newest group", "Follow the newest group again",
        "Completions",
    ),
    Command(
        "completions.beside", "completions", "b", "beside", "Side by side or below",
        "Completions side by side, or one below another", "Completions", "Beside",
    ),
    Command(
        "completions.filter", "completions", "slash", "filter", "Filter groups",
        "Filter the groups: step:N-M member:NAME prompt:WORD, words, !word", "Completions", "Filter",
    ),
    Command(
        "completions.copy", "completions", "y", "copy", "Copy the group as JSON",
        "Copy the group as JSON (the terminal's clipboard, by OSC 52)", "Completions", "Copy",
    ),
    Command(
        "completions.back", "completions", "escape,q,c", "leave", "Back", "Clear the filter, or back to the run",
        "Completions", "Back",
    ),
    Command("paper.back", "paper", "escape,enter,q", "dismiss", "Back", "Back to the run", footer="Back"),
    Command("help.back", "help", "escape,question_mark,q", "dismiss", "Back", "Back to the run", footer="Back"),
)  # fmt: skip
"""A key has one meaning in a scope; a page over the dashboard hides the keys of what lies under it."""

BY_ID: Final = {command.id: command for command in COMMANDS}
GROUPS: Final[tuple[Group, ...]] = get_args(Group)


def of(scope: Scope) -> tuple[Command, ...]:
    """A scope's commands, in the table's order."""
    return tuple(command for command in COMMANDS if command.scope == scope)
