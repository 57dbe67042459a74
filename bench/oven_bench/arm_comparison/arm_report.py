"""What an A/B says, as text, as JSON and as a picture: each arm against the base, and what could be detected at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from oven_bench.arm_comparison.clustered import EQUIVALENCE, Comparison, compare_all
from oven_bench.arm_comparison.detectable import POWER, Design, VarianceParts, detectable
from oven_bench.arm_comparison.forest_plot import svg
from oven_core.files import write_atomic


@dataclass(frozen=True)
class Plan:
    """What is said before the run, and printed above its results."""

    title: str
    base: str
    primary: str
    """The arm whose comparison with `base` decides; the others' are corrected for being several."""
    design: Design
    detectable: float | None
    """The gain that the design finds with a chance of POWER; None: none that a rate could have."""
    basis: str
    """What `detectable` rests on: a pilot on development seeds, or assumed variances."""
    equivalence: float = EQUIVALENCE

    def said(self) -> list[str]:
        """For people, before the run and after."""
        of = self.design
        gain = "no gain at all" if self.detectable is None else f"a gain of {points(self.detectable)}"
        return [
            f"{self.title}: {self.primary} against {self.base} decides",
            f"{of.seeds} seeds × {of.tasks} tasks × {of.samples} samples, the same for all arms, detect {gain} with a "
            f"chance of {POWER:g} ({self.basis}); less than ± {points(self.equivalence)} counts as none",
        ]


@dataclass(frozen=True)
class Report:
    """A plan and its results."""

    plan: Plan
    comparisons: Mapping[str, Comparison]
    """Arm → it against the base, the primary one first."""
    by_mix: Mapping[str, Mapping[str, Comparison]] = field(default_factory=dict)
    """Mix of teachers → the same of the arms that were trained on its pairs."""

    def lines(self) -> list[str]:
        """For people."""
        found = [*self.plan.said(), "", *_table(self.comparisons, self.plan)]
        for mix, comparisons in self.by_mix.items():
            found += ["", f"teachers: {mix}", *_table(comparisons, self.plan)]
        return [*found, "", f"verdict: {self.verdict}"]

    @property
    def verdict(self) -> str:
        """The primary comparison's word."""
        return self.comparisons[self.plan.primary].verdict

    def as_json(self) -> dict[str, Any]:
        """Rates and differences are from 0 to 1."""
        return {
            "plan": asdict(self.plan),
            "verdict": self.verdict,
            "comparisons": {arm: asdict(one) for arm, one in self.comparisons.items()},
            "by_mix": {mix: {arm: asdict(one) for arm, one in of.items()} for mix, of in self.by_mix.items()},
        }

    def svg(self) -> str:
        """A picture of all comparisons."""
        rows = dict(self.comparisons)
        for mix, of in self.by_mix.items():
            rows |= {f"{arm} ({mix})": one for arm, one in of.items()}
        return svg(rows, self.plan.title, self.plan.base, self.plan.equivalence, self.plan.detectable)

    def write(self, folder: Path) -> None:
        """report.txt, report.json and report.svg. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "report.txt", "\n".join(self.lines()) + "\n")
        write_atomic(folder / "report.json", json.dumps(self.as_json(), indent=1) + "\n")
        write_atomic(folder / "report.svg", self.svg())


def plan(
    title: str, base: str, primary: str, design: Design, parts: VarianceParts, *, equivalence: float = EQUIVALENCE
) -> Plan:
    """With the gain that can be detected, from a pilot's variances or from assumed ones."""
    try:
        gain: float | None = detectable(parts, design)
    except ValueError:
        gain = None
    basis = "variances of a pilot on development seeds" if parts.freedom is not None else "variances as assumed"
    return Plan(title, base, primary, design, gain, basis, equivalence)


def report(
    of: Plan, arms: Mapping[str, ArrayLike], by_mix: Mapping[str, Mapping[str, ArrayLike]] | None = None
) -> Report:
    """`arms`: each an array [seeds, tasks, samples] of 0 and 1, `base` among them; `by_mix`: arms by the teachers whose
    pairs they were trained on, each compared with the same base. Raises KeyError for an arm that is missing, and
    ValueError as `compare`."""
    mixes = {}
    for mix, trained in (by_mix or {}).items():
        primary = of.primary if of.primary in trained else next(iter(trained))
        found = compare_all({**trained, of.base: arms[of.base]}, of.base, primary=primary, equivalence=of.equivalence)
        mixes[mix] = found
    return Report(of, compare_all(arms, of.base, primary=of.primary, equivalence=of.equivalence), mixes)


def points(rate: float) -> str:
    """A difference of rates in percentage points."""
    return f"{100 * rate:.1f} points"


def _table(comparisons: Mapping[str, Comparison], of: Plan) -> list[str]:
    """In Markdown, its columns of equal width."""
    rows = [("arm", "solved", of.base, "difference", "95 % interval", "p", "verdict")]
    for arm, one in comparisons.items():
        rows.append(
            (
                arm,
                f"{100 * one.rate:.1f} %",
                f"{100 * one.other_rate:.1f} %",
                f"{100 * one.difference:+.1f}",
                f"[{100 * one.low:+.1f}, {100 * one.high:+.1f}]",
                f"{one.p:.3f}",
                one.verdict + (f" ({one.note})" if one.note else ""),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    drawn = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [drawn[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *drawn[1:]]
