"""The recipe's settings and starts: whose defaults hold, and what is said of values that cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oven_recipes.oracle.settings import NAMES, OWN_MODEL, OracleSettings, parse_start


def test_the_seeds_values_hold_for_a_given_model_and_others_for_one_made_on_the_spot(tmp_path: Path) -> None:
    given, own = OracleSettings(model=str(tmp_path)), OracleSettings()
    assert (given.num_generations, given.kl_penalty, given.lr, given.calibration_lambda) == (8, 0.05, 1e-6, 0.5)
    assert (given.lora_rank, given.temperature, given.layer_percents) == (64, 0.9, (25, 50, 75))
    assert all(getattr(own, name) == value != getattr(given, name) for name, value in OWN_MODEL.items())
    assert OracleSettings(lr=2e-6).lr == 2e-6, "what is given goes before either"
    assert own.model_dump(exclude_unset=True) == {}, "a run records what was asked for"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"calibration_lambda": 1.01}, "less than or equal to 1"),
        ({"layer_percents": (25, 100)}, "a layer at 100 % of the depth: give 0 or more, and less than 100"),
        ({"model": "./nowhere"}, "neither a folder nor a hub id; give a model's folder, or an id like owner/name"),
        ({"oracle_lora_path": "owner/adapter"}, "name its model with --model"),
        ({"questions": "nowhere.jsonl"}, "wildchat_question, language, oracle_questions"),
        ({"benchmarks": "nowhere"}, "is not a folder"),
        ({"most_activations": 21}, "less than or equal to 20"),
        ({"num_generations": 1}, "greater than or equal to 2"),
    ],
)
def test_values_that_cannot_be(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        OracleSettings.model_validate(values)


def test_starts(tmp_path: Path) -> None:
    settings = OracleSettings()
    starts = {name: parse_start(name, settings) for name in NAMES}
    assert {name for name, start in starts.items() if start.label} == set(NAMES) - {"tuned"}
    assert [starts[name].confidence for name in NAMES] == ["spread", "constant", "overconfident", "spread"]
    assert starts["drill:lr-high"].learning_rate == 10 * settings.lr
    with pytest.raises(ValueError, match="nearest: drill:overconfident"):
        parse_start("drill:over-confident", settings)
    adapted = OracleSettings(model=str(tmp_path), oracle_lora_path=str(tmp_path))
    with pytest.raises(ValueError, match="leave --oracle-lora-path out"):
        parse_start("drill:overconfident", adapted)
    assert parse_start("drill:lr-high", adapted).label


def test_listing_it_needs_no_torch() -> None:
    code = "import sys, oven_recipes.oracle.recipe; print('torch' in sys.modules, 'peft' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
