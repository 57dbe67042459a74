"""An evaluation as JSON and as a table: every figure with its interval, and the source of the texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_recipes.oracle.evaluation import Answered, BenchmarkItems, Evaluated, scored
from oven_recipes.oracle.evaluation_scores import Estimate, Scores, scores
from oven_recipes.oracle.reliability_diagram import write_diagram

NOTE = (
    "an answer that does not parse is wrong, and left out of calibration; intervals: 95 %, bootstrap over texts; null: "
    "the mean ECE of a perfect forecaster with the stated confidences; shuffled: asked with another text's activations"
)
MANY_UNKNOWN = 0.2
"""Share of unknown tokens from which a benchmark's texts are hardly in the model's vocabulary."""


@dataclass(frozen=True)
class EvaluationReport:
    """The output of `evaluate`."""

    oracle: str
    benchmarks: Sequence[BenchmarkItems]
    percents: Sequence[float]
    unknown_share: dict[str, float]
    evaluated: Evaluated
    seconds: float
    cpu_seconds: float

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "oracle": self.oracle,
            "layer_percents": list(self.percents),
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "note": NOTE,
            "overall": asdict(self.evaluated.overall),
            "shuffled": asdict(self.evaluated.shuffled_overall),
            "benchmarks": {benchmark.name: self._benchmark(benchmark) for benchmark in self.benchmarks},
            "depths": {
                f"{percent:g}": asdict(_scores(self.evaluated.answers, percent=percent)) for percent in self.percents
            },
        }

    def write(self, report: Path, diagram: Path) -> None:
        """Write it as JSON and as a reliability diagram. Raises ConfigError if that fails."""
        sources = {benchmark.source for benchmark in self.benchmarks}
        source = sources.pop() if len(sources) == 1 else "published files and templates"
        try:
            write_atomic(report, json.dumps(self.plain()) + "\n")
        except OSError as error:
            raise ConfigError(f"{report} cannot be written: {reason(error)}") from error
        write_diagram(diagram, f"{self.oracle}: nine benchmarks, {source}", self.evaluated.overall)

    def lines(self) -> list[str]:
        """Return it for people: a table of the benchmarks, with remarks."""
        header = (
            f"{'benchmark':18} {'texts':15} {'accuracy':19} {'shuffled':9} {'ECE':19} {'null':6} {'Brier':19} unparsed"
        )
        rows = [header]
        for benchmark in self.benchmarks:
            own = _scores(self.evaluated.answers, benchmark.name)
            shuffled = _scores(self.evaluated.shuffled, benchmark.name)
            rows.append(_row(benchmark.name, benchmark.source, own, shuffled))
        sources = {benchmark.source for benchmark in self.benchmarks}
        source = next(iter(sources)) if len(sources) == 1 else "both"
        rows.append(_row("all", source, self.evaluated.overall, self.evaluated.shuffled_overall))
        items = len(self.benchmarks[0].items)
        depths = ", ".join(f"{percent:g}" for percent in self.percents)
        rows.append(f"{items} items of each at depths of {depths} %; {self.seconds:.1f} s; {self.oracle}")
        rows.append(NOTE)
        templates = [benchmark.name for benchmark in self.benchmarks if benchmark.source == "templates"]
        if templates:
            rows.append(f"from templates, and so not comparable with published figures: {', '.join(templates)}")
        rows += [
            f"{name}: the tokenizer does not know {share:.0%} of its tokens; its figures say little of the oracle"
            for name, share in self.unknown_share.items()
            if share > MANY_UNKNOWN
        ]
        return rows

    def _benchmark(self, benchmark: BenchmarkItems) -> dict[str, Any]:
        own = _scores(self.evaluated.answers, benchmark.name)
        shuffled = _scores(self.evaluated.shuffled, benchmark.name)
        return {
            "source": benchmark.source,
            "items": len(benchmark.items),
            "unknown_tokens": round(self.unknown_share[benchmark.name], 4),
            **asdict(own),
            "accuracy_shuffled": asdict(shuffled.accuracy),
            "accuracy_by_depth": {
                f"{percent:g}": _scores(self.evaluated.answers, benchmark.name, percent).accuracy.value
                for percent in self.percents
            },
        }


def _scores(answers: Sequence[Answered], benchmark: str | None = None, percent: float | None = None) -> Scores:
    """Of the answers on one benchmark, at one depth, or both."""
    return scores(
        scored(
            [
                answer
                for answer in answers
                if benchmark in (None, answer.benchmark) and percent in (None, answer.percent)
            ]
        )
    )


def _row(name: str, source: str, own: Scores, shuffled: Scores) -> str:
    null = "" if own.ece_null is None else f"{own.ece_null:.3f}"
    return (
        f"{name:18} {source:15} {_shown(own.accuracy):19} {shuffled.accuracy.value:<9.3f} {_shown(own.ece):19} "
        f"{null:6} {_shown(own.brier):19} {own.unparsed}"
    )


def _shown(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
