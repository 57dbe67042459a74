"""The order and the panels in which `oven-controller --help` shows its commands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

PANELS = {
    "Start and end": ("up", "run", "down"),
    "Watch": ("runs", "status", "monitor", "log"),
    "Overrule": (
        "hold",
        "resume",
        "stop",
        "set",
        "approve",
        "veto",
        "autonomy",
        "mute",
        "unmute",
        "trust",
        "distrust",
    ),
    "Ask": ("explain", "review", "replay", "backtest", "import", "kg"),
    "Measure": ("gym", "bench", "calibration"),
    "Set up": ("doctor", "config", "agent", "creds", "schema"),
}
_PLACES = {name: (at, panel) for at, (name, panel) in enumerate((n, p) for p, names in PANELS.items() for n in names)}


class Panels(TyperGroup):
    """A group whose commands are listed as `PANELS` has them; one that is in no panel comes last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: _PLACES.get(name, (len(_PLACES), ""))[0])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in _PLACES:
            command.rich_help_panel = _PLACES[cmd_name][1]
        return command
