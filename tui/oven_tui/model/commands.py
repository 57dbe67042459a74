"""The table of the monitor's commands. Bindings, footer, help and command palette come from it.

To add a command, add a row here and a method `action_…` to the class of its scope. A class gets its rows with `BINDINGS
= bindings("…")` (oven_tui.bindings).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from oven_core.protocol.operator_actions import ACTIONS

Scope = Literal[
    "monitor", "decisions", "paper", "help", "confirm", "choice", "knob", "completions", "console", "console_page",
    "runs", "overlay", "player",
]  # fmt: skip
"""Where a command works: everywhere in the monitor (the application); in the list of decisions; on a page over the
dashboard: one to read (`paper`), the help, a question, a list to choose from, a knob's value; on the page of sampled
completions; in the console's lines or on its page; in the list of runs; in an overlay; or in the player, in addition to
the monitor's commands and before them if both have a key."""
Group = Literal[
    "Window", "Charts", "Decisions", "Completions", "Console", "Acting on the run", "Runs", "Overlay", "Playing"
]  # fmt: skip
"""Headings of the help, in order. A command that acts on the run needs `--control` and a key that may act."""


@dataclass(frozen=True, slots=True)
class Command:
    scope: Scope
    group: Group
    keys: str
    """Textual's names of keys, separated by commas. Any of them runs the command."""
    action: str
    """Textual's action with its arguments: `zoom(1)` calls `action_zoom(1)`."""
    help: str
    """A line for the help and the palette."""
    footer: str = ""
    """The command's word in the footer; empty if it is not in the footer."""
    title: str = ""
    """The command's name in the palette; empty if it is not in the palette. Commands that move a cursor are not,
    because their keys are quicker. Only the dashboard, its list of decisions and the player have a palette."""

    @property
    def id(self) -> str:
        return f"{self.scope}.{self.action}"

    @property
    def acts(self) -> bool:
        return self.group == "Acting on the run"

    def key_names(self) -> tuple[str, ...]:
        return tuple(self.keys.split(","))


def _rows(scope: Scope, group: Group, *rows: tuple[str, ...]) -> Iterator[Command]:
    """Return commands from rows of keys, action, help, footer and title."""
    return (Command(scope, group, *row) for row in rows)


def _operator_action(name: str, keys: str, method: str, footer: str = "") -> Command:
    """Return the command for an action of oven_core.protocol.operator_actions."""
    action = ACTIONS[name]
    return Command("monitor", "Acting on the run", keys, method, action.summary, footer, action.title)


def _moves(scope: Scope, group: Group, row: str, first: str) -> Iterator[Command]:
    """Return the keys that move through a list."""
    return _rows(
        scope,
        group,
        ("up,k", "move(-1)", f"The {row} before"),
        ("down,j", "move(1)", f"The next {row}"),
        ("pageup,ctrl+b", "page(-1)", "A screenful back"),
        ("pagedown,ctrl+f", "page(1)", "A screenful on"),
        ("home,g", "first", first),
    )


THEMES: Final = "Dark, light, or colours for the colour-blind on either"
COMMANDS: Final = (
    _operator_action("approve", "a", "approve", "Approve"),
    _operator_action("veto", "v", "veto", "Veto"),
    _operator_action("set", "e", "set_knob", "Set"),
    *_rows("monitor", "Acting on the run",
        ("p", "hold_or_resume", "Hold training after this step, or resume it", "Hold", "Hold or resume training"),
        ("w", "checkpoint", "Write a checkpoint after this step", "", "Write a checkpoint"),
        ("b", "rollback", "Roll back to a snapshot, from a list", "", "Roll back"),
        ("B", "undo_rollback", "Forward again to what the last rollback left", "", "Take the rollback back"),
        ("x", "mute", "Its votes are logged and do not count, or count again", "", "Mute or unmute an agent"),
    ),
    _operator_action("trust", "t", "trust(True)"),
    _operator_action("distrust", "T", "trust(False)"),
    _operator_action("autonomy", "o", "autonomy"),
    _operator_action("stop", "X", "stop"),
    *_rows("monitor", "Window",
        ("q", "quit", "Close the monitor; the run continues", "Close", "Close the monitor"),
        ("question_mark", "help", "This help", "Help", "Help"),
        ("colon,ctrl+p", "command_palette", "Any command by its name", "Palette"),
        ("space", "freeze", "Freeze what is shown; data keeps arriving", "Freeze", "Freeze or thaw"),
        ("ctrl+t", "theme", THEMES, "", "Next theme"),
        ("s", "save", "Save a picture (SVG) into the run's folder", "", "Save a picture"),
        ("l", "console", "What the run's processes wrote into their logs", "", "Console"),
        ("R", "runs", "The list of runs", "", "All runs"),
    ),
    *_rows("monitor", "Charts",
        ("m", "metrics(1)", "The next four metrics", "Metrics", "Next metrics"),
        ("M", "metrics(-1)", "The four metrics before", "", "Metrics before"),
        ("f", "filter_metrics", "Charts: only metrics whose names match; escape shows all", "", "Filter metrics"),
        ("L", "log_scale", "Charts: logarithmic scale, or linear again", "", "Logarithmic scale"),
        ("plus,equals_sign", "zoom(1)", "Charts: fewer, newer ticks", "", "Zoom in"),
        ("minus", "zoom(-1)", "Charts: more ticks", "", "Zoom out"),
    ),
    *_rows("monitor", "Decisions",
        ("end,G", "tail", "Thaw, and follow the newest decision again", "", "Follow the newest"),
        ("slash", "filter", "Filter the decisions", "Filter", "Filter decisions"),
        ("escape", "unfilter", "Clear the filter", "", "Clear the filter"),
    ),
    *_rows("decisions", "Decisions",
        ("enter", "open", "Votes, tally, reason, evidence and receipt", "Ballot", "Open the ballot"),
        ("y", "copy", "Copy the row as JSON (the terminal's clipboard, by OSC 52)", "Copy", "Copy as JSON"),
        ("ctrl+u", "half(-1)", "Half a screenful back"),
        ("ctrl+d", "half(1)", "Half a screenful on"),
    ),
    *_moves("decisions", "Decisions", "decision", "The first decision"),
    *_rows("monitor", "Completions",
        ("c", "completions", "Sampled prompts and completions with their scores", "Completions", "Completions"),
    ),
    *_rows("completions", "Completions",
        ("up,k,p", "step(-1)", "The sampled group before", "Before"),
        ("down,j,n", "step(1)", "The next sampled group", "Next"),
        ("pageup,ctrl+u", "scroll(-1)", "A screenful back"),
        ("pagedown,ctrl+d", "scroll(1)", "A screenful on"),
        ("home,g", "first", "The oldest group that is kept"),
        ("end,G", "newest", "Follow the newest group again"),
        ("b", "beside", "Completions side by side, or one below another", "Beside"),
        ("slash", "filter", "Filter the groups: step:N-M member:NAME prompt:WORD, words, !word", "Filter"),
        ("y", "copy", "Copy the group as JSON (the terminal's clipboard, by OSC 52)", "Copy"),
        ("question_mark", "help", "This help", "Help"),
        ("escape,q,c", "leave", "Clear the filter, or back to the run", "Back"),
    ),
    *_rows("console_page", "Console",
        ("slash", "filter", "Filter the lines", "Filter"),
        ("right_square_bracket,tab", "process(1)", "The next process's log, or all of them", "Process"),
        ("left_square_bracket,shift+tab", "process(-1)", "The process before"),
        ("escape,l,q", "back", "Show all lines again, then back to the run", "Back"),
        ("question_mark", "help", "This help", "Help"),
    ),
    *_moves("console", "Console", "line", "The first line"),
    *_rows("console", "Console",
        ("end,G", "last", "Follow what is written"),
        ("right,L", "aside(1)", "Long lines: further right"),
        ("left,h,H", "aside(-1)", "Long lines: back"),
    ),
    *_rows("runs", "Runs",
        ("enter", "open", "Open the run; where runs are marked, overlay them", "Open"),
        ("space", "mark", "Mark the run for an overlay: two to four", "Mark"),
        ("p", "play", "Play the run from its log", "Play"),
        ("slash", "app.filter", "Filter the runs", "Filter"),
        ("escape", "app.unfilter", "Clear the filter, then the marks"),
    ),
    *_moves("runs", "Runs", "run", "The newest run"),
    *_rows("runs", "Runs",
        ("end,G", "last", "The oldest run"),
        ("ctrl+t", "app.theme", THEMES),
        ("question_mark", "app.help", "This help", "Help"),
        ("q", "app.quit", "Close the list; no run is touched", "Close"),
    ),
    *_rows("overlay", "Overlay",
        ("x", "axis", "The x-axis: steps, or ticks", "Axis"),
        ("m", "metrics(1)", "The next metrics", "Metrics"),
        ("M", "metrics(-1)", "The metrics before"),
        ("plus,equals_sign", "zoom(1)", "Fewer, newer steps"),
        ("minus", "zoom(-1)", "More steps"),
        ("s", "save", "Save a picture (SVG) into the first run's folder", "SVG"),
        ("ctrl+t", "theme", THEMES),
        ("question_mark", "help", "This help", "Help"),
        ("q,escape", "quit", "Close the overlay; the runs continue", "Close"),
    ),
    *_rows("player", "Playing",
        ("space", "pause", "Play, or pause", "Play/pause", "Play or pause"),
        ("greater_than_sign,full_stop", "speed(1)", "Twice as fast", "Faster", "Faster"),
        ("less_than_sign,comma", "speed(-1)", "Half as fast", "", "Slower"),
        ("right", "step(1)", "On to the next step", "", "Next step"),
        ("left", "step(-1)", "Back to the step before", "", "Step before"),
        ("n", "decision(1)", "On to the next decision", "Decision", "Next decision"),
        ("N", "decision(-1)", "Back to the decision before", "", "Decision before"),
        ("right_square_bracket", "tenth(1)", "A tenth of the run on", "", "A tenth on"),
        ("left_square_bracket", "tenth(-1)", "A tenth of the run back", "", "A tenth back"),
        ("t", "seek", "Go to a step, by its number", "", "Go to a step"),
        ("0", "start", "To the run's start", "", "To the start"),
        ("end,dollar_sign", "end", "To the end of the log", "", "To the end"),
    ),
    *_rows("paper", "Window",
        ("escape,enter,q", "dismiss", "Back to the run", "back"),
        ("j", "move(1)", "A line on"),
        ("k", "move(-1)", "A line back"),
    ),
    *_rows("help", "Window", ("question_mark", "dismiss", "Back to the run")),
    *_rows("confirm", "Window",
        ("enter,y", "answer(True)", "Give the command", "do it"),
        ("escape,n,q", "answer(False)", "Leave it", "leave it"),
        ("tab,r", "reason", "Say why; it is in the log", "say why"),
    ),
    *_rows("choice", "Window",
        ("enter", "choose", "This one", "choose"),
        ("escape,q", "leave", "Back to the run", "back"),
        ("j", "move(1)", "The next one", "down"),
        ("k", "move(-1)", "The one before", "up"),
    ),
    *_rows("knob", "Window",
        ("enter", "answer(True)", "Give the command", "set it"),
        ("escape,q", "answer(False)", "Leave it", "leave it"),
        ("left,h", "move(-1)", "A step down on its scale", "less"),
        ("right,l", "move(1)", "A step up on its scale", "more"),
        ("shift+left,H", "move(-5)", "Five steps down"),
        ("shift+right,L", "move(5)", "Five steps up"),
        ("down,j", "pick(1)", "The next component of a mixture"),
        ("up,k", "pick(-1)", "The component before"),
        ("backspace", "rub_out", "Rub out what was typed"),
    ),
)  # fmt: skip
"""A key has one meaning in a scope. A page over the dashboard hides the keys below it."""

BY_ID: Final = {command.id: command for command in COMMANDS}
GROUPS: Final[tuple[Group, ...]] = get_args(Group)


def commands_in(scope: Scope) -> tuple[Command, ...]:
    return tuple(command for command in COMMANDS if command.scope == scope)
