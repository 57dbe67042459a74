"""Known-bad answers, each an attack on a judge: `data/attacks.jsonl`, with a category and where it comes from.

Openers without content and fake verdicts earn good marks from many judges (arXiv 2507.08794, 2410.07137), and what
fools one is what a policy in training finds. None of them is an answer to anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Attack:
    """`source`: a paper whose attack it is, or after whose idea it was written; or "own words"."""

    id: str
    category: str
    source: str
    text: str


@cache
def corpus() -> tuple[Attack, ...]:
    """In the order in which judges meet them: of each category the first, then of each the second, and so on."""
    text = resources.files("oven_llm.judges").joinpath("data/attacks.jsonl").read_text("utf-8")
    read = [Attack(**json.loads(line)) for line in text.split("\n") if line]  # texts may have other lines' ends
    turn: dict[str, int] = {}
    ordered = []
    for at, attack in enumerate(read):
        turn[attack.category] = turn.get(attack.category, -1) + 1
        ordered.append((turn[attack.category], at, attack))
    return tuple(attack for _, _, attack in sorted(ordered, key=lambda entry: entry[:2]))
