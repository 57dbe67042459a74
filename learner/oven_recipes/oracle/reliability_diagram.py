"""The reliability diagram: accuracy against stated confidence, with counts below.

Murphy & Winkler 1977, "Reliability of subjective probability forecasts of precipitation and temperature".
"""

from __future__ import annotations

import io
from pathlib import Path

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_learner.rewards.calibration_error import BINS
from oven_recipes.oracle.evaluation_scores import Scores

BAR, GAP, LINE = "#9db8d2", "#c03a2b", "#444444"
BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
"""Background of the caption, which bars may reach."""


def write_diagram(path: Path, title: str, own: Scores) -> None:
    """Write a PNG. Raises ConfigError if matplotlib is not installed or the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('the diagram needs matplotlib: `pip install "oven-controller[oracle]"`') from error
    figure = Figure(figsize=(5.6, 6.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = 1 / BINS
    centers = [(bin_scores.low + bin_scores.high) / 2 for bin_scores in own.bins]
    above.bar(centers, [bin_scores.accuracy for bin_scores in own.bins], width * 0.94, color=BAR, label="right answers")
    above.bar(
        centers,
        [abs(bin_scores.confidence - bin_scores.accuracy) for bin_scores in own.bins],
        width * 0.94,
        bottom=[min(bin_scores.confidence, bin_scores.accuracy) for bin_scores in own.bins],
        fill=False,
        edgecolor=GAP,
        hatch="////",
        label="gap to the mean confidence",
    )
    above.plot((0, 1), (0, 1), linestyle="--", color=LINE, linewidth=1, label="perfectly calibrated")
    above.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="share of right answers")
    above.set_title(title, fontsize=10)
    above.legend(loc="upper left", fontsize=8)
    counts = [bin_scores.count for bin_scores in own.bins]
    below.bar(centers, counts, width * 0.94, color=BAR)
    for center, count in zip(centers, counts, strict=True):
        below.annotate(str(count), (center, count), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    below.set(xlim=(0, 1), ylim=(0, max(counts, default=1) * 1.25), xlabel="stated confidence", ylabel="answers")
    above.text(0.98, 0.03, _caption(own), transform=above.transAxes, ha="right", va="bottom", fontsize=8, bbox=BOX)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    try:
        write_atomic(path, picture.getvalue())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {reason(error)}") from error


def _caption(own: Scores) -> str:
    if own.ece is None or own.ece_null is None or own.brier is None:
        return f"{own.count} answers, none of which states a confidence"
    return (
        f"accuracy {own.accuracy.value:.3f}\nECE {own.ece.value:.3f} (null {own.ece_null:.3f})\n"
        f"Brier {own.brier.value:.3f}\n{own.count} answers, {own.unparsed} unparsed"
    )
