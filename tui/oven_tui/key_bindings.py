"""Creates Textual's key bindings and the command palette from the table of commands (oven_tui.model.commands)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.keys import key_to_character

from oven_tui.model.commands import BY_ID, Command, Scope, commands_in

SYMBOLS = {"left": "←", "right": "→", "up": "↑", "down": "↓", "plus": "+", "minus": "-", "slash": "/"}


def bindings(*scopes: Scope) -> list[BindingType]:
    """Return the bindings of a class that handles the commands of these scopes."""
    return [_create_binding(command) for scope in scopes for command in commands_in(scope)]


def _create_binding(command: Command) -> Binding:
    return Binding(
        command.keys,
        command.action,
        command.footer or command.title or command.help,
        show=bool(command.footer),
        key_display=_find_symbol(command.key_names()[0]),
        id=command.id,
        tooltip=command.help,
    )


def key_text(command: Command) -> str:
    """Return a command's keys as they appear on a keyboard."""
    return " ".join(_find_symbol(key) or key.replace("ctrl+", "^") for key in command.key_names())


def _find_symbol(key: str) -> str | None:
    """Return the symbol on a key, or None if the key has none."""
    symbol = SYMBOLS.get(key) or key_to_character(key)
    return symbol if symbol and symbol.isprintable() and symbol != " " else None


def key_line(scope: Scope) -> str:
    """Return the text for the lower edge of a page: the keys of all commands that have a label for the footer."""
    return "  ".join(f"{key_text(command)}: {command.footer}" for command in commands_in(scope) if command.footer)


class CommandPalette(Provider):
    """The entries of the palette: every command with a title that the screen below the palette handles."""

    def _active_commands(self) -> Iterator[tuple[Command, Any]]:
        """Yield each command once, with a function that runs it."""
        seen_ids = set[str]()
        for active in self.screen.active_bindings.values():
            command = BY_ID.get(active.binding.id or "")
            if command is not None and command.title and command.id not in seen_ids:
                seen_ids.add(command.id)
                yield command, partial(self.app.run_action, active.binding.action, active.node)

    async def discover(self) -> Hits:
        for command, run in self._active_commands():
            yield DiscoveryHit(_format_title(command), run, help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, run in self._active_commands():
            score = max(matcher.match(command.title), 0.7 * matcher.match(command.help), _score_keys(command, query))
            if score > 0:
                yield Hit(score, matcher.highlight(_format_title(command)), run, text=command.title, help=command.help)


def _format_title(command: Command) -> str:
    return f"{command.title}  ({key_text(command)})"


def _score_keys(command: Command, query: str) -> float:
    return float(query.strip() in key_text(command).split())
