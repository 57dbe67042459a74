"""What remote judges are told, and where a run's committee comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from oven_controller.errors import ConfigError
from oven_learner.link.find_controller import Connection
from oven_learner.recipes.grpo.rewards import RULES, WEIGHTS, looks_right, right_length
from oven_learner.rewards import ModelDescription, convene


def test_what_can_be_read_off_a_model_is_and_the_rest_is_left_out() -> None:
    model: Any = torch.nn.Linear(1000, 1000)
    found = ModelDescription.from_model(model, task="Sort digits.", good_answer="the digits, sorted")
    assert (found.parameters, found.architecture, found.name) == (1_001_000, "Linear", "Linear")
    text = found.to_agent_prompt()
    assert text.splitlines() == [
        "Model in training: Linear, a Linear with 1 million parameters.",
        "Task: Sort digits.",
        "A good answer: the digits, sorted",
    ]
    with pytest.raises(ValueError, match="task"):
        ModelDescription.from_model(model, task="")


def test_the_rules_that_are_measured() -> None:
    assert looks_right(["012", "", "0S2", "²"]) == [1.0, 0.0, 0.0, 0.0]
    assert right_length(["012", "", "01", "0123456789"], ["345"] * 4) == pytest.approx([1.0, 0.0, 2 / 3, 0.0])


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, settings: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"committee": settings}))
    for name, value in {"OVEN_URL": "nats://127.0.0.1:1", "OVEN_RUN": "r", "OVEN_RUN_DIR": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OVEN_CREDS", raising=False)


def test_a_run_without_settings_has_the_rules_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured(monkeypatch, tmp_path, {})
    made = convene(RULES, weights=WEIGHTS)
    assert made.remote is None and made.weights == {"exact": 1.0, "format": 0.0, "length": 0.0} and made.quorum == 1


def test_remote_members_of_the_settings_join_with_an_equal_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judge = {"api": "openai", "model": "m"}
    configured(monkeypatch, tmp_path, {"members": {"one": judge, "two": judge}, "deadline_s": 3, "hold_after": 4})
    made = convene(RULES, weights=WEIGHTS)
    assert made.weights == pytest.approx({"exact": 1 / 3, "format": 0, "length": 0, "one": 1 / 3, "two": 1 / 3})
    assert made.remote is not None and made.remote.deadline_s == 3 and made.hold_after == 4 and made.quorum == 2
    assert Connection.find().committee.members["one"].model == "m"
    configured(monkeypatch, tmp_path, {"members": {"exact": judge}})
    with pytest.raises(ConfigError, match="two members named exact"):
        convene(RULES)
