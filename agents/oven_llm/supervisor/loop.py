"""The supervisor's loop without a model: it yields messages and is sent answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from oven_core.errors import ConfigError
from oven_llm.supervisor.repl import RunsPrograms

Message = dict[str, str]
"""`role` and `content`, as in chat completions."""
Ended = Literal["final", "forced", "iterations", "errors"]
"""`final`: FINAL was called. `forced`: the answer came when it was requested after the last turn. `iterations`: it did
not come then either. `errors`: too many turns in a row failed."""
Nudge = Callable[[int, int], str]
"""(remaining turns, all turns) → text to add to a message. It urges more as the limit nears, and requests the answer
with 0 remaining turns."""

MAX_ITERATIONS: Final = 15
"""As in Supervisor Distillation."""
MAX_ERRORS: Final = 5
"""Failed turns in a row that end the run: a supervisor that fails so often does not recover."""


@dataclass(frozen=True)
class Outcome:
    """The end of the conversation. `answer` may be None for every `ended`, so check `ended`."""

    answer: Any
    ended: Ended
    iterations: int
    """Answers of the supervisor, the forced one included."""
    failed: int
    """Failed turns."""
    messages: tuple[Message, ...]
    """The whole conversation, with the supervisor's last answer."""


def conversation(
    repl: RunsPrograms,
    opening: Sequence[Message],
    *,
    max_iterations: int = MAX_ITERATIONS,
    max_errors: int = MAX_ERRORS,
    nudge: Nudge = lambda remaining, total: "",
) -> Generator[tuple[Message, ...], str, Outcome]:
    """Yield the messages for the supervisor's next answer, and receive that answer. After the last turn, request the
    answer alone: then FINAL counts, and also a text without a program. Raises ConfigError for limits below 1."""
    for name, value in (("max_iterations", max_iterations), ("max_errors", max_errors)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; give 1 or more")
    messages = list(opening)
    failed = failed_in_a_row = 0
    for iteration in range(1, max_iterations + 1):
        answer = yield tuple(messages)
        turn = repl.turn(answer)
        messages.append({"role": "assistant", "content": answer})
        failed += turn.failed
        failed_in_a_row = failed_in_a_row + 1 if turn.failed else 0
        if turn.answer is not None:
            return Outcome(turn.answer.value, "final", iteration, failed, tuple(messages))
        if failed_in_a_row >= max_errors:
            return Outcome(None, "errors", iteration, failed, tuple(messages))
        nudge_text = nudge(max_iterations - iteration, max_iterations)
        messages.append({"role": "user", "content": f"{turn.message}\n\n{nudge_text}".strip()})
    answer = yield tuple(messages)
    turn = repl.turn(answer)
    messages.append({"role": "assistant", "content": answer})
    iterations = max_iterations + 1
    if turn.answer is not None:
        return Outcome(turn.answer.value, "forced", iterations, failed + turn.failed, tuple(messages))
    if not turn.executions and not turn.cut and answer.strip():
        return Outcome(answer.strip(), "forced", iterations, failed, tuple(messages))
    return Outcome(None, "iterations", iterations, failed + 1, tuple(messages))
