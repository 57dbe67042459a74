"""The effects of teachers' actions: each is tried at the student's state, in the environment `repair`. Only files and
answers are compared, so no test runs and no action's code is executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_recipes.environments.instance import read_instances
from oven_recipes.environments.repositories import Repositories
from oven_recipes.environments.sandboxed_tests import Framework, Outcome
from oven_recipes.environments.session import RepairSession
from oven_runs.traces.records import Message, Reply, Trace

Replies = Mapping[int, Sequence[Reply]]
"""By step."""
Tried = Callable[[Trace, Replies], tuple[Trace, dict[int, list[Reply]]] | None]
"""(a trace, its replies) → both with each action's outcome; None if its task is not known."""


def tried_actions(tasks: Path, repositories: Path | None = None) -> Tried:
    """`tasks` are the traces' instances, `repositories` checkouts of those without files. Outcomes are digests of the
    files and the answer, so only actions with the same of both are equivalent. Raises ConfigError for a file without
    instances, and later for a missing repository."""
    known = {instance.instance_id: instance for instance in read_instances(tasks)}
    checkouts = Repositories(repositories)

    def tried(trace: Trace, replies: Replies) -> tuple[Trace, dict[int, list[Reply]]] | None:
        instance = known.get(trace.task.id)
        if instance is None:
            return None
        session = RepairSession(instance, checkouts.files(instance), Untested())
        steps, trees = [], {}
        for index, step in enumerate(trace.steps):
            if session.submitted:  # what comes after it changes nothing
                steps.append(step)
                trees[index] = list(replies.get(index, ()))
                continue
            files = dict(session.files)
            trees[index] = [
                reply
                if reply.action is None
                else reply.model_copy(
                    update={"outcome": _outcome(RepairSession(instance, files, Untested()), reply.action)}
                )
                for reply in replies.get(index, ())
            ]
            steps.append(step.model_copy(update={"outcome": _outcome(session, step.action)}))
        return trace.model_copy(update={"steps": tuple(steps)}), trees

    return tried


class Untested:
    """Runs no test: all fail, before an action and after it."""

    def outcomes(self, files: Mapping[str, str], tests: Sequence[str], framework: Framework) -> dict[str, Outcome]:
        """As in `session.Tests`."""
        return dict.fromkeys(tests, "failed")


def _outcome(session: RepairSession, action: Message) -> str:
    """Return a digest of the files and the answers, 16 hexadecimal digits; empty for an action without a call."""
    if not action.calls:
        return ""
    answers = [session.call(call.name, _arguments(call.arguments)).text for call in action.calls]
    return hashlib.sha256(json.dumps([session.digest, answers]).encode()).hexdigest()[:16]


def _arguments(written: str) -> dict[str, Any]:
    """Return the arguments; empty if they are not a JSON object, which the environment also tells the policy."""
    try:
        arguments = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
