"""`bench stacks`: does `attach` work next to other versions of TRL, transformers and Lightning?

`--rows docs/stacks.json` updates the results from which docs/generate.py writes the table of compatible versions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from oven_bench.stacks.environments import STACKS, Stack, open_environment
from oven_bench.study import Report, Study, comma_separated, jobs_option, run_tasks
from oven_core.errors import ConfigError

APPLIED: Final = "applied, read back as 0.5, rate × 0.5"
EQUAL: Final = "equal"


def check(stack: Stack) -> dict[str, Any]:
    """Check one stack in its environment. Return its row. Raises ConfigError if the environment cannot be created."""
    environment = open_environment(stack)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "outcomes.json")
        environment.run("oven_bench.stacks.checks", [stack.kind, str(file)], Path(scratch))
        outcomes = json.loads(file.read_text())
    return {
        "stack": stack.name,
        "requirements": list(stack.requirements),
        "versions": environment.versions,
        "trainings": outcomes,
    }


def problems(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a stack, one sentence each. A training that fails without us is not a problem."""
    sentences = []
    works = [outcome for outcome in row["trainings"] if not outcome["failure"]]
    for outcome in works:
        where = f"{row['stack']}: {outcome['name']}"
        if outcome["observed"] != EQUAL:
            sentences.append(f"{where} differs when attached in observe: {outcome['observed']}")
        if outcome["decision"] != APPLIED:
            sentences.append(f"{where}: the decision was {outcome['decision']}, expected {APPLIED}")
        if outcome["replayed"] != EQUAL:
            sentences.append(f"{where}: the replay {outcome['replayed']}")
    return sentences or ([] if works else [f"{row['stack']}: no training works without us"])


@click.option(
    "--only", default="", metavar="PREFIX,…", show_default="all", help="Prefixes of names, e.g. TRL,Lightning."
)
@jobs_option(1)
def bench(only: str, jobs: int) -> Report:
    prefixes = tuple(comma_separated(only))
    stacks = [stack for stack in STACKS if not prefixes or stack.name.startswith(prefixes)]
    if not stacks:
        names = ", ".join(stack.name for stack in STACKS)
        raise ConfigError(f"no stack begins with {' or '.join(prefixes)}; the names are {names}")
    rows = sorted(run_tasks(check, stacks, jobs, describe=_describe, failed=_failed), key=_position)
    failures = [sentence for row in rows for sentence in problems(row)]
    trainings: Sequence[Any] = [outcome for row in rows for outcome in row["trainings"]]
    figures = {
        "stacks": len(rows),
        "trainings": len(trainings),
        "equal": sum(outcome["observed"] == EQUAL for outcome in trainings),
        "applied": sum(outcome["decision"] == APPLIED for outcome in trainings),
        "replayed": sum(outcome["replayed"] == EQUAL for outcome in trainings),
        "fail_without_us": sum(bool(outcome["failure"]) for outcome in trainings),
    }
    return Report(figures, rows, failures)


def _failed(stack: Stack, error: Exception) -> dict[str, Any]:
    training = {"name": "environment", "failure": str(error), "observed": "", "decision": "", "replayed": ""}
    return {
        "stack": stack.name,
        "requirements": list(stack.requirements),
        "versions": {},
        "trainings": [training | {"sentences": []}],
    }


def _position(row: Mapping[str, Any]) -> int:
    return [stack.name for stack in STACKS].index(row["stack"])


def _describe(row: Mapping[str, Any]) -> str:
    return f"{row['stack']}: {'; '.join(problems(row)) or 'works'}"


STUDY = Study(
    "stacks",
    bench,
    "--only Lightning",
    "Creates a virtual environment for each stack under ~/.cache/oven-controller, 4 GB in all. Exit code 1: a training "
    "differs, or a decision or a replay fails.",
)
