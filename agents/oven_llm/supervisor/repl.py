"""Finds the programs in a supervisor's answers, runs them in the sandbox, and returns their output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_llm.sandbox.confined_sandbox import open_sandbox
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.sandbox import Block, FinalAnswer, Functions, Sandbox

Context = str | list[Any] | dict[str, Any]
"""The type of the variable `context` in the supervisor's programs."""

_OPENING_FENCE: Final = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)[^`]*")
LANGUAGE: Final = "repl"
"""The word after the opening fence of a program. Other blocks do not run."""
MAX_OUTPUT_CHARACTERS: Final = 2000
"""Maximum characters of a block's output that the supervisor sees, as in Supervisor Distillation."""
NO_PROGRAM: Final = (
    f"Your answer contains no ```{LANGUAGE} block, so nothing ran. Write one, and end with FINAL(answer)."
)
TRUNCATED: Final = (
    f"Your answer was truncated in a ```{LANGUAGE} block, so that block did not run. Write a shorter one."
)


@dataclass(frozen=True)
class Programs:
    """The programs in one answer, in order."""

    blocks: tuple[str, ...]
    is_unclosed: bool
    """Whether a further block has no closing fence, because the answer was truncated. That block does not run."""


def parse_programs(answer: str) -> Programs:
    """Return the fenced blocks marked `repl`. A closing fence has the opening fence's character, is at least as long
    and has nothing after it (CommonMark 0.31, section 4.5). A program's strings may contain shorter fences."""
    blocks: list[str] = []
    lines: list[str] | None = None
    fence, is_program = "", False
    for line in answer.splitlines():
        if lines is None:
            opening = _OPENING_FENCE.fullmatch(line)
            if opening is not None:
                fence, is_program, lines = opening["fence"], opening["language"].lower() == LANGUAGE, []
        elif _is_closing_fence(line, fence):
            if is_program and any(code.strip() for code in lines):
                blocks.append("\n".join(lines) + "\n")
            lines = None
        else:
            lines.append(line)
    return Programs(tuple(blocks), is_unclosed=lines is not None and is_program)


def _is_closing_fence(line: str, opening_fence: str) -> bool:
    fence = line.strip()
    indentation = len(line) - len(line.lstrip())
    return len(fence) >= len(opening_fence) and set(fence) == {opening_fence[0]} and indentation <= 3


@dataclass(frozen=True)
class Execution:
    """One program and its outcome."""

    code: str
    block: Block


@dataclass(frozen=True)
class Turn:
    """The result of running the programs in one answer."""

    executions: tuple[Execution, ...]
    message: str
    """The next message to the supervisor."""
    answer: FinalAnswer | None
    """The value passed to FINAL, if it was called."""
    is_truncated: bool = False
    """Whether the supervisor's answer was truncated in a block."""

    @property
    def failed(self) -> bool:
        """Whether no program ran, a program failed, or FINAL refused its answer."""
        blocks = [execution.block for execution in self.executions]
        return not blocks or any(block.ending != "completed" or block.refusal_reasons for block in blocks)


class Repl:
    """A sandbox with the variables `query` and `context` and functions such as `worker`. Raises ConfigError if the
    context is empty or too large, or if no sandbox is available, and ProcessError if the sandbox does not start."""

    def __init__(
        self,
        query: str,
        context: Context,
        functions: Functions,
        *,
        variables: Mapping[str, object] | None = None,
        limits: Limits | None = None,
        backend: str | None = None,
        output_limit: int = MAX_OUTPUT_CHARACTERS,
        on_execution: Callable[[Execution], None] = lambda execution: None,
    ) -> None:
        """`on_execution` is called after each program."""
        if not context:
            raise ConfigError("the context is empty; expected a string, a list or a dict")
        if output_limit < 1:
            raise ConfigError(f"output_limit is {output_limit}; expected 1 or more")
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
        """Stop the running block from another thread, if the backend supports this."""
        self._sandbox.interrupt()

    def run_turn(self, answer: str) -> Turn:
        """Run the answer's programs until one fails or calls FINAL."""
        programs = parse_programs(answer)
        executions: list[Execution] = []
        for code in programs.blocks:
            block = self._sandbox.run(code)
            executions.append(Execution(code, block))
            self._on_execution(executions[-1])
            if block.answer is not None or block.ending != "completed":
                break
        final = executions[-1].block.answer if executions else None
        message = _build_message(executions, len(programs.blocks), programs.is_unclosed, self._output_limit)
        return Turn(tuple(executions), message, final, programs.is_unclosed)


def _build_message(executions: Sequence[Execution], block_count: int, is_unclosed: bool, limit: int) -> str:
    paragraphs = [format_outcome(execution.block, limit) for execution in executions]
    if skipped_count := block_count - len(executions):
        paragraphs.append(f"The {skipped_count} block{'s' if skipped_count > 1 else ''} after that did not run.")
    if is_unclosed:
        paragraphs.append(TRUNCATED)
    return "\n\n".join(paragraphs) or NO_PROGRAM


def format_outcome(block: Block, limit: int) -> str:
    """Return the outcome of a block as text, with at most `limit` characters of its output."""
    output = block.stdout + block.stderr
    hidden_count = max(0, len(output) - limit) + block.dropped_count
    shown_output = output[:limit]
    if block.ending == "error" and hidden_count:  # the error must stay visible
        shown_output += f"\n{block.error}"
    lines = [f"Output:\n{shown_output}" if shown_output else "No output."]
    if hidden_count:
        lines.append(f"({hidden_count} more characters are not shown. Print less.)")
    if block.namespace_lost:
        lines.append(f"{block.error[:1].upper()}{block.error[1:]}. All variables except context and query are lost.")
    lines += [f"FINAL refused the answer: {reason}." for reason in block.refusal_reasons[:3]]
    return "\n".join(lines)
