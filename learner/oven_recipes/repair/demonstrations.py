"""Attempts of somebody who knows the repair, and makes mistakes on purpose some of the time: what the warm-up learns.

As a pre-trained model would, the policy then can repair, and does so only some of the time; and it has seen what a
failing test looks like, so that a second attempt is in its habits.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oven_recipes.environments.instance import Instance
from oven_recipes.environments.patches import apply_patch
from oven_recipes.environments.session import RepairSession
from oven_recipes.environments.small_functions import SWAPS, TrustedTests

Message = dict[str, Any]
"""As chat templates take it."""
SLIPS: Final = 20
"""Draws of a wrong edit before the right one is taken."""


@dataclass(frozen=True)
class Habits:
    """How demonstrations go, each a probability."""

    right: float = 0.5
    """The first edit is right; else a wrong line is put in."""
    looks_around: float = 0.1
    """Files are listed, or the function's name is searched for, before the file is read."""
    runs_tests: float = 0.8
    """Tests are run after the first edit."""
    tries_again: float = 0.5
    """After failing tests the edit is made good; else it is submitted as it is."""


def demonstration(instance: Instance, habits: Habits, rng: random.Random) -> list[Message]:
    """The messages of one attempt, from the statement to the end."""
    right = apply_patch(instance.files, instance.patch)
    attempt = _Attempt(RepairSession(instance, instance.files, TrustedTests()), instance.problem_statement)
    path, _, said = instance.problem_statement.partition(": ")
    if rng.random() < habits.looks_around:
        if rng.random() < 0.5:
            attempt.call("list_files", {"folder": "."})
        else:
            attempt.call("search", {"text": said.partition("(")[0]})
    attempt.call("read", {"path": path})
    old, new = replacement(attempt.files[path], right[path])
    slipped = rng.random() >= habits.right
    attempt.call("edit", {"path": path, "old": old, "new": _slip(new, old, rng) if slipped else new})
    if rng.random() < habits.runs_tests:
        attempt.call("run_tests", {})
        if not attempt.passes and rng.random() < habits.tries_again:
            old, new = replacement(attempt.files[path], right[path])
            attempt.call("edit", {"path": path, "old": old, "new": new})
            attempt.call("run_tests", {})
    attempt.call("submit", {})
    attempt.messages.append({"role": "assistant", "content": "done"})
    return attempt.messages


class _Attempt:
    """A session, and the messages that led to its state."""

    def __init__(self, session: RepairSession, prompt: str) -> None:
        self._session = session
        self.messages: list[Message] = [{"role": "user", "content": prompt}]

    @property
    def files(self) -> Mapping[str, str]:
        return self._session.files

    @property
    def passes(self) -> bool:
        return self._session.passing == len(self._session.outcomes)

    def call(self, tool: str, arguments: dict[str, str]) -> None:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        calls = [{"type": "function", "function": function}]
        result = self._session.call(tool, arguments)
        self.messages += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "name": tool, "content": result.text},
        ]


def replacement(now: str, right: str) -> tuple[str, str]:
    """(old, new) of the shortest edit by whole lines that makes `right` of a text, without the indent of the first
    line. `old` occurs once in `now`."""
    before, after = now.splitlines(keepends=True), right.splitlines(keepends=True)
    changed = [
        one for one in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes() if one[0] != "equal"
    ]
    first, last = changed[0], changed[-1]
    a, b, c, d = first[1], last[2], first[3], last[4]
    if a == b or c == d:  # lines are missing, or too many: the next one stays, and says where
        b, d = b + 1, d + 1
    while True:
        old, new = "".join(before[a:b]).rstrip("\n"), "".join(after[c:d]).rstrip("\n")
        indent = len(old) - len(old.lstrip())
        if now.count(old[indent:]) == 1:
            return old[indent:], new[indent:]
        a, c = a - 1, c - 1


def _slip(new: str, old: str, rng: random.Random) -> str:
    """A wrong text near the right one; not the one that is there."""
    for _ in range(SLIPS):
        wrong = _mutated(new, rng)
        if wrong not in (new, old):
            return wrong
    return new


def _mutated(text: str, rng: random.Random) -> str:
    digits = list(re.finditer(r"\d", text))
    if digits and rng.random() < 0.5:
        match = rng.choice(digits)
        other = str(min(9, max(0, int(match[0]) + rng.choice((-1, 1)))))
        return text[: match.start()] + other + text[match.end() :]
    fitting = [(right, wrong) for right, wrong in SWAPS if right in text]
    if not fitting:
        return text
    right, wrong = rng.choice(fitting)
    return text.replace(right, wrong, 1)
