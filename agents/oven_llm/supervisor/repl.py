"""The supervisor's REPL: the programs of an answer run in the sandbox, and what the supervisor is shown of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from oven_core.errors import ConfigError
from oven_llm.sandbox.exchange import Block, FinalAnswer, Functions
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.session import Sandbox, open_sandbox

_OPENING: Final = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,}) *(?P<word>[\w+-]*)[^`]*")
MARK: Final = "repl"
"""The word after the fence. Other blocks are quotations, and do not run."""


@dataclass(frozen=True)
class Programs:
    """Of one answer, in its order."""

    blocks: tuple[str, ...]
    unclosed: bool
    """The last one has no closing fence: the answer was cut, and half a program is not run."""


def programs(answer: str) -> Programs:
    """A fence is closed by one of the same character, at least as long, with nothing after it (CommonMark 0.31,
    section 4.5), so that a program may have shorter fences in its strings."""
    found: list[str] = []
    held: list[str] | None = None
    fence, runs = "", False
    for line in answer.splitlines():
        bare = line.strip()
        if held is None:
            opening = _OPENING.fullmatch(line)
            if opening is not None:
                fence, runs, held = opening["fence"], opening["word"].lower() == MARK, []
        elif len(bare) >= len(fence) and set(bare) == {fence[0]} and len(line) - len(line.lstrip()) <= 3:
            if runs and any(one.strip() for one in held):
                found.append("\n".join(held) + "\n")
            held = None
        else:
            held.append(line)
    return Programs(tuple(found), unclosed=held is not None and runs)


Context = str | list[Any] | dict[str, Any]
"""What the supervisor's programs read, as `context`."""

OUTPUT_LIMIT: Final = 2000
"""Characters of a block's output that the supervisor is shown, as in Supervisor Distillation. Logs have all of it."""
NO_PROGRAM: Final = (
    f"There was no ```{MARK} block in your answer, so nothing ran. Write one, and end with FINAL(answer)."
)
CUT: Final = f"Your answer was cut within a ```{MARK} block, so that block did not run. Write a shorter one."


@dataclass(frozen=True)
class Execution:
    """One program and its outcome."""

    code: str
    block: Block


@dataclass(frozen=True)
class Turn:
    """What an answer of the supervisor's led to. `told` is the next message to it."""

    executions: tuple[Execution, ...]
    told: str
    answer: FinalAnswer | None
    cut: bool = False
    """The answer ended within a block."""

    @property
    def failed(self) -> bool:
        """Nothing ran, or something that ran failed, an answer that JSON cannot hold included: it is counted."""
        blocks = [one.block for one in self.executions]
        return not blocks or any(block.ended != "completed" or block.refused for block in blocks)


class Runs(Protocol):
    """What runs an answer's programs."""

    def turn(self, answer: str) -> Turn:
        """Never raises for anything that they do."""


class Repl:
    """`query` and `context` are variables in the sandbox, `functions` (such as `worker`) are called from it. Raises
    ConfigError for a context that is empty, or that does not fit, and where there is no sandbox; ProcessError where it
    does not start."""

    def __init__(
        self,
        query: str,
        context: Context,
        functions: Functions,
        *,
        variables: Mapping[str, object] | None = None,
        limits: Limits | None = None,
        backend: str | None = None,
        output_limit: int = OUTPUT_LIMIT,
        ran: Callable[[Execution], None] = lambda execution: None,
    ) -> None:
        """`ran` is told of each program as it has ended."""
        if not context:
            raise ConfigError("the context is empty; give text, a list or a dict to look into")
        if output_limit < 1:
            raise ConfigError(f"output_limit is {output_limit}; give 1 or more")
        self._output_limit, self._ran = output_limit, ran
        self._sandbox: Sandbox = open_sandbox(functions=functions, limits=limits, backend=backend)
        try:
            for name, value in {**(variables or {}), "query": query, "context": context}.items():
                self._sandbox.assign(name, value)
        except BaseException:
            self._sandbox.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._sandbox.close()

    def interrupt(self) -> None:
        """From another thread: ends the block that runs, if the backend can do that before the block's deadline."""
        self._sandbox.interrupt()

    def turn(self, answer: str) -> Turn:
        """Runs the answer's programs, up to the first that fails or calls FINAL."""
        found = programs(answer)
        done: list[Execution] = []
        for code in found.blocks:
            block = self._sandbox.run(code)
            done.append(Execution(code, block))
            self._ran(done[-1])
            if block.answer is not None or block.ended != "completed":
                break
        final = done[-1].block.answer if done else None
        told = _told(done, len(found.blocks), found.unclosed, self._output_limit)
        return Turn(tuple(done), told, final, found.unclosed)


def _told(done: Sequence[Execution], wanted: int, unclosed: bool, limit: int) -> str:
    parts = [shown(one.block, limit) for one in done]
    if left := wanted - len(done):
        parts.append(f"The {left} block{'s' if left > 1 else ''} after it did not run.")
    if unclosed:
        parts.append(CUT)
    return "\n\n".join(parts) or NO_PROGRAM


def shown(block: Block, limit: int) -> str:
    """The outcome in words: the first `limit` characters of its output, and how it ended."""
    output = block.stdout + block.stderr
    hidden = max(0, len(output) - limit) + block.dropped
    kept = output[:limit]
    if block.ended == "error" and hidden:  # what went wrong must not be what is cut
        kept += f"\n{block.error}"
    lines = [f"Output:\n{kept}" if kept else "No output."]
    if hidden:
        lines.append(f"({hidden} more characters are not shown: print less.)")
    if block.namespace_lost:
        lines.append(f"The program was ended: {block.error}. What it had defined is gone; context and query are there.")
    lines += [f"FINAL did not take the answer: {why}." for why in block.refused[:3]]
    return "\n".join(lines)
