"""Generates demonstrations: messages of attempts at repair tasks, some of which contain wrong edits."""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.environments.repair_task_generator import OPERATOR_SWAPS, TrustedTests

Message = dict[str, Any]
"""A message in the format of chat templates."""
MAX_DRAWS: Final = 20
"""Maximum number of draws for a wrong edit. If none of the draws is wrong, the correct edit is used."""


@dataclass(frozen=True)
class Habits:
    """Probabilities of actions in demonstrations."""

    correct_edit: float = 0.5
    """Probability that the first edit is correct. Otherwise the new code is wrong."""
    look_around: float = 0.1
    """Probability of listing the files or searching for the function's name, before reading the file."""
    run_tests: float = 0.8
    """Probability of running the tests after the first edit."""
    retry: float = 0.5
    """Probability of correcting the edit after failing tests. Otherwise the wrong edit is submitted."""


def demonstrate(instance: Instance, habits: Habits, rng: random.Random) -> list[Message]:
    """Return the messages of one attempt at the instance, from the problem statement to the end."""
    solution = instance.solution
    attempt = _Attempt(RepairSession(instance, instance.files, TrustedTests()), instance.problem_statement)
    path, _, description = instance.problem_statement.partition(": ")
    if rng.random() < habits.look_around:
        if rng.random() < 0.5:
            attempt.call("list_files", {"folder": "."})
        else:
            attempt.call("search", {"text": description.partition("(")[0]})
    attempt.call("read", {"path": path})
    old, new = find_replacement(attempt.files[path], solution[path])
    is_wrong = rng.random() >= habits.correct_edit
    attempt.call("edit", {"path": path, "old": old, "new": _wrong_edit(new, old, rng) if is_wrong else new})
    if rng.random() < habits.run_tests:
        attempt.call("run_tests", {})
        if not attempt.all_tests_pass and rng.random() < habits.retry:
            old, new = find_replacement(attempt.files[path], solution[path])
            attempt.call("edit", {"path": path, "old": old, "new": new})
            attempt.call("run_tests", {})
    attempt.call("submit", {})
    attempt.messages.append({"role": "assistant", "content": "done"})
    return attempt.messages


class _Attempt:
    """An attempt at a task: its session, and the messages so far."""

    def __init__(self, session: RepairSession, prompt: str) -> None:
        self._session = session
        self.messages: list[Message] = [{"role": "user", "content": prompt}]

    @property
    def files(self) -> Mapping[str, str]:
        return self._session.files

    @property
    def all_tests_pass(self) -> bool:
        return self._session.passing_count == len(self._session.outcomes)

    def call(self, tool: str, arguments: dict[str, str]) -> None:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        calls = [{"type": "function", "function": function}]
        result = self._session.call(tool, arguments)
        self.messages += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "name": tool, "content": result.text},
        ]


def find_replacement(current: str, solution: str) -> tuple[str, str]:
    """Return the arguments `old` and `new` with which the tool `edit` changes `current` to `solution`. They cover the
    lines that change, and as many lines before those as are needed to make `old` unique in `current`. They do not
    contain the indent of the first line."""
    before, after = current.splitlines(keepends=True), solution.splitlines(keepends=True)
    opcodes = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    changes = [spans for tag, *spans in opcodes if tag != "equal"]
    old_start, _, new_start, _ = changes[0]
    _, old_stop, _, new_stop = changes[-1]
    if old_start == old_stop or new_start == new_stop:  # the edit only inserts or deletes, so include the next line
        old_stop, new_stop = old_stop + 1, new_stop + 1
    while True:
        old = "".join(before[old_start:old_stop]).rstrip("\n")
        new = "".join(after[new_start:new_stop]).rstrip("\n")
        indent = len(old) - len(old.lstrip())
        if current.count(old[indent:]) == 1:
            return old[indent:], new[indent:]
        old_start, new_start = old_start - 1, new_start - 1


def _wrong_edit(new: str, old: str, rng: random.Random) -> str:
    """Return a variant of the correct code `new` that is neither `new` nor the current code `old`."""
    for _ in range(MAX_DRAWS):
        wrong = _mutate(new, rng)
        if wrong not in (new, old):
            return wrong
    return new


def _mutate(text: str, rng: random.Random) -> str:
    """Return `text` with one digit or one operator changed, or unchanged if it has none."""
    digits = list(re.finditer(r"\d", text))
    if digits and rng.random() < 0.5:
        match = rng.choice(digits)
        digit = str(min(9, max(0, int(match[0]) + rng.choice((-1, 1)))))
        return text[: match.start()] + digit + text[match.end() :]
    swaps = [(old, new) for old, new in OPERATOR_SWAPS if old in text]
    if not swaps:
        return text
    old, new = rng.choice(swaps)
    return text.replace(old, new, 1)
