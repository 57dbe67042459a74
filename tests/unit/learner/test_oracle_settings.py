"""The recipe's settings and starts: whose defaults hold, and what is said of values that cannot be."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from oven_recipes.oracle.settings import OracleSettings


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"calibration_lambda": 1.01}, "less than or equal to 1"),
        ({"layer_percents": (25, 100)}, "Input should be less than 100"),
        ({"model": "./nowhere"}, "neither a folder nor a hub id; use a model's folder, or an id like owner/name"),
        ({"oracle_lora_path": "owner/adapter"}, "set its model with --model"),
        ({"questions": "nowhere.jsonl"}, "wildchat_question, language and oracle_questions"),
        ({"benchmarks": "nowhere"}, "is not a folder"),
        ({"most_activations": 21}, "less than or equal to 20"),
        ({"num_generations": 1}, "greater than or equal to 2"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        OracleSettings.model_validate(values)


def test_listing_it_needs_no_torch() -> None:
    code = "import sys, oven_recipes.oracle.recipe; print('torch' in sys.modules, 'peft' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
