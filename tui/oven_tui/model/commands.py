"""The table of the monitor's commands. The key bindings, footer, help and command palette are generated from it.

To add a command, add a row here and a method `action_…` to the class of its scope. A class declares its scope with
`BINDINGS = bindings("…")` (oven_tui.key_bindings).
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
"""Where a command works. `monitor` commands work everywhere in the monitor. `paper` is a page of text over the
dashboard. `confirm`, `choice` and `knob` are dialogs. `console` is the list of lines on the page `console_page`. The
player also has the monitor's commands, but its own take precedence."""
Group = Literal[
    "Window", "Charts", "Decisions", "Completions", "Console", "Acting on the run", "Runs", "Overlay", "Playing"
]  # fmt: skip
"""The help's sections, in order. Commands in "Acting on the run" need `--control` and a key with that permission."""


@dataclass(frozen=True, slots=True)
class Command:
    scope: Scope
    group: Group
    keys: str
    """Textual's names of the keys that run the command, separated by commas."""
    action: str
    """Textual's action with its arguments. For example, `zoom(1)` calls `action_zoom(1)`."""
    help: str
    """One line for the help and the palette."""
    footer: str = ""
    """Label in the footer, or an empty string if the command is not in the footer."""
    title: str = ""
    """Name in the palette, or an empty string if the command is not in the palette. Commands that move a cursor are not
    in it. Only the dashboard, its list of decisions and the player have a palette."""

    @property
    def id(self) -> str:
        return f"{self.scope}.{self.action}"

    @property
    def acts_on_run(self) -> bool:
        return self.group == "Acting on the run"

    def key_names(self) -> tuple[str, ...]:
        return tuple(self.keys.split(","))


def _rows(scope: Scope, group: Group, *rows: tuple[str, ...]) -> Iterator[Command]:
    """Create commands from rows of keys, action, help, footer and title."""
    return (Command(scope, group, *row) for row in rows)


def _operator_action(name: str, keys: str, method: str, footer: str = "") -> Command:
    """Create the command for an action of oven_core.protocol.operator_actions."""
    action = ACTIONS[name]
    return Command("monitor", "Acting on the run", keys, method, action.summary, footer, action.title)


def _cursor_commands(scope: Scope, group: Group, row: str, first: str) -> Iterator[Command]:
    """Create the commands that move the cursor in a list."""
    return _rows(
        scope,
        group,
        ("up,k", "move(-1)", f"Previous {row}"),
        ("down,j", "move(1)", f"Next {row}"),
        ("pageup,ctrl+b", "page(-1)", "One screen up"),
        ("pagedown,ctrl+f", "page(1)", "One screen down"),
        ("home,g", "first", first),
    )


THEMES: Final = "Next theme: dark or light, each also with colours for the colour-blind"
COMMANDS: Final = (
    _operator_action("approve", "a", "approve", "Approve"),
    _operator_action("veto", "v", "veto", "Veto"),
    _operator_action("set", "e", "set_knob", "Set"),
    *_rows("monitor", "Acting on the run",
        ("p", "hold_or_resume", "Hold training after this step, or resume it", "Hold", "Hold or resume training"),
        ("w", "checkpoint", "Take a checkpoint after this step", "", "Take a checkpoint"),
        ("b", "rollback", "Roll back to a snapshot, from a list", "", "Roll back"),
        ("B", "undo_rollback", "Undo the last rollback", "", "Undo the rollback"),
        ("x", "mute", "Mute an agent, so that its votes are only logged, or unmute it", "", "Mute or unmute an agent"),
    ),
    _operator_action("trust", "t", "trust(True)"),
    _operator_action("distrust", "T", "trust(False)"),
    _operator_action("autonomy", "o", "autonomy"),
    _operator_action("stop", "X", "stop"),
    *_rows("monitor", "Window",
        ("q", "quit", "Close the monitor; the run continues", "Close", "Close the monitor"),
        ("question_mark", "help", "Show this help", "Help", "Help"),
        ("colon,ctrl+p", "command_palette", "Run a command by its name", "Palette"),
        ("space", "freeze", "Freeze or unfreeze the display; data keeps arriving", "Freeze", "Freeze or unfreeze"),
        ("ctrl+t", "theme", THEMES, "", "Next theme"),
        ("s", "save", "Save a screenshot (SVG) in the run's folder", "", "Save a screenshot"),
        ("l", "console", "Show the logs of the run's processes", "", "Console"),
        ("R", "runs", "Show the list of runs", "", "All runs"),
    ),
    *_rows("monitor", "Charts",
        ("m", "metrics(1)", "Next four metrics", "Metrics", "Next metrics"),
        ("M", "metrics(-1)", "Previous four metrics", "", "Previous metrics"),
        ("f", "filter_metrics", "Show only metrics with matching names", "", "Filter metrics"),
        ("L", "log_scale", "Switch between logarithmic and linear scale", "", "Logarithmic scale"),
        ("plus,equals_sign", "zoom(1)", "Show fewer, newer ticks", "", "Zoom in"),
        ("minus", "zoom(-1)", "Show more ticks", "", "Zoom out"),
    ),
    *_rows("monitor", "Decisions",
        ("end,G", "tail", "Unfreeze, and follow the newest decision", "", "Follow the newest"),
        ("slash", "filter", "Filter the decisions", "Filter", "Filter decisions"),
        ("escape", "unfilter", "Clear the filter", "", "Clear the filter"),
    ),
    *_rows("decisions", "Decisions",
        ("enter", "open", "Show votes, tally, reason, evidence and receipt", "Ballot", "Open the ballot"),
        ("y", "copy", "Copy the row as JSON to the terminal's clipboard (OSC 52)", "Copy", "Copy as JSON"),
        ("ctrl+u", "half(-1)", "Half a screen up"),
        ("ctrl+d", "half(1)", "Half a screen down"),
    ),
    *_cursor_commands("decisions", "Decisions", "decision", "First decision"),
    *_rows("monitor", "Completions",
        ("c", "completions", "Show sampled prompts and completions with their scores", "Completions", "Completions"),
    ),
    *_rows("completions", "Completions",
        ("up,k,p", "step(-1)", "Previous sampled group", "Previous"),
        ("down,j,n", "step(1)", "Next sampled group", "Next"),
        ("pageup,ctrl+u", "scroll(-1)", "One screen up"),
        ("pagedown,ctrl+d", "scroll(1)", "One screen down"),
        ("home,g", "first", "Oldest group in memory"),
        ("end,G", "newest", "Follow the newest group"),
        ("b", "side_by_side", "Show completions side by side, or one below another", "Columns"),
        ("slash", "filter", "Filter the groups: step:N-M member:NAME prompt:WORD, words, !word", "Filter"),
        ("y", "copy", "Copy the group as JSON to the terminal's clipboard (OSC 52)", "Copy"),
        ("question_mark", "help", "Show this help", "Help"),
        ("escape,q,c", "leave", "Clear the filter, or go back to the run", "Back"),
    ),
    *_rows("console_page", "Console",
        ("slash", "filter", "Filter the lines", "Filter"),
        ("right_square_bracket,tab", "process(1)", "Log of the next process, or of all", "Process"),
        ("left_square_bracket,shift+tab", "process(-1)", "Log of the previous process"),
        ("escape,l,q", "back", "Clear the filter, or go back to the run", "Back"),
        ("question_mark", "help", "Show this help", "Help"),
    ),
    *_cursor_commands("console", "Console", "line", "First line"),
    *_rows("console", "Console",
        ("end,G", "last", "Follow the newest lines"),
        ("right,L", "sideways(1)", "Scroll long lines to the right"),
        ("left,h,H", "sideways(-1)", "Scroll long lines to the left"),
    ),
    *_rows("runs", "Runs",
        ("enter", "open", "Open the run, or overlay the marked runs", "Open"),
        ("space", "mark", "Mark two to four runs for an overlay", "Mark"),
        ("p", "play", "Replay the run from its log", "Play"),
        ("slash", "app.filter", "Filter the runs", "Filter"),
        ("escape", "app.unfilter", "Clear the filter, or the marks"),
    ),
    *_cursor_commands("runs", "Runs", "run", "Newest run"),
    *_rows("runs", "Runs",
        ("end,G", "last", "Oldest run"),
        ("ctrl+t", "app.theme", THEMES),
        ("question_mark", "app.help", "Show this help", "Help"),
        ("q", "app.quit", "Close the list; no run is affected", "Close"),
    ),
    *_rows("overlay", "Overlay",
        ("x", "axis", "Switch the x-axis between steps and ticks", "Axis"),
        ("m", "metrics(1)", "Next metrics", "Metrics"),
        ("M", "metrics(-1)", "Previous metrics"),
        ("plus,equals_sign", "zoom(1)", "Show fewer, newer steps"),
        ("minus", "zoom(-1)", "Show more steps"),
        ("s", "save", "Save a screenshot (SVG) in the first run's folder", "SVG"),
        ("ctrl+t", "theme", THEMES),
        ("question_mark", "help", "Show this help", "Help"),
        ("q,escape", "quit", "Close the overlay; the runs continue", "Close"),
    ),
    *_rows("player", "Playing",
        ("space", "pause", "Play or pause", "Play/pause", "Play or pause"),
        ("greater_than_sign,full_stop", "speed(1)", "Twice as fast", "Faster", "Faster"),
        ("less_than_sign,comma", "speed(-1)", "Half as fast", "", "Slower"),
        ("right", "step(1)", "Go to the next step", "", "Next step"),
        ("left", "step(-1)", "Go to the previous step", "", "Previous step"),
        ("n", "decision(1)", "Go to the next decision", "Decision", "Next decision"),
        ("N", "decision(-1)", "Go to the previous decision", "", "Previous decision"),
        ("right_square_bracket", "tenth(1)", "Skip forward by a tenth of the run", "", "Skip forward"),
        ("left_square_bracket", "tenth(-1)", "Skip back by a tenth of the run", "", "Skip back"),
        ("t", "seek", "Go to a step by its number", "", "Go to a step"),
        ("0", "start", "Go to the start of the run", "", "Go to the start"),
        ("end,dollar_sign", "end", "Go to the end of the log", "", "Go to the end"),
    ),
    *_rows("paper", "Window",
        ("escape,enter,q", "dismiss", "Go back to the run", "back"),
        ("j", "move(1)", "One line down"),
        ("k", "move(-1)", "One line up"),
    ),
    *_rows("help", "Window", ("question_mark", "dismiss", "Go back to the run")),
    *_rows("confirm", "Window",
        ("enter,y", "answer(True)", "Send the command", "send"),
        ("escape,n,q", "answer(False)", "Cancel", "cancel"),
        ("tab,r", "reason", "Add a reason, which is logged", "add a reason"),
    ),
    *_rows("choice", "Window",
        ("enter", "choose", "Choose this entry", "choose"),
        ("escape,q", "leave", "Go back to the run", "back"),
        ("j", "move(1)", "Next entry", "down"),
        ("k", "move(-1)", "Previous entry", "up"),
    ),
    *_rows("knob", "Window",
        ("enter", "answer(True)", "Send the command", "set"),
        ("escape,q", "answer(False)", "Cancel", "cancel"),
        ("left,h", "move(-1)", "One step down on the scale", "less"),
        ("right,l", "move(1)", "One step up on the scale", "more"),
        ("shift+left,H", "move(-5)", "Five steps down on the scale"),
        ("shift+right,L", "move(5)", "Five steps up on the scale"),
        ("down,j", "pick(1)", "Next component of a mixture"),
        ("up,k", "pick(-1)", "Previous component of a mixture"),
        ("backspace", "erase", "Delete the last typed character"),
    ),
)  # fmt: skip
"""A key has only one meaning per scope. A page over the dashboard hides the dashboard's keys."""
BY_ID: Final = {command.id: command for command in COMMANDS}
GROUPS: Final[tuple[Group, ...]] = get_args(Group)


def commands_in(scope: Scope) -> tuple[Command, ...]:
    return tuple(command for command in COMMANDS if command.scope == scope)
