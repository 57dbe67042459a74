"""attach next to other versions of TRL, transformers and Lightning, each in its own virtual environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oven_bench.stacks.command import check, problems
from oven_bench.stacks.environments import STACKS, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first run installs each environment

PUBLISHED = Path(__file__).parents[3] / "docs" / "stacks.json"


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_attach_works_next_to_this_version_as_published(stack: Stack) -> None:
    row = check(stack)
    assert problems(row) == []
    published = {row["stack"]: row for row in json.loads(PUBLISHED.read_text())}[stack.name]
    results, expected = (
        {training["name"]: (bool(training["failure"]), len(training["sentences"])) for training in each["trainings"]}
        for each in (row, published)
    )
    assert results == expected, "run `oven-controller bench stacks --rows docs/stacks.json` and docs/generate.py"
