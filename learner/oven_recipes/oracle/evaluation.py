"""Evaluate an oracle on the nine benchmarks at several depths, with texts that it was not trained on. It runs twice:
with the text's own activations, and with another text's (shuffled). Correct answers in the second run do not come from
activations."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.rewards.calibrated import parse_oracle_output
from oven_recipes.activations.capture import MAX_TOKENS, Activation, capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.model_blocks import layer_at
from oven_recipes.oracle.benchmark_items import ITEMS, published_items, template_items
from oven_recipes.oracle.benchmarks import BENCHMARKS, Item
from oven_recipes.oracle.evaluation_scores import Scored, Scores, scores
from oven_recipes.oracle.generated_answers import ROWS, context_of, generated_answers

PERCENTS = (25.0, 50.0, 75.0)
"""Depths in percent, as in the evaluation of Activation Oracles."""

Source = Literal["published files", "templates"]


class BenchmarkItems(NamedTuple):
    """A benchmark's items, and whether they come from the published files."""

    name: str
    source: Source
    items: list[Item]


class Answered(NamedTuple):
    """One answer: the item's number in its benchmark, the depth in percent, and the parsed output."""

    benchmark: str
    number: int
    percent: float
    output: str
    confidence: float | None
    """Stated confidence from 0 to 1; None if the output does not parse."""
    right: bool


@dataclass(frozen=True)
class Evaluated:
    """All answers, with the texts' own activations and with shuffled ones."""

    answers: list[Answered]
    shuffled: list[Answered]

    @cached_property
    def overall(self) -> Scores:
        return scores(scored(self.answers))

    @cached_property
    def shuffled_overall(self) -> Scores:
        return scores(scored(self.shuffled))

    def measured(self) -> Measurements:
        """Return the metrics: `eval/accuracy` per answer, the others as means. Calibration is missing if no answer
        parses."""
        metrics: dict[str, float | Sequence[float]] = {
            "eval/accuracy": [float(answer.right) for answer in self.answers]
        }
        for name in dict.fromkeys(answer.benchmark for answer in self.answers):
            of_it = [answer.right for answer in self.answers if answer.benchmark == name]
            metrics[f"eval/accuracy/{name}"] = sum(of_it) / len(of_it)
        metrics["eval/accuracy_shuffled"] = self.shuffled_overall.accuracy.value
        overall = self.overall
        for name, estimate in (("brier", overall.brier), ("ece", overall.ece), ("mce", overall.mce)):
            if estimate is not None:
                metrics[f"eval/{name}"] = estimate.value
        if overall.ece_null is not None:
            metrics["eval/ece_null"] = overall.ece_null
        return metrics


def metric_specs() -> tuple[MetricSpec, ...]:
    """Return the specs of `Evaluated.measured`, for the recipe's `metrics`."""
    up = ("eval/accuracy", *(f"eval/accuracy/{name}" for name in BENCHMARKS))
    return (
        *(MetricSpec(name=name, better="up", held_out=True, ceiling=1.0) for name in up),
        MetricSpec(name="eval/accuracy_shuffled", better="neither", held_out=True, unit="0.5 is chance"),
        *(MetricSpec(name=f"eval/{name}", better="down", held_out=True) for name in ("brier", "ece", "mce")),
        MetricSpec(name="eval/ece_null", better="neither", held_out=True, unit="a perfect forecaster's"),
    )


def benchmark_items(folder: Path | None = None, count: int = ITEMS) -> list[BenchmarkItems]:
    """Return `count` items of each benchmark: published ones if `folder` has a folder of its name, otherwise templates.
    Raises ConfigError for a folder with none of the nine, and the errors of `published_items`."""
    if folder is None:
        return [
            BenchmarkItems(name, "templates", template_items(benchmark, count))
            for name, benchmark in BENCHMARKS.items()
        ]
    if not folder.is_dir():
        raise ConfigError(f"--benchmarks {folder}: there is no such folder; make it, or leave the option out")
    if not any((folder / name).is_dir() for name in BENCHMARKS):
        raise ConfigError(
            f"--benchmarks {folder}: there is no benchmark in it; it needs folders of their names with the published "
            f"files ({', '.join(BENCHMARKS)}), or leave the option out to evaluate on templates"
        )
    return [
        BenchmarkItems(name, "published files", published_items(benchmark, folder / name, count))
        if (folder / name).is_dir()
        else BenchmarkItems(name, "templates", template_items(benchmark, count))
        for name, benchmark in BENCHMARKS.items()
    ]


class OracleEvaluation:
    """An evaluation of one oracle on one set of items. It captures activations once, because adapters do not change
    them. Raises ConfigError for a text with fewer than two tokens or more than the model's context, and the errors of
    `capture`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        injection: ActivationInjection,
        benchmarks: Sequence[BenchmarkItems],
        *,
        percents: Sequence[float] = PERCENTS,
        max_new_tokens: int,
        tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        rows: int = ROWS,
    ) -> None:
        """`tokens` limits the activations per text. `temperature` 0 is greedy. `rows` is the batch size."""
        self.benchmarks = list(benchmarks)
        self.percents = tuple(percents)
        self._model, self._tokenizer, self._injection = model, tokenizer, injection
        self._generation: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "rows": rows}
        self.layers = {percent: layer_at(model, percent) for percent in self.percents}
        self._tokens = tokens
        self.unknown_share = {benchmark.name: self._checked(benchmark.items) for benchmark in self.benchmarks}
        """The share of tokens in each benchmark's texts that the tokenizer does not know."""

    @cached_property
    def _activations(self) -> dict[tuple[str, int, float], Activation]:
        places = [(benchmark.name, number) for benchmark in self.benchmarks for number in range(len(benchmark.items))]
        texts = [item.text for benchmark in self.benchmarks for item in benchmark.items]
        layers = list(dict.fromkeys(self.layers.values()))
        captured = iter(capture(self._model, self._tokenizer, texts, layers, self._tokens))
        by_layer = {(*key, layer): next(captured) for key in places for layer in layers}
        return {(*key, percent): by_layer[*key, layer] for key in places for percent, layer in self.layers.items()}

    def run(self) -> Evaluated:
        """Run both passes over all items at all depths."""
        return Evaluated(self._answered(lambda _, number: number), self._answered(self._shuffled_activations()))

    def _shuffled_activations(self) -> Callable[[str, int], int]:
        """Map each item to the one whose activations it gets: one cycle per benchmark, so never its own."""
        cycles = {benchmark.name: cycle(len(benchmark.items), benchmark.name) for benchmark in self.benchmarks}
        return lambda name, number: cycles[name][number]

    def _answered(self, whose: Callable[[str, int], int]) -> list[Answered]:
        places_asked = [
            (benchmark.name, number, percent, item)
            for benchmark in self.benchmarks
            for percent in self.percents
            for number, item in enumerate(benchmark.items)
        ]
        outputs = generated_answers(
            self._model,
            self._tokenizer,
            self._injection,
            [self._activations[name, whose(name, number), percent] for name, number, percent, _ in places_asked],
            [item.question for _, _, _, item in places_asked],
            **self._generation,
        )
        return [
            Answered(name, number, percent, output, *read(output, item.answer))
            for (name, number, percent, item), output in zip(places_asked, outputs, strict=True)
        ]

    def _checked(self, items: Sequence[Item]) -> float:
        """Return the share of unknown tokens. Raises ConfigError for a text that cannot be captured."""
        unknown = total = 0
        for item in items:
            ids = check_text(self._model, self._tokenizer, item.text, item.where or repr(item.text[:60]))
            total += len(ids)
            if self._tokenizer.unk_token_id is not None:
                unknown += ids.count(self._tokenizer.unk_token_id)
        return unknown / total


def check_text(model: Any, tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the text's token ids. Raises ConfigError, naming `where`, for too few or too many tokens."""
    ids: list[int] = tokenizer(text)["input_ids"]
    context = context_of(model)
    if len(ids) < 2:
        raise ConfigError(
            f"{where}: {len(ids)} token: there is nothing to ask about; leave it out, or give a longer one"
        )
    if context is not None and len(ids) > context:
        raise ConfigError(
            f"{where}: {len(ids)} tokens, and the model's context is {context}; leave it out, shorten it, or take a "
            "model with a longer context"
        )
    return ids


def read(output: str, answer: str) -> tuple[float | None, bool]:
    """Return the stated confidence from 0 to 1, and whether the first word is the right answer. Return (None, False)
    for an output that does not parse."""
    parsed = parse_oracle_output(output)
    if parsed is None:
        return None, False
    word = re.match(r"\W*(\w+)", parsed.text.lower())
    return parsed.confidence, word is not None and word[1] == answer


def cycle(count: int, name: str) -> list[int]:
    """Return a permutation of `count` numbers that is one cycle (Sattolo 1986). The same name gives the same cycle."""
    numbers, generator = list(range(count)), random.Random(f"shuffled {name}")
    for last in range(count - 1, 0, -1):
        swapped = generator.randrange(last)
        numbers[last], numbers[swapped] = numbers[swapped], numbers[last]
    return numbers


def scored(answers: Sequence[Answered]) -> list[Scored]:
    """Return the answers for scoring. Answers about one text at several depths share a number."""
    numbers: dict[tuple[str, int], int] = {}
    return [
        Scored(numbers.setdefault((answer.benchmark, answer.number), len(numbers)), answer.confidence, answer.right)
        for answer in answers
    ]
