"""The table of the monitor's commands. Bindings, footer, help and command palette come from it.

A new command is a row here and an `action_…` on the class of its scope. A class takes its rows with `BINDINGS =
bindings("…")` (oven_tui.bindings).
"""

from __future__ import annotations

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
"""Headings of the help, in order."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the monitor."""

    id: str
    scope: Scope
    keys: str
    """Textual's names of keys, separated by commas. Any of them runs the command."""
    action: str
    """Textual's action with its arguments: `zoom(1)` calls `action_zoom(1)`."""
    words: str
    """Its name in the command palette, also for the search."""
    help: str
    """A line for the help and the palette."""
    group: Group = "Window"
    footer: str = ""
    """Its word in the footer; empty if it is not there."""
    acts: bool = False
    """Whether it acts on the run. Then it needs `--control` and a key that may act."""
    listed: bool = True
    """Whether the palette lists it. Moving a cursor is quicker by its key."""

    def __post_init__(self) -> None:
        """Raises ValueError for a row from which no binding would follow."""
        if not (self.id and self.keys and self.action and self.words and self.help):
            raise ValueError(f"the command {self.id!r} lacks a key, an action, its words or its line of help")

    def key_names(self) -> tuple[str, ...]:
        """Its keys, one by one."""
        return tuple(key.strip() for key in self.keys.split(","))


def _operator_action(name: str, keys: str, method: str, footer: str = "") -> Command:
    """Return the command for an action of oven_core.protocol.operator_actions."""
    action = ACTIONS[name]
    return Command(
        f"act.{name}", "monitor", keys, method, action.title, action.summary, "Acting on the run", footer, acts=True
    )


COMMANDS: Final = (
    _operator_action("approve", "a", "approve", "Approve"),
    _operator_action("veto", "v", "veto", "Veto"),
    _operator_action("set", "e", "set_knob", "Set"),
    Command(
        "act.hold", "monitor", "p", "hold_or_resume", "Hold or resume training",
        "Hold training after this step, or resume it", "Acting on the run", "Hold", acts=True,
    ),
    Command(
        "act.checkpoint", "monitor", "w", "checkpoint", "Write a checkpoint", "Write a checkpoint after this step",
        "Acting on the run", acts=True,
    ),
    Command(
        "act.rollback", "monitor", "b", "rollback", "Roll back", "Roll back to a snapshot, from a list",
        "Acting on the run", acts=True,
    ),
    Command(
        "act.undo", "monitor", "B", "undo_rollback", "Take the rollback back",
        "Forward again to what the last rollback left", "Acting on the run", acts=True,
    ),
    Command(
        "act.mute", "monitor", "x", "mute", "Mute or unmute an agent",
        "Its votes are logged and do not count, or count again", "Acting on the run", acts=True,
    ),
    _operator_action("trust", "t", "trust(True)"),
    _operator_action("distrust", "T", "trust(False)"),
    _operator_action("autonomy", "o", "autonomy"),
    _operator_action("stop", "X", "stop"),
    Command(
        "quit", "monitor", "q", "quit", "Close the monitor", "Close the monitor; the run continues", footer="Close"
    ),
    Command("help", "monitor", "question_mark", "help", "Help", "This help", footer="Help"),
    Command(
        "palette", "monitor", "colon,ctrl+p", "command_palette", "Command palette", "Any command by its name",
        footer="Palette", listed=False,
    ),
    Command(
        "freeze", "monitor", "space", "freeze", "Freeze or thaw", "Freeze what is shown; data keeps arriving",
        footer="Freeze",
    ),
    Command(
        "theme", "monitor", "ctrl+t", "theme", "Next theme", "Dark, light, or colours for the colour-blind on either"
    ),
    Command(
        "save", "monitor", "s", "save", "Save a picture", "Save a picture (SVG) into the run's folder"
    ),
    Command(
        "console", "monitor", "l", "console", "Console", "What the run's processes wrote into their logs",
    ),
    Command("list", "monitor", "R", "runs", "All runs", "The list of runs"),
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
        "decisions.half_up", "decisions", "ctrl+u", "half(-1)", "Half a page up", "Half a screenful back",
        "Decisions",
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
    Command("completions.help", "completions", "question_mark", "help", "Help", "This help", "Completions", "Help"),
    Command(
        "completions.back", "completions", "escape,q,c", "leave", "Back", "Clear the filter, or back to the run",
        "Completions", "Back",
    ),
    Command(
        "console.filter", "console_page", "slash", "filter", "Filter lines", "Filter the lines", "Console", "Filter"
    ),
    Command(
        "console.next", "console_page", "right_square_bracket,tab", "process(1)", "Next process",
        "The next process's log, or all of them", "Console", "Process",
    ),
    Command(
        "console.before", "console_page", "left_square_bracket,shift+tab", "process(-1)", "Process before",
        "The process before", "Console",
    ),
    Command(
        "console.back", "console_page", "escape,l,q", "back", "Back", "Show all lines again, then back to the run",
        "Console", "Back",
    ),
    Command("console.help", "console_page", "question_mark", "help", "Help", "This help", "Console", "Help"),
    Command("console.up", "console", "up,k", "lines(-1)", "Up", "A line up", "Console", listed=False),
    Command("console.down", "console", "down,j", "lines(1)", "Down", "A line down", "Console", listed=False),
    Command(
        "console.page_up", "console", "pageup,ctrl+b", "page(-1)", "Page up", "A screenful back", "Console",
        listed=False,
    ),
    Command(
        "console.page_down", "console", "pagedown,ctrl+f", "page(1)", "Page down", "A screenful on", "Console",
        listed=False,
    ),
    Command("console.first", "console", "home,g", "first", "First line", "The first line", "Console", listed=False),
    Command("console.last", "console", "end,G", "last", "Last line", "Follow what is written", "Console", listed=False),
    Command(
        "console.right", "console", "right,L", "aside(1)", "Right", "Long lines: further right", "Console", listed=False
    ),
    Command("console.left", "console", "left,h,H", "aside(-1)", "Left", "Long lines: back", "Console", listed=False),
    Command(
        "runs.open", "runs", "enter", "open", "Open", "Open the run; where runs are marked, overlay them",
        "Runs", "Open",
    ),
    Command("runs.mark", "runs", "space", "mark", "Mark", "Mark the run for an overlay: two to four", "Runs", "Mark"),
    Command("runs.play", "runs", "p", "play", "Play", "Play the run from its log", "Runs", "Play"),
    Command("runs.filter", "runs", "slash", "app.filter", "Filter runs", "Filter the runs", "Runs", "Filter"),
    Command("runs.unfilter", "runs", "escape", "app.unfilter", "Show all", "Clear the filter, then the marks", "Runs"),
    Command("runs.up", "runs", "up,k", "move(-1)", "Up", "The run above", "Runs", listed=False),
    Command("runs.down", "runs", "down,j", "move(1)", "Down", "The run below", "Runs", listed=False),
    Command("runs.page_up", "runs", "pageup,ctrl+b", "page(-1)", "Page up", "A screenful up", "Runs", listed=False),
    Command(
        "runs.page_down", "runs", "pagedown,ctrl+f", "page(1)", "Page down", "A screenful down", "Runs", listed=False
    ),
    Command("runs.first", "runs", "home,g", "move(-100000)", "First run", "The newest run", "Runs", listed=False),
    Command("runs.last", "runs", "end,G", "move(100000)", "Last run", "The oldest run", "Runs", listed=False),
    Command(
        "runs.theme", "runs", "ctrl+t", "app.theme", "Next theme", "Dark, light, and both for the colour-blind", "Runs",
    ),
    Command("runs.help", "runs", "question_mark", "app.help", "Help", "This help", "Runs", "Help"),
    Command(
        "runs.quit", "runs", "q", "app.quit", "Close the list", "Close the list; no run is touched", "Runs", "Close",
    ),
    Command("overlay.axis", "overlay", "x", "axis", "Steps or ticks", "The x-axis: steps, or ticks", "Overlay", "Axis"),
    Command("overlay.metrics", "overlay", "m", "metrics(1)", "Next metrics", "The next metrics", "Overlay", "Metrics"),
    Command("overlay.metrics_back", "overlay", "M", "metrics(-1)", "Metrics before", "The metrics before", "Overlay"),
    Command("overlay.zoom_in", "overlay", "plus,equals_sign", "zoom(1)", "Zoom in", "Fewer, newer steps", "Overlay"),
    Command("overlay.zoom_out", "overlay", "minus", "zoom(-1)", "Zoom out", "More steps", "Overlay"),
    Command(
        "overlay.save", "overlay", "s", "save", "Save a picture", "Save a picture (SVG) into the first run's folder",
        "Overlay", "SVG",
    ),
    Command(
        "overlay.theme", "overlay", "ctrl+t", "theme", "Next theme",
        "Dark, light, and both for the colour-blind", "Overlay",
    ),
    Command("overlay.help", "overlay", "question_mark", "help", "Help", "This help", "Overlay", "Help"),
    Command(
        "overlay.quit", "overlay", "q,escape", "quit", "Close", "Close the overlay; the runs continue", "Overlay",
        "Close",
    ),
    Command("player.pause", "player", "space", "pause", "Play or pause", "Play, or pause", "Playing", "Play/pause"),
    Command(
        "player.faster", "player", "greater_than_sign,full_stop", "speed(1)", "Faster", "Twice as fast",
        "Playing", "Faster",
    ),
    Command("player.slower", "player", "less_than_sign,comma", "speed(-1)", "Slower", "Half as fast", "Playing"),
    Command("player.next_step", "player", "right", "step(1)", "Next step", "On to the next step", "Playing"),
    Command("player.last_step", "player", "left", "step(-1)", "Step before", "Back to the step before", "Playing"),
    Command(
        "player.next_decision", "player", "n", "decision(1)", "Next decision", "On to the next decision",
        "Playing", "Decision",
    ),
    Command(
        "player.last_decision", "player", "N", "decision(-1)", "Decision before",
        "Back to the decision before", "Playing",
    ),
    Command(
        "player.on", "player", "right_square_bracket", "tenth(1)", "A tenth on", "A tenth of the run on", "Playing",
    ),
    Command(
        "player.back", "player", "left_square_bracket", "tenth(-1)", "A tenth back", "A tenth of the run back",
        "Playing",
    ),
    Command("player.seek", "player", "t", "seek", "Go to a step", "Go to a step, by its number", "Playing"),
    Command("player.start", "player", "0", "start", "To the start", "To the run's start", "Playing"),
    Command("player.end", "player", "end,dollar_sign", "end", "To the end", "To the end of the log", "Playing"),
    Command("paper.back", "paper", "escape,enter,q", "dismiss", "Back", "Back to the run", footer="back"),
    Command("paper.down", "paper", "j", "move(1)", "Down", "A line on", listed=False),
    Command("paper.up", "paper", "k", "move(-1)", "Up", "A line back", listed=False),
    Command("help.back", "help", "question_mark", "dismiss", "Back", "Back to the run"),
    Command("confirm.yes", "confirm", "enter,y", "answer(True)", "Do it", "Give the command", footer="do it"),
    Command("confirm.no", "confirm", "escape,n,q", "answer(False)", "Leave it", "Leave it", footer="leave it"),
    Command("confirm.reason", "confirm", "tab,r", "reason", "Reason", "Say why; it is in the log", footer="say why"),
    Command("choice.choose", "choice", "enter", "choose", "Choose", "This one", footer="choose"),
    Command("choice.back", "choice", "escape,q", "leave", "Back", "Back to the run", footer="back"),
    Command("choice.down", "choice", "j", "move(1)", "Down", "The next one", footer="down", listed=False),
    Command("choice.up", "choice", "k", "move(-1)", "Up", "The one before", footer="up", listed=False),
    Command("knob.set", "knob", "enter", "answer(True)", "Set it", "Give the command", footer="set it"),
    Command("knob.leave", "knob", "escape,q", "answer(False)", "Leave it", "Leave it", footer="leave it"),
    Command("knob.less", "knob", "left,h", "move(-1)", "Less", "A step down on its scale", footer="less"),
    Command("knob.more", "knob", "right,l", "move(1)", "More", "A step up on its scale", footer="more"),
    Command("knob.much_less", "knob", "shift+left,H", "move(-5)", "Much less", "Five steps down"),
    Command("knob.much_more", "knob", "shift+right,L", "move(5)", "Much more", "Five steps up"),
    Command("knob.next", "knob", "down,j", "pick(1)", "Next share", "The next component of a mixture"),
    Command("knob.before", "knob", "up,k", "pick(-1)", "Share before", "The component before"),
    Command("knob.rub_out", "knob", "backspace", "rub_out", "Rub out", "Rub out what was typed", listed=False),
)  # fmt: skip
"""A key has one meaning in a scope. A page over the dashboard hides the keys below it."""

BY_ID: Final = {command.id: command for command in COMMANDS}
GROUPS: Final[tuple[Group, ...]] = get_args(Group)


def commands_in(scope: Scope) -> tuple[Command, ...]:
    """A scope's commands, in the table's order."""
    return tuple(command for command in COMMANDS if command.scope == scope)
