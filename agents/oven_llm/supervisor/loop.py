"""The supervisor's loop, without a model: messages come out, answers go in. Pure, for `run` and `arun` alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from oven_core.errors import ConfigError
from oven_llm.supervisor.repl import Runs

Message = dict[str, str]
"""`role` and `content`, as chat completions have them."""
Ended = Literal["final", "forced", "iterations", "errors"]
"""FINAL was called; the answer was given when it was asked for, after all turns; there was none then, either; too many
turns failed in a row."""
Nudge = Callable[[int, int], str]
"""(turns that are left, all of them) → what to add to a message; it presses as the limit nears, and with none left it
asks for the answer."""

MAX_ITERATIONS: Final = 15
"""As in Supervisor Distillation."""
MAX_ERRORS: Final = 5
"""Turns in a row in which nothing ran to its end: a supervisor that fails so often does not recover."""


@dataclass(frozen=True)
class Outcome:
    """`answer` is None unless `ended` is "final" or "forced", and may be None then, too: look at `ended`."""

    answer: Any
    ended: Ended
    iterations: int
    """Answers of the supervisor, with the one that was forced."""
    failed: int
    """Turns that failed."""
    messages: tuple[Message, ...]
    """All of the conversation, with the supervisor's last answer."""


def conversation(
    repl: Runs,
    opening: Sequence[Message],
    *,
    max_iterations: int = MAX_ITERATIONS,
    max_errors: int = MAX_ERRORS,
    nudge: Nudge = lambda left, of: "",
) -> Generator[tuple[Message, ...], str, Outcome]:
    """Yields the messages for the supervisor's next answer, and is sent that answer. After the last turn it asks once
    more, for the answer alone: FINAL then counts, and so does a text without a program. Raises ConfigError for limits
    below 1."""
    for name, value in (("max_iterations", max_iterations), ("max_errors", max_errors)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; give 1 or more")
    messages = list(opening)
    failed = in_a_row = 0
    for iteration in range(1, max_iterations + 1):
        answer = yield tuple(messages)
        turn = repl.turn(answer)
        messages.append({"role": "assistant", "content": answer})
        failed += turn.failed
        in_a_row = in_a_row + 1 if turn.failed else 0
        if turn.answer is not None:
            return Outcome(turn.answer.value, "final", iteration, failed, tuple(messages))
        if in_a_row >= max_errors:
            return Outcome(None, "errors", iteration, failed, tuple(messages))
        pressed = nudge(max_iterations - iteration, max_iterations)
        messages.append({"role": "user", "content": f"{turn.told}\n\n{pressed}".strip()})
    answer = yield tuple(messages)
    turn = repl.turn(answer)
    messages.append({"role": "assistant", "content": answer})
    asked = max_iterations + 1
    if turn.answer is not None:
        return Outcome(turn.answer.value, "forced", asked, failed + turn.failed, tuple(messages))
    if not turn.executions and not turn.cut and answer.strip():
        return Outcome(answer.strip(), "forced", asked, failed, tuple(messages))
    return Outcome(None, "iterations", asked, failed + 1, tuple(messages))
