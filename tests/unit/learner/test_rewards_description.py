"""What remote judges are told, and where a run's committee comes from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tests.support.unswappable import Unswappable

from oven_core.errors import ConfigError
from oven_learner.link.find_controller import Connection
from oven_learner.rewards import Committee, ModelDescription, convene
from oven_learner.rewards.verdicts import Abstention, Cost
from oven_recipes.grpo.sorting_task import RULES, WEIGHTS


def test_descriptions_read_sizes_from_the_model() -> None:
    model: Any = torch.nn.Linear(1000, 1000)
    description = ModelDescription.from_model(
        model, description="Sort digits.", scoring_guidance="A good answer is the digits, sorted."
    )
    assert (description.parameters, description.architecture, description.name) == (1_001_000, "Linear", "Linear")
    text = description.to_agent_prompt()
    assert text.splitlines() == [
        "Model in training: Linear, a Linear with 1 million parameters.",
        "Description: Sort digits.",
        "Modality: text",
        "Scoring: A good answer is the digits, sorted.",
    ]
    with pytest.raises(ValueError, match="description"):
        ModelDescription.from_model(model, description="")
    with pytest.raises(ValueError, match="good_answer"):
        ModelDescription.from_model(model, description="Sort digits.", good_answer="sorted")


def test_a_model_whose_config_has_no_path_is_named_after_its_class() -> None:
    model: Any = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace(name_or_path=None, vocab_size=None)
    assert ModelDescription.from_model(model, description="Sort digits.").name == "Linear"


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, settings: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"committee": settings}))
    for name, value in {"OVEN_URL": "nats://127.0.0.1:1", "OVEN_RUN": "r", "OVEN_RUN_DIR": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OVEN_CREDS", raising=False)


def test_a_run_without_settings_uses_only_its_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured(monkeypatch, tmp_path, {})
    made = convene(RULES, weights=WEIGHTS)
    assert made.remote is not None and made.remote.members == ()
    assert made.weights == {"exact": 1.0, "format": 0.0, "length": 0.0} and made.quorum == 1


def test_remote_members_of_the_settings_join_with_an_equal_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judge = {"provider": "openai", "model": "m"}
    configured(monkeypatch, tmp_path, {"members": {"one": judge, "two": judge}, "deadline_s": 3, "hold_after": 4})
    made = convene(RULES, weights=WEIGHTS)
    description = ModelDescription.from_model(torch.nn.Linear(1, 1), description="Sort digits.")
    assert convene(RULES, description=description).description == description.to_agent_prompt()
    assert made.weights == pytest.approx({"exact": 1 / 3, "format": 0, "length": 0, "one": 1 / 3, "two": 1 / 3})
    assert made.remote is not None and made.remote.deadline_s == 3 and made.hold_after == 4 and made.quorum == 2
    assert Connection.find().committee.members["one"].model == "m"
    configured(monkeypatch, tmp_path, {"members": {"exact": judge}})
    with pytest.raises(ConfigError, match="two members named exact"):
        convene(RULES)


def test_rules_of_the_settings_join_by_name_or_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def short(completions, **_):\n    return [float(len(c) < 3) for c in completions]\n")
    by_file = {"kind": "rule", "rule": f"{tmp_path / 'mine.py'}:short"}
    members = {"right": {"kind": "rule", "rule": "exact"}, "short": by_file}
    configured(monkeypatch, tmp_path, {"members": members})
    made = convene({})
    assert made.remote is not None and (made.remote.members, list(made.rules)) == ((), ["right", "short"])
    assert made.rules["short"](completions=["no", "never"]) == [1.0, 0.0]
    exact = made.rules["right"]
    assert exact(completions=["4 ", [{"role": "assistant", "content": "4"}], "5"], answer=["4", "4", None]) == [
        1,
        1,
        None,
    ]
    assert exact(completions=["4"]) == [None], "the data has no answers"
    with pytest.raises(ConfigError, match="two members named 'short'"):
        convene({"short": exact})
    mine.write_text("import nothere")
    with pytest.raises(ConfigError, match=r"member 'short': .*mine.py cannot be used: No module named 'nothere'"):
        convene({})


def test_the_domain_reaches_a_specialist() -> None:
    described = ModelDescription(name="m", description="Cooks.", domain="cooking")

    class DomainRecorder(Unswappable):
        members, deadline_s = ("expert",), 1.0
        judges: ClassVar[dict[str, Any]] = {}
        health: ClassVar[dict[str, Any]] = {}

        def __init__(self) -> None:
            self.domains: list[str] = []

        def ask(self, requests: Any, members: Any) -> Any:
            self.domains += [request.domain for request in requests]
            return {member: [Abstention("no_responder")] * len(requests) for member in members}

        def take_cost(self) -> Cost:
            return Cost()

        def close(self) -> None: ...

    for text, domain in ((described, "cooking"), ("A model that cooks.", "")):
        recorder: Any = DomainRecorder()  # of the seam no more than this needs
        committee = Committee({}, remote=recorder, description=text)
        committee.group_size = 1
        committee(["p"], ["c"])
        assert recorder.domains == [domain]
