"""attach on trainers of an unknown newer version, in which private names have changed."""

from __future__ import annotations

import ast
import inspect
import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers.trainer
import trl.trainer.grpo_trainer
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, trainer, weights
from tests.support.tiny_grpo import early, grpo, vowels

import oven_learner
from oven_core.errors import ConfigError
from oven_learner import trainer_internals
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.rewards.committee import Committee
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

GRPO_NAMES = {
    "_metrics": ["own metrics"],
    "_logs": ["completions are not shown"],
    "_generate_and_score_completions": ["completions are not shown"],
    "_calculate_rewards": ["rewards are not counted", "the times of generation and rewards"],
    "_generate": ["the times of generation and rewards"],
    "_step": ["buffered"],
    "_buffered_inputs": ["buffered"],
    "_compute_loss": [],
    "_get_per_token_logps_and_entropies": [],
    "_last_loaded_step": [],
}
"""Private name of TRL's GRPOTrainer → what its sentences say without teachers."""
TRAINER_NAMES = {
    "_tr_loss": ["the trainer's own log includes the discarded steps"],
    "_globalstep_last_logged": ["the trainer's own log includes the discarded steps"],
    "set_initial_training_values": ["training ends after the planned epochs"],
    "get_batch_samples": [],
    "_get_train_sampler": [],
    "_save_optimizer_and_scheduler": [],
}


def newer(module: ModuleType, *names: str) -> Any:
    """Return a copy of a library's module in which the names are called differently."""
    source = inspect.getsource(module)
    for name in names:
        assert re.search(rf"\b{name}\b", source), f"{module.__name__} has no {name}"
        source = re.sub(rf"\b{name}\b", f"{name}_renamed", source)
    copy = ModuleType(module.__name__)
    copy.__dict__.update(__package__=module.__package__, __file__=module.__file__)
    exec(compile(source, str(module.__file__), "exec"), copy.__dict__)
    return copy


def newer_grpo(*names: str) -> Any:
    return newer(trl.trainer.grpo_trainer, *names).GRPOTrainer


def newer_trainer(*names: str) -> Any:
    return newer(transformers.trainer, *names).Trainer


def train(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> tuple[FakeLink, list[str]]:
    """Train alone, in observe and with decisions. Return the link of the latter, and the sentences of attach."""
    alone = make()  # which sets the seed
    alone.train()
    observed = make()
    attach(observed, link=FakeLink())
    observed.train()
    assert equal(weights(alone), weights(observed)), "attaching changed the training"
    decided = make()
    link = FakeLink({1: ("optimizer.lr_scale", 0.5), 2: ("run.rollback", 0.0)})
    caplog.clear()
    with caplog.at_level(logging.WARNING, "oven.learner"):
        attach(decided, link=link)
    sentences = [record.getMessage() for record in caplog.records]
    decided.train()
    return link, sentences


def check_sentences(sentences: list[str], expected: list[str], name: str) -> None:
    assert len(sentences) == len(expected), sentences
    for sentence, phrase in zip(sentences, expected, strict=True):
        assert phrase in sentence and f"`{name}`" in sentence, sentence
        assert re.search(r"; use (TRL|transformers) \d", sentence), "it says which versions have the name"


@pytest.mark.parametrize("name", GRPO_NAMES)
def test_without_a_name_of_trl_one_sentence_says_what_is_off_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    cls = newer_grpo(name)
    link, sentences = train(lambda: grpo(tmp_path, cls, lr_scheduler_type="constant"), caplog)
    check_sentences(sentences, GRPO_NAMES[name], name)
    assert [receipt.status for receipt in link.receipts()] == ["applied", "applied"]
    assert [seen.step for seen in link.observed()] == [1, 2, 1, 2, 3]
    assert link.series("learning_rate") == pytest.approx([0.01] + [0.005] * 4)
    assert ("reward" in link.observed()[0].metrics) == (name != "_metrics")


@pytest.mark.parametrize("name", TRAINER_NAMES)
def test_without_a_name_of_transformers_one_sentence_says_what_is_off_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    cls = newer_trainer(name)
    link, sentences = train(lambda: trainer(tmp_path, cls=cls, max_steps=3, lr_scheduler_type="constant"), caplog)
    check_sentences(sentences, TRAINER_NAMES[name], name)
    assert [receipt.status for receipt in link.receipts()] == ["applied", "applied"]
    assert [seen.step for seen in link.observed()] == [1, 2, 1, 2, 3]


def test_a_known_version_has_every_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, sentences = train(lambda: grpo(tmp_path), caplog)
    assert sentences == []


def test_an_evaluating_trainer_that_cannot_generate_loses_the_best_weights(tmp_path: Path) -> None:
    job = grpo(
        tmp_path, newer_grpo("_generate"), eval_strategy="steps", eval_dataset=Dataset.from_list([{"prompt": "a"}] * 4)
    )
    sentences = trainer_internals.missing_features(job, has_teachers=False)
    assert any(sentence.startswith("`run.best` is available only with") for sentence in sentences)


def test_teachers_of_an_unknown_version_are_not_measured(tmp_path: Path) -> None:
    job = grpo(tmp_path, newer_grpo("_compute_loss"))
    (sentence,) = trainer_internals.missing_features(job, has_teachers=True)
    assert sentence.startswith("the distance from inactive teachers is not measured, because the GRPOTrainer of TRL ")


def test_what_attach_is_asked_for_and_cannot_do_is_refused_before_training(tmp_path: Path) -> None:
    committee = Committee({"vowels": vowels, "early": early})
    job = grpo(tmp_path, newer_grpo("_compute_loss"), rewards=(committee,))
    with pytest.raises(ConfigError, match=r"cannot exclude unscored groups .* has no `_compute_loss`; use TRL"):
        attach(job, link=FakeLink(), committee=committee)
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    mixture = Mixture({"all": rows})
    plain = trainer(tmp_path, cls=newer_trainer("_get_train_sampler"), data=mixture.dataset)
    with pytest.raises(ConfigError, match=r"cannot set the order of the data, because transformers"):
        attach(plain, link=FakeLink(), mixture=mixture)


def test_an_online_trainer_of_another_library_is_named_and_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unsloth replaces TRL's classes by its own, and their `compute_loss` does not call `_compute_loss`."""
    replacement = newer(trl.trainer.grpo_trainer, "GRPOTrainer").GRPOTrainer_renamed
    link, sentences = train(lambda: grpo(tmp_path, replacement, lr_scheduler_type="constant"), caplog)
    (sentence,) = sentences
    assert sentence.endswith("because GRPOTrainer_renamed is none of GRPOTrainer, RLOOTrainer, SDPOTrainer")
    assert [receipt.status for receipt in link.receipts()] == ["applied", "applied"]

    def own_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        raise NotImplementedError

    committee = Committee({"vowels": vowels, "early": early})
    job = grpo(tmp_path, type("UnslothGRPOTrainer", (replacement,), {"compute_loss": own_loss}), rewards=(committee,))
    with pytest.raises(ConfigError, match="cannot exclude unscored groups from the loss"):
        attach(job, link=FakeLink(), committee=committee)


def test_an_old_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trainer_internals.OLDEST_VERSIONS, "accelerate", "999.5")
    (sentence,) = trainer_internals.missing_features(trainer(tmp_path), has_teachers=False)
    assert re.match(r"accelerate [\d.]+ is older than 999.5, the oldest supported version; ", sentence)


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (trainer_internals.sdpo_losses, "compute_topk_self_distillation_loss"),
        (trainer_internals.gold_trainer, "ULDLoss"),
    ],
)
def test_a_trl_without_an_experimental_loss_is_named(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], ModuleType], name: str
) -> None:
    monkeypatch.delattr(load(), name)
    with pytest.raises(ConfigError, match=r"^channel\.\w+ is not available, because TRL .* has no `trl\.experimental"):
        load()


def test_only_one_module_uses_private_names_of_trainers() -> None:
    """`self`, `cls` and `super()` are excepted, because subclasses override TRL's methods."""
    package = Path(inspect.getfile(oven_learner)).parent
    own = Path(inspect.getfile(trainer_internals))

    def private_names(path: Path) -> set[str]:
        accesses = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        foreign = [node for node in accesses if ast.unparse(node.value) not in ("self", "cls", "super()")]
        return {node.attr for node in foreign if re.match(r"_[a-z]", node.attr)}

    names = private_names(own) | {*GRPO_NAMES, *TRAINER_NAMES} - {"get_batch_samples", "set_initial_training_values"}
    assert {"_metrics", "_buffered_inputs", "_is_overflow"} <= names, "the test reads the right file"
    for path in [*package.rglob("*.py"), *(package.parent / "oven_recipes").rglob("*.py")]:
        if path != own:
            assert not private_names(path) & names, path
