"""Each setting of a recipe as a flag of `up`: dashes or underscores, switches, lists, and unknown ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel
from tests.support.own_home import invoke, own_home

from oven_core.errors import ConfigError
from oven_runs.settings.recipe_flags import flag_layers


class Options(BaseModel):
    beta: float = 0.0
    initial_eval: bool = True
    layers: tuple[int, ...] = (25, 50)
    model: Path | None = None
    steps: int | None = None
    stage: Literal["sft", "grpo"] = "grpo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)


def parsed(**flags: str | bool) -> Options:
    merged = {}
    for layer in flag_layers(Options, flags):
        merged.update(layer.values["recipe_options"])
    return Options.model_validate(merged)


def test_values_are_read_by_the_setting_s_type() -> None:
    options = parsed(beta="1e-6", initial_eval=False, layers="25,50,75", model="12", steps="none", stage="sft")
    assert options == Options(
        beta=1e-6, initial_eval=False, layers=(25, 50, 75), model=Path("12"), steps=None, stage="sft"
    )
    assert parsed(layers="[1]", model="none", beta=".05") == Options(layers=(1,), beta=0.05)
    with pytest.raises(ConfigError, match=r"--layers 1,\]: the value is not valid YAML"):
        parsed(layers="1,]")


@pytest.mark.parametrize("beta", ["--beta", "--recipe_options"])
def test_an_unknown_flag_gets_the_nearest_setting(capsys: pytest.CaptureFixture[str], beta: str) -> None:
    assert invoke("up", "--headless", "--group_sise", "4", beta, "1") == 2
    assert "--group-size" in capsys.readouterr().err


def test_a_flag_is_the_setting_and_its_error_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--recipe", "pretrain", "--weight_decay", ".05", "--betas=.9,.99", "--max-steps", "7"]
    assert invoke("up", "--headless", "--dry-run", *flags) == 0
    output = capsys.readouterr().out
    assert all(line in output for line in ("weight_decay: 0.05", "- 0.99", "max_steps: 7")), output
    assert invoke("up", "--recipe", "pretrain", "--context", "1") == 2
    assert "recipe_options.context = 1 (--context): it should be" in capsys.readouterr().err
    assert invoke("up", "--no-learner", "--beta", "1") == 2
    assert "--beta has no effect with --no-learner" in capsys.readouterr().err
