"""The pretraining recipe: its corpus and split, bits a byte, starts and settings, and a run from end to end."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, equal, weights

from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.client.held_out_evaluation import means
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink
from oven_recipes.pretrain import corpus, tokens
from oven_recipes.pretrain.corpus import SubCorpus
from oven_recipes.pretrain.recipe import RECIPE
from oven_recipes.pretrain.settings import (
    TUNED_LEARNING_RATE,
    PretrainSettings,
    parse_start,
)
from oven_recipes.pretrain.training_job import bits_per_byte, build, held_out_rows
from oven_recipes.recipe_interface import TrainingRequest
from oven_recipes.training_runner import Job

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "and", "größer", "日本", "runs", "again")
TINY: dict[str, Any] = {
    "vocabulary": 300, "context": 16, "hidden": 16, "layers": 1, "heads": 2, "ffn": 32, "batch": 4, "eval_every": 4,
    "eval_rows": 8, "lr_warmup_steps": 2,
}  # fmt: skip


def text(seed: int, words: int = 120) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words)) + "\n"


def write(folder: Path, **files: str) -> Path:
    """`a__b="…"` is the file b.txt in the folder a."""
    for name, content in files.items():
        path = folder / (name.replace("__", "/") + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def parts_of(folder: Path, share: float = 0.2, most: int = 10**6) -> list[SubCorpus]:
    return corpus.read(folder, share, most)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {f"{part}__{n}": text(n + 100 * seed) for seed, part in enumerate(("one", "two")) for n in range(8)}
    return write(tmp_path_factory.mktemp("corpus"), **files)


@dataclass(frozen=True)
class Home:
    corpus: Path
    cache: Path

    def job(self, workdir: Path, seed: int = 1, start: str = "tuned", **settings: Any) -> Job:
        options = PretrainSettings.model_validate({**TINY, "corpus": self.corpus, "max_steps": 8, **settings})
        return build(options, parse_start(start, seed, options), seed, workdir, self.cache)


@pytest.fixture(scope="module")
def home(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(folder, tmp_path_factory.mktemp("cache"))


def test_whole_files_are_held_out_and_none_is_on_both_sides(folder: Path) -> None:
    for part in parts_of(folder):
        trained, held = {file.path for file in part.train}, {file.path for file in part.held_out}
        assert trained and held and not trained & held and len(trained | held) == 8
        assert (
            0.2
            <= sum(f.byte_count for f in part.held_out) / sum(f.byte_count for f in (*part.train, *part.held_out))
            < 0.4
        )
    assert parts_of(folder) == parts_of(folder)


def test_a_text_under_two_names_is_on_one_side_only(tmp_path: Path) -> None:
    same = {f"a__{n}": text(n % 4) for n in range(12)}
    (part,) = parts_of(write(tmp_path, **same))
    texts = [file.text for file in (*part.train, *part.held_out)]
    assert len(texts) == len(set(texts)) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"contains no text in files of up to 1 MB; give a folder of UTF-8 text files"),
        ({"a__blank": "\n"}, "contains no text"),
        ({"one": text(1)}, "contains 1 text file, each alone in its sub-folder"),
        ({"a__1": text(1), "b__1": text(2)}, "contains 2 text files, each alone in its sub-folder"),
    ],
)
def test_a_corpus_that_cannot_be_split_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parts_of(write(tmp_path, **files))


def test_tokens_say_every_byte_and_a_damaged_cache_is_made_anew(tmp_path: Path, folder: Path) -> None:
    parts = parts_of(folder)
    first = tokens.tokenize(parts, 300, tmp_path)
    lengths = tokens.token_byte_lengths(first.tokenizer)
    for part in parts:
        for stream, files in ((first.train[part.name], part.train), (first.held_out[part.name], part.held_out)):
            assert int(lengths[stream].sum()) == sum(file.byte_count for file in files)
            assert first.tokenizer.decode(stream.tolist()) == "".join(file.text + tokens.END for file in files)
    (entry,) = tmp_path.iterdir()
    (entry / tokens.TOKENS_FILE).write_bytes(b"no tensors")
    second = tokens.tokenize(parts, 300, tmp_path)
    assert all(torch.equal(first.train[name], second.train[name]) for name in first.train)
    written_at = (entry / tokens.TOKENS_FILE).stat().st_mtime_ns
    tokens.tokenize(parts, 300, tmp_path)
    assert (entry / tokens.TOKENS_FILE).stat().st_mtime_ns == written_at


def test_bits_per_byte_is_what_a_loop_over_tokens_says(tmp_path: Path, home: Home) -> None:
    job = home.job(tmp_path)
    words = tokens.tokenize(corpus.read(home.corpus, 0.05, 10**7), 300, home.cache)
    rows = held_out_rows(words.held_out, 16, 8)
    model: Any = job.trainer.model
    model.train()
    nats, size = 0.0, 0
    for name in rows:
        for row in rows[name]:
            with torch.no_grad():
                logs = torch.log_softmax(model(input_ids=row[None]).logits[0].double(), -1)  # [length, vocabulary]
            for index in range(1, len(row)):
                nats -= float(logs[index - 1, row[index]])
                mark = int(row[index]) == words.tokenizer.eos_token_id
                size += 0 if mark else len(str(words.tokenizer.convert_ids_to_tokens(int(row[index]))))
    metrics = dict(job.evaluate())
    assert means(metrics)["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert metrics.pop("eval/weight_bits") == 32
    assert set(metrics) == {"eval/bits_per_byte", "eval/bits_per_byte/one", "eval/bits_per_byte/two"}
    assert metrics == bits_per_byte(model, rows, tokens.token_byte_lengths(words.tokenizer)), "it leaves no trace"
    assert model.training
    assert set(job.evaluate()) == {*metrics, "eval/weight_bits"}


def run(home: Home, folder: Path, line: FakeLink, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    import oven_recipes.training_runner as recipes_run

    monkeypatch.setattr(recipes_run, "attach", lambda job, **more: attach(job, link=line, **more))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    folder.mkdir(exist_ok=True)
    options = {**TINY, "corpus": str(home.corpus)}
    request: dict[str, Any] = {"start": "tuned", "seed": 1, "steps": 8, "seconds": None, "options": options}
    request |= {"folder": folder, "cache": home.cache} | fields
    RECIPE.load_training()(TrainingRequest(**request))


def test_the_recipe_trains_under_decisions(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    line = FakeLink({2: ("optimizer.weight_decay", 0.5), 3: ("data.mixture", {"one": 0.0, "two": 1.0}),
                     4: ("data.skip", 2.0), 5: ("run.rollback", 0.0)})  # fmt: skip
    run(home, tmp_path / "run", line, monkeypatch, start="drill:lr-high")
    started, ended = line.sent[0], line.sent[-1]
    assert isinstance(started, RunStarted) and isinstance(ended, RunEnded) and ended.reason == "completed"
    assert started.recipe == "pretrain" and started.horizon.max_steps == 8
    knobs = {spec.name: spec for spec in started.actuators}
    assert {"optimizer.lr_scale", "optimizer.warmup", "optimizer.weight_decay", "grad.clip", "data.mixture",
            "data.skip", "run.hold", "run.stop", "run.checkpoint", "run.rollback", "run.undo_rollback",
            "run.evaluate", "run.best", "channel.mtp", "train.quantisation"} == set(knobs)  # fmt: skip
    assert knobs["optimizer.weight_decay"].value == 0.1 and knobs["data.mixture"].choices in (
        ("one", "two"),
        ("two", "one"),
    )
    held_out = {metric.name: metric for metric in started.metrics if metric.held_out}
    assert set(held_out) == {f"eval/bits_per_byte{suffix}" for suffix in ("", "/one", "/two")}
    assert {(metric.better, metric.unit) for metric in held_out.values()} == {("down", "bits per byte")}
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 4
    evaluated = [seen.tick for seen in line.observed() if "eval/bits_per_byte" in seen.metrics]
    assert evaluated == [1, 5, 9, 13], "at the start, every fourth step, and at the end"
    rates = [seen.metrics["learning_rate"] for seen in line.observed() if "learning_rate" in seen.metrics]
    assert max(rates) == pytest.approx(10 * TUNED_LEARNING_RATE)
    assert ended.metrics["eval/bits_per_byte"] == line.observed()[-1].metrics["eval/bits_per_byte"]


def test_it_learns_and_seeds_decide(tmp_path: Path, home: Home) -> None:
    first, again, other_seed = (home.job(tmp_path, seed, max_steps=30) for seed in (1, 1, 2))
    before = means(first.evaluate())["eval/bits_per_byte"]
    for job in (first, again, other_seed):
        attach(job.trainer, link=FakeLink(), mixture=job.mixture)
        job.trainer.train()
    assert means(first.evaluate())["eval/bits_per_byte"] < 0.95 * before
    assert equal(weights(first.trainer), weights(again.trainer)) and not equal(
        weights(first.trainer), weights(other_seed.trainer)
    )


def test_a_resumed_run_ends_as_the_straight_one(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = FakeLink({2: ("data.skip", 3.0), 5: ("run.checkpoint", None)})
    run(home, tmp_path / "run", straight, monkeypatch)
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-4").is_dir()
    resumed = FakeLink(past=ResumeState(1, 5, 9, {}))
    run(home, tmp_path / "run", resumed, monkeypatch, resume=True)
    ends = [line.sent[-1] for line in (straight, resumed)]
    assert all(isinstance(end, RunEnded) and end.step == 8 for end in ends)
    assert vars(ends[0])["metrics"] == vars(ends[1])["metrics"], "bit for bit"


def test_any_configuration_makes_a_model(tmp_path: Path, home: Home) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    file.write_text(json.dumps(config))
    job = home.job(tmp_path, model=tmp_path)
    model: Any = job.trainer.model
    assert type(model).__name__ == "GPT2LMHeadModel" and model.get_input_embeddings().weight.shape == (300, 16)
    words = tokens.tokenize(corpus.read(home.corpus, 0.05, 10**7), 300, home.cache)
    predicted = torch.cat([rows[:, 1:].flatten() for rows in held_out_rows(words.held_out, 16, 8).values()])
    guess = math.log2(300) * len(predicted) / int(tokens.token_byte_lengths(words.tokenizer)[predicted].sum())
    assert means(job.evaluate())["eval/bits_per_byte"] == pytest.approx(guess, rel=0.05), "it knows nothing yet"
    for wrong, message in (
        ({**config, "n_positions": 8}, "supports 8 positions, but a row has 16"),
        ({"model_type": "none-such"}, "transformers does not know the configuration"),
        ({"model_type": "vit"}, "do not give a causal language model"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=message):
            home.job(tmp_path, model=file)
    with pytest.raises(ConfigError, match="must be a whole, even number"):
        home.job(tmp_path, hidden=15)


@given(st.integers(2, 9), st.lists(st.integers(0, 80), min_size=1, max_size=4), st.integers(1, 30))
def test_held_out_rows_repeat_no_prediction(length: int, sizes: list[int], most: int) -> None:
    streams = {str(n): torch.arange(size, dtype=torch.int32) for n, size in enumerate(sizes)}
    result = held_out_rows(streams, length, most)
    assert set(result) == {name for name, stream in streams.items() if len(stream) >= length}
    for rows in result.values():
        predicted = rows[:, 1:].flatten().tolist()
        assert len(predicted) == len(set(predicted)) and rows.shape[1] == length
