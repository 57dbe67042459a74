"""The supervisor's REPL: runs the programs of an answer in the sandbox, and reports their output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_llm.sandbox.exchange import Block, FinalAnswer, Functions, Sandbox
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.session import open_sandbox

Context = str | list[Any] | dict[str, Any]
"""The type of the variable `context` in the supervisor's programs."""

_OPENING: Final = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,}) *(?P<mark>[\w+-]*)[^`]*")
MARK: Final = "repl"
"""The word after the fence of a program. Other blocks are quotations, and do not run."""
OUTPUT_LIMIT: Final = 2000
"""Maximum characters of a block's output shown to the supervisor, as in Supervisor Distillation. Logs contain more."""
NO_PROGRAM: Final = (
    f"There was no ```{MARK} block in your answer, so nothing ran. Write one, and end with FINAL(answer)."
)
CUT: Final = f"Your answer was cut within a ```{MARK} block, so that block did not run. Write a shorter one."


@dataclass(frozen=True)
class Programs:
    """The programs of one answer, in order."""

    blocks: tuple[str, ...]
    unclosed: bool
    """Whether the last block has no closing fence. The answer was cut, and half a program does not run."""


def programs(answer: str) -> Programs:
    """Return the fenced blocks marked `repl`. A fence is closed by one of the same character, at least as long, with
    nothing after it (CommonMark 0.31, section 4.5), so a program may have shorter fences in its strings."""
    blocks: list[str] = []
    lines: list[str] | None = None
    fence, is_program = "", False
    for line in answer.splitlines():
        bare = line.strip()
        if lines is None:
            opening = _OPENING.fullmatch(line)
            if opening is not None:
                fence, is_program, lines = opening["fence"], opening["mark"].lower() == MARK, []
        elif len(bare) >= len(fence) and set(bare) == {fence[0]} and len(line) - len(line.lstrip()) <= 3:
            if is_program and any(code.strip() for code in lines):
                blocks.append("\n".join(lines) + "\n")
            lines = None
        else:
            lines.append(line)
    return Programs(tuple(blocks), unclosed=lines is not None and is_program)


@dataclass(frozen=True)
class Execution:
    """One program and its outcome."""

    code: str
    block: Block


@dataclass(frozen=True)
class Turn:
    """The result of one answer of the supervisor."""

    executions: tuple[Execution, ...]
    message: str
    """The next message to the supervisor."""
    answer: FinalAnswer | None
    cut: bool = False
    """Whether the answer ended within a block."""

    @property
    def failed(self) -> bool:
        """Whether no program ran, a program failed, or its answer cannot be written as JSON."""
        blocks = [execution.block for execution in self.executions]
        return not blocks or any(block.ended != "completed" or block.refused for block in blocks)


class Repl:
    """A sandbox with the variables `query` and `context`, and with functions such as `worker`. Raises ConfigError if
    the context is empty or does not fit, or if there is no sandbox; ProcessError if the sandbox does not start."""

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
        on_execution: Callable[[Execution], None] = lambda execution: None,
    ) -> None:
        """`on_execution` is called after each program."""
        if not context:
            raise ConfigError("the context is empty; give text, a list or a dict to look into")
        if output_limit < 1:
            raise ConfigError(f"output_limit is {output_limit}; give 1 or more")
        self._output_limit, self._on_execution = output_limit, on_execution
        self._sandbox: Sandbox = open_sandbox(functions=functions, limits=limits, backend=backend)
        try:
            for name, value in {**(variables or {}), "query": query, "context": context}.items():
                self._sandbox.assign(name, value)
        except BaseException:
            self._sandbox.close()
            raise

    def close(self) -> None:
        self._sandbox.close()

    def interrupt(self) -> None:
        """End the running block from another thread, if the backend can do that before the block's deadline."""
        self._sandbox.interrupt()

    def turn(self, answer: str) -> Turn:
        """Run the answer's programs, up to the first that fails or calls FINAL."""
        written = programs(answer)
        executions: list[Execution] = []
        for code in written.blocks:
            block = self._sandbox.run(code)
            executions.append(Execution(code, block))
            self._on_execution(executions[-1])
            if block.answer is not None or block.ended != "completed":
                break
        final = executions[-1].block.answer if executions else None
        message = _message(executions, len(written.blocks), written.unclosed, self._output_limit)
        return Turn(tuple(executions), message, final, written.unclosed)


def _message(executions: Sequence[Execution], blocks: int, unclosed: bool, limit: int) -> str:
    parts = [shown(execution.block, limit) for execution in executions]
    if skipped := blocks - len(executions):
        parts.append(f"The {skipped} block{'s' if skipped > 1 else ''} after it did not run.")
    if unclosed:
        parts.append(CUT)
    return "\n\n".join(parts) or NO_PROGRAM


def shown(block: Block, limit: int) -> str:
    """Return the outcome as text: the first `limit` characters of its output, and how it ended."""
    output = block.stdout + block.stderr
    hidden = max(0, len(output) - limit) + block.dropped
    visible = output[:limit]
    if block.ended == "error" and hidden:  # the error must not be the part that is cut
        visible += f"\n{block.error}"
    lines = [f"Output:\n{visible}" if visible else "No output."]
    if hidden:
        lines.append(f"({hidden} more characters are not shown: print less.)")
    if block.namespace_lost:
        lines.append(f"The program was ended: {block.error}. What it had defined is gone; context and query are there.")
    lines += [f"FINAL did not take the answer: {why}." for why in block.refused[:3]]
    return "\n".join(lines)
