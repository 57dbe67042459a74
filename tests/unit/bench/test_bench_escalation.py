"""The bench of escalation: what it reads off a run, its figures, and that its drill is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.support.attached import THIRD_PARTY

from oven_bench.results_file import Kept
from oven_bench.training.absorbed_teacher import ARMS, BETA, Arm, Change, Row, drill, prepared, row, without_stack
from oven_bench.training.escalation import Header, bench, figures, missing, table
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.messages import Decision, LogMessage, Observation, Receipt, RunEnded

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SWAP = Change(step=40, actuator="teacher.active", before="small", after="strong", why="small is absorbed: KL 1 before")
CUT = Change(step=70, actuator="grpo.beta", before=0.03, after=0.01, why="the anchor binds")


def one(arm: Arm, seed: int, accuracy: float, *changes: Change) -> Row:
    return Row(
        arm=arm, seed=seed, accuracy=accuracy, reward=0.1, kl_first=1.0, kl_swapped=0.4 if changes else None,
        kl_small=0.2, kl_strong=4.0, changes=changes, seconds=9.0,
    )  # fmt: skip


def rows() -> list[Row]:
    did: dict[int, tuple[Change, ...]] = {
        1: (SWAP, CUT), 2: (SWAP.model_copy(update={"step": 50, "why": "the anchor binds"}),), 3: (),
    }  # fmt: skip
    ends: dict[Arm, list[float]] = {"on": [0.3, 0.24, 0.1], "off": [0.1, 0.08, 0.1], "strong": [0.4, 0.4, 0.4]}
    return [one(arm, s, of[s - 1], *(did[s] if arm == "on" else ())) for arm, of in ends.items() for s in (2, 1, 3)]


def test_the_figures_are_paired_by_seed_and_count_what_the_agent_did() -> None:
    found = figures(rows())
    runs = found.pop("runs")
    assert found == {
        "seeds": [1, 2, 3], "mean_on": 0.2133, "mean_off": 0.0933, "mean_strong": 0.4,
        "difference": 0.12, "difference_low": -0.1429, "difference_high": 0.3829, "verdict": "INCONCLUSIVE",
        "strong_difference": 0.3067, "strong_difference_low": 0.278, "strong_difference_high": 0.3354,
        "escalated": 2, "because_absorbed": 1, "swap_steps": [40, 50], "other_changes_per_run": 0.33,
    }  # fmt: skip
    assert [(r["seed"], r["arm"]) for r in runs] == [(seed, arm) for seed in (1, 2, 3) for arm in ARMS]
    assert table(rows())[0] == (
        "1", "0.300", "0.100", "0.400", "40", "1.000 → 0.400", "grpo.beta 0.01 at 70"
    )  # fmt: skip
    assert table(rows())[2][4:] == ("never", "", "")


def test_a_seed_without_all_arms_does_not_count_and_is_made() -> None:
    short = [r for r in rows() if (r.arm, r.seed) != ("off", 2)]
    assert figures(short)["seeds"] == [1, 3]
    assert missing([1, 2, 4], short) == [("off", 2), ("on", 4), ("off", 4), ("strong", 4)]
    with pytest.raises(ConfigError, match="1 seeds have all arms"):
        figures([r for r in rows() if r.seed == 1])


def test_results_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").touch()
    with pytest.raises(ConfigError, match="is there already"):
        bench(out=tmp_path / "there.jsonl")
    Kept(tmp_path / "one.jsonl", Header(steps=9, quick=True, drill=drill(True)), TypeAdapter(Row))
    with pytest.raises(ConfigError, match="made with other quick and drill"):
        Kept(tmp_path / "one.jsonl", Header(steps=9, quick=False, drill=drill(False)), TypeAdapter(Row))
    with pytest.raises(ConfigError, match="name it with --out"):
        bench(resume=True)
    with pytest.raises(ConfigError, match="give at least 2"):
        bench(seeds="7")


def observed(tick: int, **metrics: float) -> Observation:
    metrics = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=tick / 60, metrics=metrics)


def ended(**more: Any) -> RunEnded:
    return RunEnded(**({"incarnation": 1, "n": 99, "reason": "completed", "tick": 60, "step": 60} | more))


def log() -> list[LogMessage]:
    """KL 1 for 20 ticks and .4 for 10; then the swap, and KL 4 for 30."""
    seen = [observed(t, kl=1.0 if t <= 20 else 0.4 if t <= 30 else 4.0, reward=t / 100) for t in range(1, 61)]
    decision = Decision(
        id="7", ballot="b", actuator="teacher.active", verdict="adopted", value="strong", reason="small is absorbed",
        tally=(), tick=30, apply_at_tick=31, expires_at_tick=40,
    )  # fmt: skip
    receipt = Receipt(
        incarnation=1, n=98, decision_id="7", actuator="teacher.active", status="applied", before="small",
        after="strong", tick=30, step=30,
    )  # fmt: skip
    more = observed(50, eval__accuracy=0.2), observed(60, eval__accuracy=0.5, kl__small=0.7)
    return [*seen[:30], decision, receipt, *seen[30:], *more, ended()]


def test_a_run_is_read_off_its_log() -> None:
    found = row("on", 3, log(), 12.34)
    assert found.swap == Change(
        step=30, actuator="teacher.active", before="small", after="strong", why="small is absorbed"
    )
    assert (found.kl_first, found.kl_swapped, found.kl_small, found.kl_strong) == (1.0, 0.4, 0.7, 4.0)
    assert (found.accuracy, found.seconds) == (0.5, 12.3) and found.reward == pytest.approx(0.505)
    assert found.changes == (found.swap,)


def test_no_result_is_made_up_for_a_run_that_did_not_complete() -> None:
    for wrong in ([], [ended(reason="failed")], [ended(lockstep_timeouts=1)]):
        with pytest.raises(ProcessError, match="did not complete in lockstep"):
            row("off", 1, [*log()[:-1], *wrong], 1.0)
    with pytest.raises(ProcessError, match="has no eval/accuracy"):
        row("off", 1, [m for m in log() if "eval/accuracy" not in getattr(m, "metrics", {})], 1.0)


def test_the_drill_begins_at_the_arms_teacher_and_measures_the_other(tmp_path: Path) -> None:
    made = {arm: prepared(arm, 101, 3, tmp_path / arm, tmp_path / "cache", quick=True) for arm in ("on", "strong")}
    teachers = {arm: job.teachers for arm, job in made.items()}
    assert teachers["on"] is not None and teachers["strong"] is not None
    assert (teachers["on"].active, teachers["strong"].active) == ("small", "strong")
    assert teachers["on"].names == ("small", "strong") and made["on"].trainer.beta == BETA
    found = row("strong", 101, without_stack(made["strong"]), 1.0)
    assert found.kl_first == found.kl_strong and found.kl_strong > 0 and found.changes == ()
