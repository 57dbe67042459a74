"""Shows a decision's verdicts under other rules as rows: rules with the same result share one, every other rule has
its own."""

from __future__ import annotations

from collections.abc import Sequence

from oven_core.protocol.messages import Decision
from oven_runs.log.other_rules import OtherRuling
from oven_runs.log.run_summary import text
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import clip, fit, wrapped

NAME = 36
SIGNS = {"adopted": ("✔", "good"), "rejected": ("–", "dim"), "advised": ("?", "warn")}
"""Verdict → sign, kind of text."""


def rows(rulings: Sequence[tuple[str, OtherRuling]], logged: Decision, width: int) -> list[list[Run]]:
    """`rulings` are the rules, in words, and their results."""
    made: list[list[Run]] = []
    for words, ruling in rulings:
        if ruling.same:
            continue
        sign, kind = SIGNS[ruling.decision.verdict if ruling.decision else "rejected"]
        made.append([(f"{sign} ", kind), (fit(words, NAME) + " ", "text"), (_verdict(ruling, logged), kind)])
        if ruling.earlier_divergence:
            caveat = f"not sure: {ruling.earlier_divergence} would have come out otherwise before it"
            made.append([("    ", "blank"), (clip(caveat, width - 4), "dim")])
    same = [words for words, ruling in rulings if ruling.same]
    if same:
        made += [[(line, "dim")] for line in wrapped(f"the same: {'; '.join(same)}", width)]
    if made and not [ruling for _, ruling in rulings if not ruling.same]:
        made.insert(0, [("none of these rules would have made a difference", "text")])
    return made


def _verdict(ruling: OtherRuling, logged: Decision) -> str:
    decision = ruling.decision
    if decision is None:
        return "nothing would have been decided"
    value = "" if decision.verdict == "rejected" or decision.value is None else f" {text(decision.value)}"
    late = "" if decision.tick == logged.tick else f" at tick {decision.tick}"
    return f"{decision.verdict}{value}{late}"
