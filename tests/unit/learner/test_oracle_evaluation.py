"""An oracle on the benchmarks: what it is asked with, how its answers are scored, and what the commands say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import benchmark_files
from tests.support.attached import THIRD_PARTY

from oven_controller.cli.main import run
from oven_core.errors import ConfigError
from oven_recipes.activations.capture import capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items, metric_specs
from oven_recipes.oracle.evaluation_scores import ScorableAnswer, compute_scores
from oven_recipes.oracle.generated_answers import generate_answers
from oven_recipes.oracle.saved_oracle import TrainingRecord, load_oracle, save_oracle
from oven_recipes.oracle.small_model import Sizes, build_model, build_tokenizer
from oven_recipes.oracle.user_model import fresh_adapter

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SMALL = Sizes(hidden=16, ffn=32, layers=4, heads=2)


@pytest.fixture(scope="module")
def oracle() -> tuple[Any, Any]:
    """A policy with an adapter that changes something, and its tokenizer."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    policy = fresh_adapter(build_model(SMALL, tokenizer), 2)
    for name, weight in policy.named_parameters():
        weight.data.normal_(std=0.3 if "lora_" in name else 0.5 / weight.shape[-1] ** 0.5)
    return policy.eval(), tokenizer


@pytest.fixture(scope="module")
def saved(oracle: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with that oracle in it."""
    run_folder = tmp_path_factory.mktemp("run")
    save_oracle(*oracle, run_folder, TrainingRecord(max_completion_length=4, layer_percents=(25, 50, 75)))
    return run_folder


def test_answers_do_not_depend_on_the_batch(oracle: tuple[Any, Any]) -> None:
    policy, tokenizer = oracle
    injection = ActivationInjection(policy, tokenizer)
    texts = ["the film was very good", "rome is in italy", "the boys are happy in the park", "anna flew to cairo"]
    activations = capture(policy, tokenizer, texts, [1, 2], tokens=6)
    questions = [("is this statement true?", "does this text name a person?")[n % 2] for n in range(len(activations))]
    ask: dict[str, Any] = {"max_new_tokens": 5}
    together = generate_answers(policy, tokenizer, injection, activations, questions, **ask)
    alone = [
        generate_answers(policy, tokenizer, injection, [activation], [question], **ask)[0]
        for activation, question in zip(activations, questions, strict=True)
    ]
    assert together == alone
    assert together == generate_answers(policy, tokenizer, injection, activations, questions, rows=3, **ask)
    assert len(set(together)) > 1  # the vectors make a difference
    drawn = [
        generate_answers(policy, tokenizer, injection, activations, questions, temperature=2.0, seed=seed, **ask)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    injection.remove()


def test_scores_are_those_of_the_answers_one_by_one() -> None:
    rng = random.Random(3)
    answers = [
        ScorableAnswer(n // 3, None if n % 10 == 0 else rng.randrange(101) / 100, rng.random() < 0.6)
        for n in range(300)
    ]
    result = compute_scores(answers)
    stated = [(answer.confidence, float(answer.is_correct)) for answer in answers if answer.confidence is not None]
    bins = [[(c, y) for c, y in stated if min(int(round(c * 100) // 10), 9) == index] for index in range(10)]
    gaps = [abs(sum(c - y for c, y in bin_rows)) for bin_rows in bins]
    assert result.unparsed == 30
    assert result.accuracy.value == pytest.approx(sum(answer.is_correct for answer in answers) / 300)
    assert result.brier is not None and result.ece is not None and result.mce is not None
    assert result.brier.value == pytest.approx(sum((c - y) ** 2 for c, y in stated) / 270, abs=1e-12)
    assert result.ece.value == pytest.approx(sum(gaps) / 270, abs=1e-12)
    assert result.mce.value == pytest.approx(
        max(gap / len(bin_rows) for gap, bin_rows in zip(gaps, bins, strict=True)), abs=1e-12
    )
    assert [row.count for row in result.bins] == [len(bin_rows) for bin_rows in bins]


def test_intervals_hold_the_truth_as_often_as_they_say_for_texts_and_not_for_answers() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(40):
        texts = rng.random(80) < 0.7  # three answers about a text are alike
        result = compute_scores(
            [ScorableAnswer(n, 0.7, bool(right)) for n, right in enumerate(texts) for _ in range(3)]
        )
        held += result.accuracy.low <= 0.7 <= result.accuracy.high
    assert held >= 33  # 95 % of 40 is 38; below 33 with a probability of .002


def test_a_saved_oracle_is_the_one_that_was_saved(oracle: tuple[Any, Any], saved: Path, tmp_path: Path) -> None:
    policy, tokenizer = oracle
    batch = tokenizer("rome is in italy", return_tensors="pt")
    for path in (saved, saved / "oracle"):
        loaded = load_oracle(path)
        assert loaded.record.max_completion_length == 4
        assert torch.equal(loaded.model(**batch).logits, policy(**batch).logits)
        with loaded.model.disable_adapter(), policy.disable_adapter():
            assert torch.equal(loaded.model(**batch).logits, policy(**batch).logits)
    checkpoint = saved / "checkpoints" / "checkpoint-5"
    policy.save_pretrained(checkpoint)
    assert load_oracle(saved).path == saved / "oracle"  # the trainer writes its state last: it is not finished
    (checkpoint / "trainer_state.json").write_text("{}")
    assert load_oracle(saved).path == checkpoint == load_oracle(checkpoint).path
    with pytest.raises(ConfigError, match="contains no oracle"):
        load_oracle(tmp_path)
    (saved / "oracle" / "oracle.json").rename(tmp_path / "kept")
    (saved / "oracle" / "oracle.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        load_oracle(saved)
    (tmp_path / "kept").rename(saved / "oracle" / "oracle.json")


def test_evaluate_writes_json_and_a_diagram(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = benchmark_files.publish(tmp_path / "benchmarks")
    for name in ("sst2", "snli"):
        for path in (published / name).iterdir():
            path.unlink()
        (published / name).rmdir()
    with pytest.raises(SystemExit) as ended:
        run(["oracle", "evaluate", str(saved), "--benchmarks", str(published), "--items", "20", "--out", str(tmp_path),
             "--layer-percents", "25,75", "--json"])  # fmt: skip
    assert not ended.value.code
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "evaluation.json").read_text())
    sources = {name: benchmark["source"] for name, benchmark in report["benchmarks"].items()}
    assert {name: source for name, source in sources.items() if source == "templates"} == {
        "sst2": "templates", "snli": "templates"
    }  # fmt: skip
    assert report["overall"]["count"] == 9 * 20 * 2 and set(report["depths"]) == {"25", "75"}
    assert report["benchmarks"]["ner"]["unknown_tokens"] > 0
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_ask_prints_each_depths_answer_and_the_users_mistakes(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["oracle", "ask", "rome is in italy", "is this statement true?", "--run", str(saved)]
    with pytest.raises(SystemExit) as ended:
        run([*command, "--json"])
    assert not ended.value.code
    assert [answer["depth"] for answer in json.loads(capsys.readouterr().out)["answers"]] == [25, 50, 75]
    for wrong, message in (
        (["oracle", "ask", " ", "-r", str(saved)], "the text is empty"),
        (["oracle", "ask", "rome", "-r", str(saved)], "fewer than the required 2 tokens"),
        ([*command[:3], " ", *command[4:]], "the question is empty"),
        ([*command, "--layer-percents", "100"], "use numbers from 0 to below 100"),
        ([*command[:3], "is " * 200, *command[4:]], "exceeds the model's 160 positions"),
        (["oracle", "ask", "rome", "-r", str(saved / "none")], "is not a folder"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(wrong)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_evaluating_keeps_the_generator_and_the_mode(oracle: tuple[Any, Any]) -> None:
    policy, tokenizer = oracle
    injection = ActivationInjection(policy, tokenizer)
    policy.train()
    before = torch.get_rng_state()
    evaluation = OracleEvaluation(policy, tokenizer, injection, benchmark_items(count=20), max_new_tokens=2)
    result = evaluation.run()
    assert torch.equal(torch.get_rng_state(), before) and policy.training
    policy.eval()
    injection.remove()
    assert len(result.answers) == len(result.shuffled) == 9 * 20 * 3
    assert result.overall.unparsed == result.overall.count and result.overall.ece is None
    measured = result.metrics()
    assert set(measured) < {spec.name for spec in metric_specs()}  # no calibration of answers that do not parse
    assert set(evaluation.unknown_share.values()) == {0.0}
