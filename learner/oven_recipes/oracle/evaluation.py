"""Evaluates an oracle on the nine benchmarks at several depths, with texts that it was not trained on.

Each evaluation asks all questions twice, with the text's own activations, and with those of another text (shuffled).
The accuracy with shuffled activations shows how often the oracle is right without reading the activations."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.rewards.calibrated_reward import parse_oracle_output
from oven_recipes.activations.capture import MAX_TOKENS, Activation, capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.model_blocks import layer_at
from oven_recipes.oracle.benchmark_items import DEFAULT_ITEMS, published_items, template_items
from oven_recipes.oracle.benchmarks import BENCHMARKS, Item
from oven_recipes.oracle.evaluation_scores import ScorableAnswer, Scores, compute_scores
from oven_recipes.oracle.generated_answers import BATCH_ROWS, context_length, generate_answers

DEPTHS = (25.0, 50.0, 75.0)
"""Default depths, as a percentage of the model's blocks, as in the evaluation of Activation Oracles."""

Source = Literal["published files", "templates"]


class BenchmarkItems(NamedTuple):
    """A benchmark's items and their source."""

    name: str
    source: Source
    items: list[Item]


class OracleAnswer(NamedTuple):
    """One answer. `number` is the item's number in the benchmark. `depth` is a percentage of the model's blocks."""

    benchmark: str
    number: int
    depth: float
    output: str
    confidence: float | None
    """Stated confidence from 0 to 1, or None if the output cannot be parsed."""
    is_correct: bool


@dataclass(frozen=True)
class EvaluationResult:
    """All answers, with the texts' own activations and with shuffled activations."""

    answers: list[OracleAnswer]
    shuffled: list[OracleAnswer]

    @cached_property
    def overall(self) -> Scores:
        return compute_scores(to_scorable(self.answers))

    @cached_property
    def shuffled_overall(self) -> Scores:
        return compute_scores(to_scorable(self.shuffled))

    def metrics(self) -> Measurements:
        """Return the metrics. `eval/accuracy` has one value per answer, and the others are means. Calibration metrics
        are missing if no answer can be parsed."""
        metrics: dict[str, float | Sequence[float]] = {
            "eval/accuracy": [float(answer.is_correct) for answer in self.answers]
        }
        for name in dict.fromkeys(answer.benchmark for answer in self.answers):
            is_correct = [answer.is_correct for answer in self.answers if answer.benchmark == name]
            metrics[f"eval/accuracy/{name}"] = sum(is_correct) / len(is_correct)
        metrics["eval/accuracy_shuffled"] = self.shuffled_overall.accuracy.value
        overall = self.overall
        for name, estimate in (("brier", overall.brier), ("ece", overall.ece), ("mce", overall.mce)):
            if estimate is not None:
                metrics[f"eval/{name}"] = estimate.value
        if overall.ece_null is not None:
            metrics["eval/ece_null"] = overall.ece_null
        return metrics


def metric_specs() -> tuple[MetricSpec, ...]:
    """Return the specs of the metrics in `EvaluationResult.metrics`. `eval/accuracy_shuffled` is 0.5 for guessing.
    `eval/ece_null` is the expected ECE of a perfectly calibrated forecaster."""
    accuracies = ("eval/accuracy", *(f"eval/accuracy/{name}" for name in BENCHMARKS))
    return (
        *(MetricSpec(name=name, better="up", held_out=True, ceiling=1.0) for name in accuracies),
        MetricSpec(name="eval/accuracy_shuffled", better="neither", held_out=True),
        *(MetricSpec(name=f"eval/{name}", better="down", held_out=True) for name in ("brier", "ece", "mce")),
        MetricSpec(name="eval/ece_null", better="neither", held_out=True),
    )


def benchmark_items(folder: Path | None = None, count: int = DEFAULT_ITEMS) -> list[BenchmarkItems]:
    """Return `count` items of each benchmark. They come from published files if `folder` contains a folder with the
    benchmark's name, and otherwise from templates. Raises ConfigError if `folder` or its files cannot be used."""
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--benchmarks {folder} is not a folder; create it, or omit the option")
    if folder is not None and not any((folder / name).is_dir() for name in BENCHMARKS):
        raise ConfigError(
            f"--benchmarks {folder} contains no benchmark; add folders with published files named "
            f"{', '.join(BENCHMARKS)}, or omit the option to evaluate on templates"
        )
    result = []
    for name, benchmark in BENCHMARKS.items():
        if folder is not None and (folder / name).is_dir():
            published = published_items(benchmark, folder / name, count)
            result.append(BenchmarkItems(name, "published files", published))
        else:
            result.append(BenchmarkItems(name, "templates", template_items(benchmark, count)))
    return result


class OracleEvaluation:
    """An evaluation of one oracle on a set of items. Activations are captured only once, because training the adapter
    does not change them. `tokens` is the maximum number of activations per text, and `rows` the batch size. With a
    `temperature` of 0, decoding is greedy. Raises ConfigError for a text that is too short or too long."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        injection: ActivationInjection,
        benchmarks: Sequence[BenchmarkItems],
        *,
        depths: Sequence[float] = DEPTHS,
        max_new_tokens: int,
        tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        rows: int = BATCH_ROWS,
    ) -> None:
        self.benchmarks = list(benchmarks)
        self.depths = tuple(depths)
        self._model, self._tokenizer, self._injection = model, tokenizer, injection
        self._generation: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "rows": rows}
        self.layers = {depth: layer_at(model, depth) for depth in self.depths}
        self._tokens = tokens
        self.unknown_share = {benchmark.name: self._unknown_share(benchmark.items) for benchmark in self.benchmarks}
        """Share of unknown tokens in each benchmark's texts."""

    @cached_property
    def _activations(self) -> dict[tuple[str, int, float], Activation]:
        """The activations by benchmark, number of the item, and depth."""
        keys = [(benchmark.name, number) for benchmark in self.benchmarks for number in range(len(benchmark.items))]
        texts = [item.text for benchmark in self.benchmarks for item in benchmark.items]
        layers = list(dict.fromkeys(self.layers.values()))
        activations = iter(capture(self._model, self._tokenizer, texts, layers, self._tokens))  # by text, then by layer
        by_layer = {(*key, layer): next(activations) for key in keys for layer in layers}
        return {(*key, depth): by_layer[*key, layer] for key in keys for depth, layer in self.layers.items()}

    @property
    def answer_count(self) -> int:
        """The number of answers in one evaluation, with own and with shuffled activations."""
        return 2 * len(self.depths) * sum(len(benchmark.items) for benchmark in self.benchmarks)

    def run(self, report: Callable[[int], object] = lambda done: None) -> EvaluationResult:
        """Ask about all items at all depths, with their own activations and with shuffled activations. `report` is
        called with the number of finished answers."""
        report(0)
        own = {benchmark.name: list(range(len(benchmark.items))) for benchmark in self.benchmarks}
        shuffled = {benchmark.name: random_cycle(len(benchmark.items), benchmark.name) for benchmark in self.benchmarks}
        answers = self._ask_all(own, report)
        return EvaluationResult(answers, self._ask_all(shuffled, lambda done: report(len(answers) + done)))

    def _ask_all(self, sources: Mapping[str, Sequence[int]], report: Callable[[int], object]) -> list[OracleAnswer]:
        """Ask about all items. Item i of a benchmark is asked with the activations of item `sources[benchmark][i]`."""
        requests = [
            (benchmark.name, number, depth, item)
            for benchmark in self.benchmarks
            for depth in self.depths
            for number, item in enumerate(benchmark.items)
        ]
        outputs = generate_answers(
            self._model,
            self._tokenizer,
            self._injection,
            [self._activations[name, sources[name][number], depth] for name, number, depth, _ in requests],
            [item.question for _, _, _, item in requests],
            **self._generation,
            report=report,
        )
        return [
            OracleAnswer(name, number, depth, output, *parse_answer(output, item.answer))
            for (name, number, depth, item), output in zip(requests, outputs, strict=True)
        ]

    def _unknown_share(self, items: Sequence[Item]) -> float:
        """Return the share of unknown tokens. Raises ConfigError if a text cannot be captured."""
        unknown = total = 0
        for item in items:
            ids = check_text(self._model, self._tokenizer, item.text, item.location or repr(item.text[:60]))
            total += len(ids)
            if self._tokenizer.unk_token_id is not None:
                unknown += ids.count(self._tokenizer.unk_token_id)
        return unknown / total


def check_text(model: Any, tokenizer: Any, text: str, location: str) -> list[int]:
    """Return the text's token ids. Raises ConfigError if there are fewer than two, or more than the model's context.
    `location` identifies the text in error messages."""
    ids: list[int] = tokenizer(text)["input_ids"]
    context = context_length(model)
    if len(ids) < 2:
        raise ConfigError(f"{location}: the text has fewer than the required 2 tokens; use a longer text, or omit it")
    if context is not None and len(ids) > context:
        raise ConfigError(
            f"{location}: the text has {len(ids)} tokens, but the model's context is {context}; shorten or omit it, or "
            "use a model with a longer context"
        )
    return ids


def parse_answer(output: str, answer: str) -> tuple[float | None, bool]:
    """Return the confidence from 0 to 1 that the output states, and whether the first word after it is the correct
    answer. Return (None, False) if the output cannot be parsed."""
    parsed = parse_oracle_output(output)
    if parsed is None:
        return None, False
    word = re.match(r"\W*(\w+)", parsed.text.lower())
    return parsed.confidence, word is not None and word[1] == answer


def random_cycle(count: int, name: str) -> list[int]:
    """Return a permutation of `count` numbers that is a single cycle (Sattolo 1986), seeded with `name`."""
    numbers, generator = list(range(count)), random.Random(f"shuffled {name}")
    for last in range(count - 1, 0, -1):
        position = generator.randrange(last)
        numbers[last], numbers[position] = numbers[position], numbers[last]
    return numbers


def to_scorable(answers: Sequence[OracleAnswer]) -> list[ScorableAnswer]:
    """Convert answers for scoring. All answers about the same text have the same text number."""
    texts = dict.fromkeys((answer.benchmark, answer.number) for answer in answers)
    text_numbers = {text: text_number for text_number, text in enumerate(texts)}
    return [
        ScorableAnswer(text_numbers[answer.benchmark, answer.number], answer.confidence, answer.is_correct)
        for answer in answers
    ]
