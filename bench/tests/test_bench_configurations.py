"""`bench configurations`: its table, its comparison, and a few configurations played in both arms."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from tests.support.attached import THIRD_PARTY, trainer
from tests.support.installed import installed
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oven_bench.configurations import command
from oven_bench.configurations import comparison as played
from oven_bench.configurations.bitwise_diff import first_difference, leaves
from oven_bench.configurations.command import STUDY, report, selected
from oven_bench.configurations.comparison import Result, play
from oven_bench.configurations.configuration import DEFAULT, Configuration, load, resumed
from oven_core.errors import ConfigError

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
__all__ = ["installed"]

NEEDED = 81
"""Configurations that the table has at least."""


def test_the_table_has_enough_configurations_with_names_of_their_own() -> None:
    names = [configuration.name for configuration in load(DEFAULT)]
    assert len(names) == len(set(names)) >= NEEDED
    families = {name.partition("/")[0] for name in names}
    assert {"trainer", "sft", "dpo", "kto", "reward", "grpo", "rloo", "distillation"} <= families
    assert sum(bool(configuration.on_purpose) for configuration in load(DEFAULT)) == 2


def test_a_name_that_is_not_there_and_a_table_that_is_not_there(tmp_path: Path) -> None:
    assert selected(DEFAULT, "grpo/loss_dr_grpo, kto/plain") == [
        "kto/plain",
        "grpo/loss_dr_grpo",
        "grpo/loss_dr_grpo_iterations",
    ]
    with pytest.raises(ConfigError, match="no configuration begins with gpro"):
        selected(DEFAULT, "gpro")
    with pytest.raises(ConfigError, match="no table"):
        load(tmp_path / "none.py")
    table = tmp_path / "table.py"
    table.write_text("")
    with pytest.raises(ConfigError, match="no CONFIGURATIONS"):
        load(table)
    again = tmp_path / "again.py"
    again.write_text(
        "from oven_bench.configurations.configuration import Configuration\n"
        "CONFIGURATIONS = [Configuration('a/b', print), Configuration('a/b', print)]\n"
    )
    with pytest.raises(ConfigError, match="more than one configuration named a/b"):
        load(again)


def test_names_are_listed_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.run(["--list", "--only", "orpo"]) == 0
    assert capsys.readouterr().out.split()[1:4] == ["orpo/plain", "orpo/accumulation", "orpo/evaluation"]


def test_every_kind_of_difference_is_found(tmp_path: Path) -> None:
    """The comparison can fail: one bit of one weight is enough."""
    job = trainer(tmp_path, max_steps=2, logging_steps=1)
    job.train()
    result = leaves(job, tmp_path)
    assert first_difference(result, leaves(job, tmp_path)) is None
    weight = next(name for name in result if name.startswith("model/") and result[name].numel() > 3)

    def changed(path: str, value: Any) -> str:
        difference = first_difference(result, {**result, path: value})
        assert difference is not None
        return str(difference)

    nudged = result[weight].clone()
    nudged.view(torch.int32).flatten()[3] ^= 1
    assert f"{weight}: " in changed(weight, nudged) and "in entry 3 of" in changed(weight, nudged)
    assert changed(weight, result[weight].double()).startswith(f"{weight}: torch.float32")
    assert changed("log/0/loss", result["log/0/loss"] * (1 + 2**-50)).startswith("log/0/loss: ")
    assert changed("optimizer/state/0/exp_avg", result["optimizer/state/0/exp_avg"] + 1.0)
    assert changed("schedule/last_epoch", 7) == "schedule/last_epoch: 2 alone, 7 attached"
    assert changed("random/numpy/1", np.zeros_like(result["random/numpy/1"]))
    assert changed("random/torch", result["random/torch"].flip(0))
    assert changed("random/python", "()") and changed("state/epoch", None)
    assert changed("log/2/extra", 1.0) == "log/2/extra: absent alone, present attached"
    assert not [name for name in result if "runtime" in name or "per_second" in name]


def test_numbers_are_compared_by_their_bits() -> None:
    nan = float("nan")
    assert first_difference({"a": nan, "b": torch.tensor(nan)}, {"a": nan, "b": torch.tensor(nan)}) is None
    assert first_difference({"a": 0.0}, {"a": -0.0}) is not None
    assert first_difference({"a": 1}, {"a": 1.0}) is not None
    assert first_difference({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)}) is not None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["trainer/resume_dropout", "grpo/rewards_weighted", "dpo/loss_sigmoid", "a2po/plain"])
def test_attached_in_observe_is_the_same_training(name: str) -> None:
    result = play(next(configuration for configuration in load(DEFAULT) if configuration.name == name))
    assert (result.outcome, result.why) == ("equal", "")
    assert result.steps in (3, 4) and result.gradient > 0 and result.ticks >= result.steps and result.compared > 50


def toy(folder: Path) -> Trainer:
    return trainer(folder, max_steps=3, logging_steps=1)


@pytest.mark.usefixtures("installed")
def test_a_training_that_attaching_changes_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an attachment that moves a weight by one bit, or draws one number, is found."""
    attaching = played.attachment

    class Meddling(TrainerCallback):
        def on_train_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
        ) -> None:
            next(kwargs["model"].parameters()).data.view(torch.int32)[0, 0] ^= 1

    def meddles(link: Any) -> Any:
        def attach(job: Trainer) -> None:
            attaching(link)(job)
            job.add_callback(Meddling())

        return attach

    def draws(link: Any) -> Any:
        def attach(job: Trainer) -> None:
            attaching(link)(job)
            torch.rand(1)

        return attach

    monkeypatch.setattr(played, "attachment", meddles)
    result = play(Configuration("toy/plain", toy))
    assert result.outcome == "differs" and result.why.startswith("model/body.0.weight: ")
    on_purpose = play(Configuration("toy/plain", toy, on_purpose="it is meant to"))
    assert on_purpose.outcome == "differs on purpose" and on_purpose.why.startswith("it is meant to (model/")
    monkeypatch.setattr(played, "attachment", draws)
    assert play(Configuration("toy/plain", toy)).outcome == "differs"


@pytest.mark.usefixtures("installed")
def test_what_was_not_seen_and_what_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path) -> Trainer:
        raise ImportError("no module named liger_kernel")

    assert (
        play(Configuration("toy/missing", missing))
        .line()
        .startswith("toy/missing: cannot run here: ImportError: no module named liger_kernel")
    )
    assert play(Configuration("toy/unsaved", toy, resumed)).outcome == "cannot run here"
    monkeypatch.setattr(played, "attachment", lambda link: lambda job: None)
    blind = play(Configuration("toy/plain", toy))
    assert (blind.outcome, blind.why) == ("failed", "the last step that was observed is none; 3 were trained")

    def complaining(job: Trainer) -> None:
        logging.getLogger("oven.agent").error("lr: the agent raised")

    monkeypatch.setattr(played, "attachment", lambda link: complaining)
    assert play(Configuration("toy/plain", toy)).why == "attached, it logged an error: lr: the agent raised"

    def refused(job: Trainer) -> None:
        raise ConfigError("this trainer is attached already")

    monkeypatch.setattr(played, "attachment", lambda link: refused)
    assert "FAILED: attached, it raised ConfigError: this trainer" in play(Configuration("toy/plain", toy)).line()


def test_totals_and_failures() -> None:
    equal = Result("a/b", "equal", ticks=3, steps=3, compared=9, votes=2, barred=1)
    cannot = Result("c/d", "cannot run here", "ImportError: x")
    on_purpose = Result("e/f", "differs on purpose", "it resumes better")
    wrong = replace(equal, name="g/h", outcome="differs", why="model/x: 1.0 alone, 2.0 attached")
    assert not report([equal, cannot, on_purpose]).failures and report([cannot]).failures
    result = report([equal, cannot, on_purpose, wrong])
    assert result.failures == [wrong.line()]
    assert (result.figures["configurations"], result.figures["equal"], result.figures["differs"]) == (2, 1, ["g/h"])
    assert result.figures["differs_on_purpose"] == ["e/f"] and result.figures["cannot_run_here"] == ["c/d"]
    assert result.figures["equal_without_gradient"] == ["a/b"]
    assert [result.figures[name] for name in ("steps_observed", "votes", "decisions_turned_down")] == [6, 4, 2]


def test_the_command_prints_its_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "play_named", lambda table, name: Result(name, "equal", ticks=3, gradient=0.5))
    assert STUDY.run(["--only", "trainer/plain", "--jobs", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["equal"] == 1 and "trainer/plain: equal" in printed.err
