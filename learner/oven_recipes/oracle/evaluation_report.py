"""Writes the report of an evaluation as JSON, as a table and as a reliability diagram."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_learner.rewards.calibration_error import BINS
from oven_recipes.oracle.evaluation import BenchmarkItems, EvaluationResult, OracleAnswer, OracleEvaluation, to_scorable
from oven_recipes.oracle.evaluation_scores import Estimate, Scores, compute_scores

NOTE = (
    "unparsed answers count as wrong and are excluded from calibration; intervals: 95 %, bootstrap over texts; null: "
    "the mean ECE of a perfect forecaster with the stated confidences; shuffled: with the activations of another text"
)
MAX_UNKNOWN_SHARE = 0.2
"""Share of unknown tokens above which the report warns that a benchmark's figures are not informative."""


@dataclass(frozen=True)
class EvaluationReport:
    """The report of one evaluation."""

    oracle: str
    evaluation: OracleEvaluation
    result: EvaluationResult
    seconds: float
    cpu_seconds: float

    @classmethod
    def measure(
        cls, evaluation: OracleEvaluation, oracle: str, report: Callable[[int], object] = lambda done: None
    ) -> EvaluationReport:
        """Run an evaluation and return its report. `report` is called with the number of finished answers."""
        started_s, started_cpu_s = time.monotonic(), time.process_time()
        result = evaluation.run(report)
        return cls(oracle, evaluation, result, time.monotonic() - started_s, time.process_time() - started_cpu_s)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dict."""
        return {
            "oracle": self.oracle,
            "layer_percents": list(self.evaluation.depths),
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "note": NOTE,
            "overall": asdict(self.result.overall),
            "shuffled": asdict(self.result.shuffled_overall),
            "benchmarks": {benchmark.name: self._scores_json(benchmark) for benchmark in self.evaluation.benchmarks},
            "depths": {
                f"{depth:g}": asdict(_scores(self.result.answers, depth=depth)) for depth in self.evaluation.depths
            },
        }

    def write(self, report: Path, diagram: Path) -> None:
        """Write the report as JSON and as a reliability diagram. Raises ConfigError if that fails."""
        sources = {benchmark.source for benchmark in self.evaluation.benchmarks}
        source = sources.pop() if len(sources) == 1 else "published files and templates"
        try:
            write_atomic(report, json.dumps(self.as_json()) + "\n")
        except OSError as error:
            raise ConfigError(f"could not write {report}: {reason(error)}") from error
        write_diagram(diagram, f"{self.oracle}: nine benchmarks, {source}", self.result.overall)

    def lines(self) -> list[str]:
        """Return the report as lines for a terminal: a table of the benchmarks, and remarks below it."""
        header = (
            f"{'benchmark':18} {'texts':15} {'accuracy':19} {'shuffled':9} {'ECE':19} {'null':6} {'Brier':19} unparsed"
        )
        rows = [header]
        for benchmark in self.evaluation.benchmarks:
            scores = _scores(self.result.answers, benchmark.name)
            shuffled = _scores(self.result.shuffled, benchmark.name)
            rows.append(_row(benchmark.name, benchmark.source, scores, shuffled))
        sources = {benchmark.source for benchmark in self.evaluation.benchmarks}
        source = next(iter(sources)) if len(sources) == 1 else "both"
        rows.append(_row("all", source, self.result.overall, self.result.shuffled_overall))
        items = len(self.evaluation.benchmarks[0].items)
        depths = ", ".join(f"{depth:g}" for depth in self.evaluation.depths)
        rows.append(f"{items} items per benchmark at depths of {depths} %; {self.seconds:.1f} s; {self.oracle}")
        rows.append(NOTE)
        templates = [benchmark.name for benchmark in self.evaluation.benchmarks if benchmark.source == "templates"]
        if templates:
            rows.append(f"from templates, so not comparable with published figures: {', '.join(templates)}")
        rows += [
            f"{name}: {share:.0%} of its tokens are unknown to the tokenizer, so its figures are not informative"
            for name, share in self.evaluation.unknown_share.items()
            if share > MAX_UNKNOWN_SHARE
        ]
        return rows

    def _scores_json(self, benchmark: BenchmarkItems) -> dict[str, Any]:
        scores = _scores(self.result.answers, benchmark.name)
        shuffled = _scores(self.result.shuffled, benchmark.name)
        return {
            "source": benchmark.source,
            "items": len(benchmark.items),
            "unknown_tokens": round(self.evaluation.unknown_share[benchmark.name], 4),
            **asdict(scores),
            "accuracy_shuffled": asdict(shuffled.accuracy),
            "accuracy_by_depth": {
                f"{depth:g}": _scores(self.result.answers, benchmark.name, depth).accuracy.value
                for depth in self.evaluation.depths
            },
        }


def _scores(answers: Sequence[OracleAnswer], benchmark: str | None = None, depth: float | None = None) -> Scores:
    """Return the scores of the answers for one benchmark, one depth, or both."""
    selected = [answer for answer in answers if benchmark in (None, answer.benchmark) and depth in (None, answer.depth)]
    return compute_scores(to_scorable(selected))


def _row(name: str, source: str, scores: Scores, shuffled: Scores) -> str:
    null = "" if scores.ece_null is None else f"{scores.ece_null:.3f}"
    accuracy, ece, brier = map(_format_estimate, (scores.accuracy, scores.ece, scores.brier))
    shuffled_accuracy = f"{shuffled.accuracy.value:<9.3f}"
    return f"{name:18} {source:15} {accuracy:19} {shuffled_accuracy} {ece:19} {null:6} {brier:19} {scores.unparsed}"


def _format_estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


BAR_COLOR, GAP_COLOR, LINE_COLOR = "#9db8d2", "#c03a2b", "#444444"
CAPTION_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
"""Style of the caption's background. It keeps the caption readable in front of the bars."""


def write_diagram(path: Path, title: str, scores: Scores) -> None:
    """Write the reliability diagram (Murphy & Winkler 1977) as a PNG. It shows the accuracy for each range of stated
    confidence, and the number of answers below. Raises ConfigError if matplotlib is not installed or writing fails."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('the diagram requires matplotlib: `pip install "oven-controller[oracle]"`') from error
    figure = Figure(figsize=(5.6, 6.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes, count_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = 1 / BINS
    centers = [(bin_.low + bin_.high) / 2 for bin_ in scores.bins]
    axes.bar(centers, [bin_.accuracy for bin_ in scores.bins], width * 0.94, color=BAR_COLOR, label="correct answers")
    axes.bar(
        centers,
        [abs(bin_.confidence - bin_.accuracy) for bin_ in scores.bins],
        width * 0.94,
        bottom=[min(bin_.confidence, bin_.accuracy) for bin_ in scores.bins],
        fill=False,
        edgecolor=GAP_COLOR,
        hatch="////",
        label="gap to the mean confidence",
    )
    axes.plot((0, 1), (0, 1), linestyle="--", color=LINE_COLOR, linewidth=1, label="perfectly calibrated")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="share of correct answers")
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper left", fontsize=8)
    counts = [bin_.count for bin_ in scores.bins]
    count_axes.bar(centers, counts, width * 0.94, color=BAR_COLOR)
    for center, count in zip(centers, counts, strict=True):
        count_axes.annotate(str(count), (center, count), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    count_axes.set(xlim=(0, 1), ylim=(0, max(counts, default=1) * 1.25), xlabel="stated confidence", ylabel="answers")
    axes.text(
        0.98, 0.03, _caption(scores), transform=axes.transAxes, ha="right", va="bottom", fontsize=8, bbox=CAPTION_BOX
    )
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    try:
        write_atomic(path, picture.getvalue())
    except OSError as error:
        raise ConfigError(f"could not write {path}: {reason(error)}") from error


def _caption(scores: Scores) -> str:
    if scores.ece is None or scores.ece_null is None or scores.brier is None:
        return f"{scores.count} answers, none of which states a confidence"
    return (
        f"accuracy {scores.accuracy.value:.3f}\nECE {scores.ece.value:.3f} (null {scores.ece_null:.3f})\n"
        f"Brier {scores.brier.value:.3f}\n{scores.count} answers, {scores.unparsed} unparsed"
    )
