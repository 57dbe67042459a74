"""What the gym says task by task, from made-up rows: what is judged on a task was not chosen there."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from oven_bench.gym.best_rule import best_rule_of_other_tasks
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.report import plain, report
from oven_bench.gym.score import score
from oven_bench.gym.task_report import by_task

SUBJECT = "mesh+kg"


def rows(kind: str, scores: Mapping[str, tuple[float, ...]], *, held_out: bool = False) -> list[Row]:
    """Arm → its score in each family of the task. The harm is 1."""
    return [
        Row(
            family=f"{kind}.{'hidden' if held_out else 'f'}{index}", kind=kind, healthy=False, held_out=held_out,
            seed=1, arm=arm, onset=110, loss=3.0 - each, nothing=3.0, twin=2.0, steps=200, interventions=0, seconds=0.1,
        )
        for arm, of in scores.items()
        for index, each in enumerate(of)
    ]  # fmt: skip


def calm(kind: str, arm: str, cost: float, interventions: int = 0) -> Row:
    return Row(
        family=f"{kind}.calm", kind=kind, healthy=True, held_out=False, seed=1, arm=arm, onset=110,
        loss=2.0 * (1 + cost), nothing=2.0, twin=2.0, steps=200, interventions=interventions, seconds=0.1,
    )  # fmt: skip


PRETRAINING = rows("pretraining", {SUBJECT: (0.5, 0.7), "rule.x": (0.5, 0.5), "rule.y": (0.0, 0.0)})
WIDE = rows("wide", {SUBJECT: (0.2, 0.0), "rule.x": (-0.1, -0.1), "rule.y": (0.3, 0.3)})
IMAGES = rows("images", {SUBJECT: (-0.5, 0.1), "rule.x": (-0.2, -0.2), "rule.y": (0.1, 0.1)})


def test_a_tasks_rule_is_chosen_by_the_other_tasks() -> None:
    """Over pretraining and wide x is better: it is judged on images, though y is better there. Over wide and images y
    is, and does nothing on pretraining."""
    chosen = {(row.kind, row.kept, score(row)) for row in best_rule_of_other_tasks([*PRETRAINING, *WIDE, *IMAGES])}
    assert {(kind, rule) for kind, rule, _ in chosen} == {
        ("pretraining", "rule.y"), ("wide", "rule.x"), ("images", "rule.x"),
    }  # fmt: skip
    assert best_rule_of_other_tasks(WIDE) == [], "there is no other task"


def test_each_task_has_its_own_figures() -> None:
    healthy = [calm("wide", SUBJECT, 0.02, interventions=1), calm("pretraining", SUBJECT, 0.0)]
    found = by_task([*PRETRAINING, *WIDE, *healthy], SUBJECT)
    assert found is not None
    assert list(found.tasks) == ["pretraining", "wide"]
    assert found.tasks["pretraining"].arms[SUBJECT].score.mean == pytest.approx(0.6)
    assert found.tasks["wide"].arms[SUBJECT].score.mean == pytest.approx(0.1)
    assert found.tasks["wide"].arms["rule.x"].worse.mean == 1.0
    assert found.tasks["wide"].healthy[SUBJECT].harm.mean == pytest.approx(0.02)
    assert found.tasks["wide"].healthy[SUBJECT].interventions_per_1000 == pytest.approx(5.0)
    assert found.tasks["pretraining"].healthy[SUBJECT].harm.mean == 0.0


def test_a_left_out_task_has_the_subject_and_the_rule_of_the_others() -> None:
    found = by_task([*PRETRAINING, *WIDE], SUBJECT)
    assert found is not None
    left = found.left_out["wide"]
    assert set(left.arms) == {SUBJECT, "best_rule"}
    assert left.rule == "rule.x"
    assert left.arms["best_rule"].score.mean == pytest.approx(-0.1)
    assert left.difference is not None
    assert left.difference.mean == pytest.approx(0.2)
    without = by_task([*PRETRAINING, *(row for row in WIDE if row.arm == SUBJECT)], SUBJECT)
    assert without is not None
    assert without.left_out["wide"].difference is None, "no rule was run there"


def test_tasks_that_agents_were_not_developed_on_are_summed_up_apart() -> None:
    found = by_task([*PRETRAINING, *WIDE, *IMAGES], SUBJECT)
    assert found is not None and found.not_developed_on is not None
    new = found.not_developed_on
    assert new.tasks == ("wide", "images")
    assert set(new.arms[SUBJECT].families) == {"wide.f0", "wide.f1", "images.f0", "images.f1"}
    assert new.arms[SUBJECT].score.mean == pytest.approx(-0.05)
    assert new.arms[SUBJECT].score.low < -0.05 < new.arms[SUBJECT].score.high
    assert new.arms["best_rule"].score.mean == pytest.approx(-0.15), "x on both, which others chose"
    old = by_task([*PRETRAINING, *rows("grpo", {SUBJECT: (0.1,)})], SUBJECT)
    assert old is not None and old.not_developed_on is None


def test_a_task_with_held_out_families_is_judged_on_them() -> None:
    hidden = rows("pretraining", {SUBJECT: (-0.3,)}, held_out=True)
    found = by_task([*PRETRAINING, *hidden, *WIDE], SUBJECT)
    assert found is not None
    assert (found.tasks["pretraining"].held_out, found.tasks["wide"].held_out) == (True, False)
    assert found.tasks["pretraining"].arms[SUBJECT].score.mean == pytest.approx(-0.3)
    assert found.tasks["wide"].arms[SUBJECT].score.mean == pytest.approx(0.1)


def test_the_json_has_the_tasks_where_more_than_one_was_played() -> None:
    found = plain(report([*PRETRAINING, *WIDE, *IMAGES, calm("wide", SUBJECT, 0.02)], SUBJECT))
    json.dumps(found, allow_nan=False)
    assert found["tasks"]["wide"]["arms"][SUBJECT]["mean"] == 0.1
    assert found["tasks"]["wide"]["healthy_by_arm"][SUBJECT]["harm"] == 0.02
    assert found["leave_one_task_out"]["pretraining"]["rule"] == "rule.y"
    assert found["not_developed_on"]["arms"][SUBJECT]["mean"] == -0.05
    assert {"tasks", "leave_one_task_out", "not_developed_on"}.isdisjoint(plain(report(WIDE, SUBJECT)))
