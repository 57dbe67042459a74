"""Which action of a pair was the better one: both are tried in the environment, and the tests are run after each."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from oven_recipes.environments.instance import Instance
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.environments.session import RepairSession, Tests
from oven_runs.traces.records import Message, Pair, Trace

EDIT: Final = "edit"
"""The only tool that changes what tests see."""


def directions(
    traces: Sequence[Trace], pairs: Sequence[Pair], instances: Mapping[str, Instance], tests: Tests | None = None
) -> dict[str, Any]:
    """Rule → pairs whose preferred action leaves more tests passing ("right"), fewer ("wrong"), or as many ("same"),
    of those in which one action is an edit; "untried": the others. `instances`: the traces' tasks by their ids."""
    by_id = {trace.id: trace for trace in traces}
    runner = tests or SandboxedTests()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        trace = by_id[pair.trace]
        if not any(call.name == EDIT for one in (pair.chosen, pair.rejected) for call in one.calls):
            found[pair.rule]["untried"] += 1
            continue
        chosen, rejected = (
            _passing(trace, pair.step, action, instances, runner) for action in (pair.chosen, pair.rejected)
        )
        found[pair.rule]["right" if chosen > rejected else "wrong" if chosen < rejected else "same"] += 1
    return {rule: dict(counted) for rule, counted in found.items()}


def _passing(trace: Trace, step: int, action: Message, instances: Mapping[str, Instance], tests: Tests) -> int:
    """Tests that pass after the trace's steps before this one, and then the action."""
    instance = instances[trace.task.id]
    session = RepairSession(instance, instance.files, tests)
    for message in (*(one.action for one in trace.steps[:step]), action):
        for call in message.calls:
            session.call(call.name, _arguments(call.arguments))
    return session.passing


def _arguments(text: str) -> dict[str, Any]:
    """What a call was given; nothing, where that is not an object: the environment says so."""
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
