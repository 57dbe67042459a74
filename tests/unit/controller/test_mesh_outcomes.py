"""Windows on the metric that judges a decision: when they open and close, and what they say."""

import math
from typing import Any

import pytest
from tests.support.mesh_log import LR, METRICS, Log

from oven_core.mesh.measurements import Measurements
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.messages import MetricSpec, Outcome
from oven_runs.log.replay import replay

MIX, CLIP, BACK = "data.mixture", "grad.clip", "run.rollback"
RULES: dict[str, Any] = {"outcome_ticks": 10, "cooldown_ticks": 0}


def running(**more: Any) -> Log:
    log = Log.running("amy", "bob", **{**RULES, **more})
    watch(log, 10, 1.0)
    return log


def watch(log: Log, ticks: int, loss: float) -> None:
    """The loss, with a little noise that repeats."""
    for _ in range(ticks):
        log.tick(loss=loss + 0.01 * (log.mesh.state.tick % 3 - 1))


def change(log: Log, value: Any, actuator: str = LR, target: str = "loss", by: str = "amy", **more: Any) -> Any:
    log.propose(by, value, actuator, 0.8, target=target, expected_change=-0.2, **more)
    log.vote("bob" if by == "amy" else "amy", "for", actuator=actuator)
    decision = log.last
    if decision.verdict == "adopted":
        log.receipt(decision)
    return decision


def only(log: Log) -> Outcome:
    assert len(log.outcomes) == 1
    return log.outcomes[0]


def test_a_change_that_helped_has_a_scored_outcome() -> None:
    log = running()
    decision = change(log, 0.5)
    assert (decision.target, decision.expected_change, decision.horizon) == ("loss", -0.2, 10)
    watch(log, 5, 5.0)  # it needs time to show: the first half counts for nothing
    assert not log.outcomes
    watch(log, 5, 0.8)
    outcome = only(log)
    assert (outcome.decision_id, outcome.target, outcome.scored) == (decision.id, "loss", True)
    assert (outcome.from_tick, outcome.tick, outcome.samples) == (10, 20, (10, 5))
    assert outcome.gain == pytest.approx(0.2, abs=0.01) and outcome.forecast == 0.2 and outcome.control is None
    assert outcome.noise is not None and 0 < outcome.noise < 0.02
    amy, bob = outcome.lines
    assert (amy.agent, amy.stance, amy.success, amy.before) == ("amy", "propose", 1.0, 1.0)
    assert bob.stance == "for" and 0 < bob.merit < amy.merit and amy.after > bob.after > 1
    assert log.mesh.state.reputations == {"amy": amy.after, "bob": bob.after}
    change(log, 0.25)
    assert [line.reputation for line in log.last.tally] == [amy.after, bob.after]


def test_a_harmful_change_costs_its_backers_and_pays_its_opponents() -> None:
    log = running()
    log.join("cat")
    log.propose("amy", 0.5, confidence=0.9, target="loss")
    log.vote("cat", "against", confidence=0.6)
    log.vote("bob", "for", confidence=0.9)
    log.receipt(log.last)
    watch(log, 10, 1.5)
    success = {line.agent: (line.success, line.after > 1) for line in only(log).lines}
    assert success == {"amy": (0.0, False), "bob": (0.0, False), "cat": (0.0, True)}


def test_a_proposal_on_the_losing_side_is_not_judged() -> None:
    log = running()
    log.join("cat")
    log.propose("amy", 0.5, confidence=0.9)
    log.propose("cat", 2.0, confidence=0.2)
    log.propose("bob", 0.6, confidence=0.9)
    log.receipt(log.last)
    log.tick(100)
    watch(log, 1, 1.0)
    assert {stake.agent for outcome in log.outcomes for stake in outcome.lines} <= {"amy", "bob"}


@pytest.mark.parametrize("status", ["noop", "rejected", "expired", "unknown"])
def test_a_change_that_was_not_applied_has_no_outcome(status: str) -> None:
    log = running()
    log.propose("amy", 0.5, target="loss")
    log.vote("bob", "for")
    log.receipt(log.last, status)
    watch(log, 60, 1.0)
    assert not log.outcomes


def test_too_few_measurements_say_nothing() -> None:
    log = Log.running("amy", "bob", **RULES)
    watch(log, 2, 1.0)
    change(log, 0.5)
    watch(log, 10, 0.5)
    assert not only(log).scored and "2 measurements of loss before it, 3 required" in only(log).reason
    assert log.mesh.state.reputations == {}


def test_a_rarely_measured_metric_is_awaited() -> None:
    log = Log.running("amy", "bob", **RULES)
    for tick in range(40):
        log.tick(**({"eval/loss": 1.0 + tick % 20 / 100} if tick % 10 == 0 else {"loss": 1.0}))
    change(log, 0.5, target="eval/loss")
    for tick in range(35):
        log.tick(**({"eval/loss": 0.5} if tick % 10 == 0 else {"loss": 1.0}))
    outcome = only(log)
    assert outcome.scored and outcome.samples == (3, 3) and outcome.tick == 40 + 31


def test_a_rarely_measured_metric_is_not_awaited_forever() -> None:
    log = running()
    change(log, 0.5, target="eval/loss")
    log.tick(60)
    outcome = only(log)
    assert (outcome.scored, outcome.tick) == (False, 60) and "0 measurements of eval/loss before" in outcome.reason


def test_the_next_change_on_the_metric_closes_the_window() -> None:
    log = running()
    first = change(log, 0.5)
    watch(log, 3, 0.9)
    second = change(log, 2.0, CLIP)
    early = only(log)
    assert (early.decision_id, early.scored) == (first.id, False)
    assert f"confounded by grad.clip (decision {second.id}) before half of its 10 ticks" in early.reason
    watch(log, 7, 0.8)
    third = change(log, 1.0)
    late = log.outcomes[1]
    assert (late.decision_id, late.scored) == (second.id, True) and f"decision {third.id}" in late.reason
    assert late.samples == (3, 4), "neither side reaches over another change"


def test_harm_counts_at_once_even_if_the_next_change_follows() -> None:
    for cover in (CLIP, BACK):
        log = running()
        change(log, 0.5)
        watch(log, 4, 3.0)
        log.propose("amy", 2.0 if cover == CLIP else 5.0, cover, 0.8, target="loss")
        log.vote("bob", "for", actuator=cover)
        log.receipt(log.last)
        outcome = only(log)
        assert outcome.scored and outcome.lines[0].success == 0 and f"confounded by {cover}" in outcome.reason


def test_a_window_on_another_metric_closes_only_for_a_rollback_or_the_same_knob() -> None:
    for actuator, closes in ((CLIP, False), (BACK, True), (LR, True)):
        log = running()
        change(log, 0.5, target="loss")
        watch(log, 2, 1.0)
        change(log, 2.0, actuator, target="eval/loss")
        assert bool(log.outcomes) is closes


def test_a_rollback_and_a_cut_at_one_tick_are_one_change_to_the_metric() -> None:
    for order in ((LR, BACK), (BACK, LR)):
        log = running()
        watch(log, 10, 2.0)
        decisions = [change(log, 0.5 if actuator == LR else 5.0, actuator) for actuator in order]
        watch(log, 14, 1.0)
        assert not log.outcomes  # steps 11 to 20 are compared with themselves, and it is at 19
        watch(log, 1, 1.0)
        assert [(outcome.decision_id, outcome.scored) for outcome in log.outcomes] == [(d.id, True) for d in decisions]
        assert [(outcome.samples, outcome.beat) for outcome in log.outcomes] == [((10, 10), 1.0)] * 2
        assert log.outcomes[0].gain == log.outcomes[1].gain == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("order", [(BACK,), (BACK, LR), (LR, BACK)])
def test_a_quick_rollback_is_compared_with_the_steps_it_threw_away(order: tuple[str, ...]) -> None:
    """And so is what was done together with it; the ticks before the harm were healthy, and prove nothing."""
    log = running()
    watch(log, 4, 3.0)
    for actuator in order:
        change(log, 0.5 if actuator == LR else log.mesh.state.tick - 4, actuator)
    watch(log, 10, 1.0)
    assert len(log.outcomes) == len(order)
    for outcome in log.outcomes:
        assert outcome.scored and outcome.samples == (4, 4) and outcome.beat == 1.0
        assert outcome.gain == pytest.approx(2.0, abs=0.05) and outcome.lines[0].success == 1.0


@pytest.mark.parametrize(("slower", "beat"), [(1.0, 0.5), (0.5, 0.0)])
def test_a_loss_that_falls_again_after_a_rollback_is_no_gain(slower: float, beat: float) -> None:
    """The same steps as before it, however far the loss falls beyond them."""
    log = Log.running("amy", "bob", **RULES)
    for step in range(1, 11):
        log.tick(loss=10.0 - 0.5 * step)
    change(log, 0.5)
    change(log, 0.0, BACK)
    for step in range(1, 41):
        log.tick(loss=10.0 - slower * 0.5 * step)
    beats = [outcome.beat for outcome in log.outcomes]
    assert len(beats) == 2 and all(value == pytest.approx(beat, abs=0.15) for value in beats), beats


@pytest.mark.parametrize(("after", "scored"), [(1.0, False), (3.0, False), (9.0, True)])
def test_a_rollback_of_too_few_steps_is_judged_for_clear_harm_only(after: float, scored: bool) -> None:
    """Or to go back by a tick again and again would cost nothing."""
    log = running()
    watch(log, 2, 3.0)
    change(log, log.mesh.state.tick - 2, BACK)
    watch(log, 10, after)
    assert only(log).scored is scored
    if scored:
        assert only(log).beat == 0 and only(log).lines[0].success == 0
    else:
        assert "it discarded fewer than 3 measurements of loss" in only(log).reason


def test_a_target_that_is_finite_again_is_a_success_without_figures() -> None:
    log = running()
    for _ in range(4):
        log.tick(loss=math.nan)
    change(log, log.mesh.state.tick - 3, BACK)
    change(log, 0.5)
    watch(log, 10, 1.0)
    for outcome in log.outcomes:
        assert outcome.scored and outcome.gain is None and outcome.beat == 1.0 and "finite again" in outcome.reason
        assert outcome.lines[0].success == 1.0 and outcome.samples[1] == 5


def test_a_gain_within_noise_is_no_success() -> None:
    log = running()
    change(log, 0.5)
    watch(log, 10, 1.0)
    assert only(log).beat == pytest.approx(0.5, abs=0.3) and only(log).lines[0].success < 0.3


def test_a_target_that_stops_being_finite_is_a_failure_without_figures() -> None:
    log = running()
    change(log, 0.5)
    watch(log, 3, 0.9)
    log.tick(loss=math.nan)
    change(log, None, BACK)
    outcome = only(log)
    assert outcome.scored and outcome.gain is None and outcome.after is None and outcome.noise is None
    assert outcome.lines[0].success == 0 and "loss is no longer finite" in outcome.reason


def test_a_repair_is_not_blamed_early_for_an_already_broken_target() -> None:
    log = running()
    log.tick(loss=math.inf)
    change(log, 0.5)
    log.tick(loss=math.inf)
    change(log, None, BACK)
    assert not only(log).scored
    watch(log, 10, 0.7)
    assert log.outcomes[1].scored and log.outcomes[1].lines[0].success > 0.5


def test_the_end_and_a_restart_close_open_windows() -> None:
    log = running()
    change(log, 0.5)
    log.end()
    assert not only(log).scored and "the run ended (completed)" in only(log).reason
    log.restart(**RULES)
    watch(log, 10, 1.0)
    change(log, 0.5)
    watch(log, 2, 1.0)
    log.restart(**RULES)
    assert len(log.outcomes) == 2 and "the learner restarted" in log.outcomes[1].reason
    watch(log, 30, 1.0)
    assert len(log.outcomes) == 2


def test_the_end_scores_a_change_past_half_of_its_time() -> None:
    log = running()
    watch(log, 10, 1.0)
    change(log, 0.5)
    watch(log, 7, 0.5)
    log.end()
    outcome = only(log)
    assert outcome.scored and outcome.gain == pytest.approx(0.5, abs=0.01)
    assert "the run ended (completed)" in outcome.reason


def test_reputations_survive_a_restart_and_start_from_the_announced_ones() -> None:
    log = Log()
    log.start(reputations={"amy": 1.5}, **RULES)
    for agent in ("amy", "bob"):
        log.join(agent)
    watch(log, 10, 1.0)
    change(log, 0.5)
    watch(log, 10, 0.5)
    earned = dict(log.mesh.state.reputations)
    assert earned["amy"] > 1.5 and earned["bob"] > 1
    log.restart(reputations={"amy": 0.1, "cat": 0.4}, **RULES)
    assert log.mesh.state.reputations == {**earned, "cat": 0.4}


def test_the_forecast_comes_from_the_heaviest_proposal() -> None:
    log = running()
    log.propose("amy", 0.5, confidence=0.6, target="eval/loss", expected_change=-9, horizon=40)
    log.propose("bob", 0.6, confidence=0.7, target="loss", expected_change=-0.3, horizon=10**9)
    assert (log.last.target, log.last.expected_change, log.last.horizon) == ("loss", -0.3, 100)


@pytest.mark.parametrize(
    ("target", "judge"),
    [("loss", "loss"), ("eval/loss", "eval/loss"), ("", "eval/loss"), ("gauge", "eval/loss"), ("nobody", "eval/loss")],
)
def test_the_judging_metric(target: str, judge: str) -> None:
    """A gauge without a direction judges nothing: naming one is no way out."""
    log = running(metrics=(MetricSpec(name="gauge"), *METRICS))
    assert change(log, 0.5, target=target).target == judge


def test_an_actuator_that_moves_its_own_metric_is_judged_by_held_out_data() -> None:
    log = running()
    decision = change(log, {"web": 0.2, "code": 0.3, "math": 0.5}, MIX, target="loss")
    assert (decision.verdict, decision.target, decision.expected_change) == ("adopted", "eval/loss", 0.0)


def test_the_held_out_metric_of_the_whole_judges_in_any_order_of_announcement() -> None:
    names = ("eval/loss/web", "eval/loss", "eval/other")
    log = running(metrics=tuple(MetricSpec(name=name, better="down", held_out=True) for name in names))
    assert change(log, {"web": 0.2, "code": 0.3, "math": 0.5}, MIX, target="").target == "eval/loss"


@pytest.mark.parametrize("metrics", [METRICS[:1], (MetricSpec(name="eval/loss", held_out=True),)])
def test_an_actuator_that_moves_its_own_metric_is_refused_without_held_out_data(
    metrics: tuple[MetricSpec, ...],
) -> None:
    log = running(metrics=metrics)
    for _ in range(3):
        log.propose("amy", {"web": 0.2, "code": 0.3, "math": 0.5}, MIX, 0.9, target="eval/loss")
    assert not log.ballots and len(log.decisions) == 1 and log.last.ballot == ""
    assert "without moves_own_metric" in log.last.reason and log.mesh.state.counters["refused.yardstick"] == 3


def test_memory_is_bounded() -> None:
    names = [f"m{n}" for n in range(300)]
    measured = Measurements(names)
    for tick in range(600):
        measured.add(tick, tick, dict.fromkeys(names, 1.0))
    assert [name for name in names if name in measured] == names[:128]
    assert {len(measured.at_ticks(name, -1, 600)) for name in names[:128]} == {512}


def test_outcomes_are_replayed_byte_for_byte_and_a_late_replica_knows_the_reputations() -> None:
    log = running()
    for n in range(6):
        change(log, (0.5, 1.0)[n % 2], target="loss")
        watch(log, 12, 1.0 - n / 20)
    log.end()
    assert len(log.outcomes) > 3
    report = replay(log.events, "r")
    assert report.same and report.by_kind["outcome"] == len(log.outcomes)
    replica = Mesh("r")
    for entry in log.events:
        replica.step(entry)
    assert replica.state.reputations == log.mesh.state.reputations != {} and replica.divergence is None
    cut = [entry for entry in log.events if ".outcome." not in entry.subject]
    assert not replay(cut, "r").same


def test_without_a_judging_metric_there_is_no_outcome() -> None:
    log = running(metrics=METRICS[:1])
    assert change(log, 0.5, target="gauge").target == ""
    watch(log, 60, 1.0)
    assert not log.outcomes and not log.mesh.state.reputations
