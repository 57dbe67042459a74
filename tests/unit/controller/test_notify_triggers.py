"""Which events become a notice, and its words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.mesh_log import LR, RUN, Log

from oven_controller.notify.message import Notice
from oven_controller.notify.triggers import Triggers
from oven_core.protocol.messages import RunEnded


def notices(log: Log, triggers: Triggers | None = None) -> list[Notice]:
    triggers = triggers or Triggers(RUN)
    return [notice for event in log.events for notice in triggers.feed(event)]


def advising(**rules: Any) -> Log:
    log = Log.running("amy", alone=(LR, "grad.clip", "run.rollback"), autonomy="advise", **rules)
    log.tick_s = 6.0
    log.tick(4)
    return log


def test_an_advice_notice_has_agent_change_reason_deadline_and_command() -> None:
    log = advising(approve_ticks=40)
    log.propose("amy", 0.5, confidence=0.9, rationale="the loss is flat:\nlook\x1b[31m <!channel> @here.")
    (notice,) = notices(log)
    assert (notice.kind, notice.severity, notice.title) == ("advice", "warning", f"advice: {LR} 1 → 0.5")
    assert notice.text == (
        f"At step 4 amy advises {LR} 1 → 0.5, because the loss is flat: look [31m !channel> here. "
        "It lapses in 40 ticks (about 4 min)."
    )
    assert notice.command == f"oven-controller approve {log.last.id} --run {RUN}"


def test_advice_is_repeated_once_before_it_lapses_unless_answered() -> None:
    log = advising(approve_ticks=40)
    log.propose("amy", 0.5, confidence=0.9)
    log.propose("amy", 0.5, "grad.clip", confidence=0.9)
    log.operator("c1", "veto", of="grad.clip")
    log.tick(39)
    first, second, again = notices(log)
    assert (first.kind, second.kind, again.kind) == ("advice",) * 3
    assert again.title == f"advice lapses in 10 ticks (about 60 s): {LR} 1 → 0.5"
    assert (
        again.step == 34 and "Still waiting for approval at step 34:" in again.text and again.command == first.command
    )


def test_notices_of_applied_failed_and_rolled_back_changes() -> None:
    log = Log.running("amy", alone=(LR, "grad.clip", "run.rollback"))
    for value, actuator, status in (
        (0.5, LR, "applied"),
        (0.4, "grad.clip", "rejected"),
        (None, "run.rollback", "applied"),
    ):
        log.propose("amy", value, actuator, confidence=0.9, rationale="so")
        log.tick(1)
        log.receipt(log.last, status)
        log.receipt(log.last, status)  # said twice: it is one thing
        log.tick(8)
    applied, failed, back = notices(log)
    assert (applied.kind, applied.severity, applied.title) == ("applied", "info", f"applied: {LR} 1 → 0.5")
    assert applied.text.endswith(f"{LR} 1 → 0.5 took effect, proposed by amy, because so.")
    assert (failed.kind, failed.severity) == ("applied", "warning")
    assert failed.title == "not applied: grad.clip 1 → 0.4 (rejected)"
    assert "grad.clip 1 → 0.4, proposed by amy, did not take effect (rejected)." in failed.text
    assert (back.kind, back.title) == ("rollback", "rolled back")
    assert back.text.endswith("the training was rolled back, proposed by amy, because so.")


def test_a_judge_that_falls_silent_or_spends_its_budget_causes_one_notice() -> None:
    log = Log.running("amy")
    away = {"committee/skipped_groups": 0.0, "rewards/critic/abstain/timeout": 4.0, "rewards/other/mean": 0.5}
    log.tick(3, **away)
    log.tick(1, **{"loss": 1.0})
    log.tick(1, **{"committee/skipped_groups": 0.0, "rewards/critic/abstain/timeout": 1.0, "rewards/critic/mean": 0.5})
    log.tick(2, **away)
    log.tick(2, **(away | {"rewards/critic/abstain/budget": 4.0}))
    first, again, spent = notices(log)
    assert (first.kind, first.title, again.kind) == ("judge", "judge critic is unavailable", "judge")
    assert "it returned no scores (timeout)" in first.text
    assert (spent.kind, spent.severity, spent.title) == ("budget", "error", "budget spent: critic")


@pytest.mark.parametrize(
    ("reason", "kind", "title"),
    [
        ("completed", "ended", "completed at step 0"),
        ("stopped", "ended", "stopped at step 0"),
        ("failed", "died", "failed at step 0"),
    ],
)
def test_the_end_of_a_run_causes_one_notice(reason: Any, kind: str, title: str) -> None:
    log, triggers = Log.running("amy"), Triggers(RUN)
    log.put("run", RunEnded(**log.stamp(), reason=reason, tick=0, step=0, detail="x", metrics={"eval/loss": 0.25}))
    (notice,) = notices(log, triggers)
    assert (notice.kind, notice.title) == (kind, title) and "eval/loss 0.25" in notice.text
    assert triggers.stack_down_notices("failed", "exit code 1") == []
    assert triggers.silence_notices(log.now + timedelta(days=1)) == []


@pytest.mark.parametrize(
    ("status", "how", "kind", "title"),
    [
        ("failed", "killed by SIGKILL", "died", "the learner died at step 3"),
        (None, "", "died", "the stack was killed at step 3"),
        ("stopped", "exit code 0", "ended", "stack stopped at step 3"),
    ],
)
def test_a_stack_that_goes_down_without_a_logged_end_causes_a_notice(
    status: str | None, how: str, kind: str, title: str
) -> None:
    log, triggers = Log.running("amy"), Triggers(RUN)
    assert triggers.stack_down_notices(status, how) == [], "nothing has begun"
    log.tick(3)
    notices(log, triggers)
    (notice,) = triggers.stack_down_notices(status, how)
    assert (notice.kind, notice.title) == (kind, title) and how in notice.text


def test_a_silent_learner_causes_one_notice_later_if_steps_are_long() -> None:
    for step_s, silence_s in ((1.0, 601), (60.0, 1201)):
        log, triggers = Log.running("amy"), Triggers(RUN)
        log.tick_s = step_s
        log.tick(5)
        notices(log, triggers)
        assert triggers.silence_notices(log.now + timedelta(seconds=silence_s - 2)) == []
        (notice,) = triggers.silence_notices(log.now + timedelta(seconds=silence_s))
        assert notice.kind == "died" and "Its last message was at step 5" in notice.text
        assert triggers.silence_notices(log.now + timedelta(days=1)) == []


def test_waiting_advice_is_reported_to_a_late_watcher() -> None:
    log, triggers = advising(approve_ticks=40), Triggers(RUN)
    assert triggers.pending_advice_notices() == []
    log.propose("amy", 0.5, confidence=0.9)
    (first,) = notices(log, triggers)
    (waiting,) = triggers.pending_advice_notices()
    assert (waiting.key, waiting.command, waiting.title) == (first.key, first.command, first.title)
