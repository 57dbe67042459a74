"""Programs in a supervisor's answer: fenced blocks marked `repl`, as it was told to write them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
