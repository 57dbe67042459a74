"""Which changes the mesh has tried, what a trial may cost, and what follows from what it showed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.mesh_log import LR, METRICS, RUN, SPECS, Log

from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Value
from oven_core.protocol.trial_messages import TrialEnded
from oven_runs.log.replay import replay

CLIP = "grad.clip"
READING = "eval/loss"
SAFE = tuple(spec.model_copy(update={"risky": False}) for spec in SPECS)
RISKY = tuple(spec.model_copy(update={"risky": spec.name in (LR, CLIP)}) for spec in SPECS)


def running(*agents: str, reading: str = READING, specs: tuple[ActuatorSpec, ...] = RISKY, **rules: Any) -> Log:
    log = Log()
    log.start(specs, reading=reading, **{"trials": "risky", **rules})
    for agent in agents or ("ann", "bob"):
        log.join(agent, speciality=(LR, CLIP, "run.rollback"))
    log.tick(10)
    return log


def propose(log: Log, value: Value = 0.5, actuator: str = LR, confidence: float = 0.9, **more: Any) -> None:
    """One agent proposes, and the others abstain."""
    log.propose("ann", value, actuator, confidence, **more)
    log.vote("bob", "abstain", actuator=actuator)


def test_a_risky_change_that_passed_is_tried_and_kept() -> None:
    log = running()
    propose(log)
    assert log.verdict == "tried" and log.last.reason.endswith("; a trial measures it first")
    (trial,) = log.trials
    control, arm = trial.arms
    assert (control.decisions, control.changes) == ((), {})
    assert (arm.decisions, arm.changes) == ((log.last.id,), {LR: 0.5})
    assert (trial.steps, trial.cooldown, trial.reading, trial.margin) == (8, 4, READING, 2.0)
    assert log.mesh.state.adopted == 0, "nothing has changed yet"
    decision = log.last
    log.trial_ended(kept=1, gain=0.4)
    (outcome,) = log.outcomes
    assert (outcome.measured, outcome.scored, outcome.decision_id) == (True, True, decision.id)
    assert (outcome.gain, outcome.noise, outcome.samples, outcome.target) == (0.4, 0.1, (64, 64), READING)
    assert outcome.reason == "a trial of 8 steps measured a gain of 0.4 ± 0.1: kept"
    (line,) = outcome.lines
    assert (line.agent, line.success) == ("ann", 1.0) and line.after > line.before
    log.receipt(decision)
    assert (log.mesh.state.adopted, log.mesh.state.effective[LR]) == (1, 0.5)
    assert not log.mesh.state.in_flight


def test_what_lost_is_not_asked_again_on_the_same_evidence() -> None:
    log = running(outcome_ticks=10, trial_share=1.0)
    waits = []
    for _ in range(3):
        propose(log)
        assert log.verdict == "tried"
        lost = log.last
        log.trial_ended(gain=-0.3)
        log.receipt(lost, "skipped")
        assert log.outcomes[-1].lines[0].after < log.outcomes[-1].lines[0].before
        began = log.mesh.state.tick
        log.tick(6)
        propose(log)
        assert log.verdict == "rejected"
        assert "a gain of -0.3 ± 0.1 in eval/loss; asked again from tick" in log.last.reason
        waits.append(int(log.last.reason.rsplit("tick ", 1)[1].split()[0]) - began)
        log.tick(210)
    assert waits == [10, 20, 40]
    assert log.mesh.state.effective[LR] == 1.0


def test_what_lost_is_not_adopted_untried() -> None:
    log = running(outcome_ticks=10)
    propose(log)
    log.trial_ended(gain=-0.3, extra=20)
    log.tick(60)
    propose(log)
    assert log.verdict == "rejected" and "; and it cannot be tried again now: it would throw away" in log.last.reason


def test_a_kept_change_makes_it_worth_asking_again() -> None:
    log = running(trial_share=1.0)
    propose(log)
    lost = log.last
    log.trial_ended(gain=-0.3)
    log.receipt(lost, "skipped")
    propose(log, 0.7, CLIP)
    log.trial_ended(kept=1, gain=0.3)
    log.receipt(log.last)
    log.tick(6)
    propose(log)
    assert log.verdict == "tried"


@pytest.mark.parametrize(
    ("reading", "rules", "specs"),
    [("", {}, RISKY), (READING, {"trials": "off"}, RISKY), (READING, {}, SAFE)],
    ids=["not announced", "off", "not risky"],
)
def test_it_is_adopted_as_ever(reading: str, rules: dict[str, Any], specs: tuple[ActuatorSpec, ...]) -> None:
    log = running(reading=reading, specs=specs, **rules)
    propose(log)
    assert log.verdict == "adopted" and not log.trials and "tri" not in log.last.reason.split("quorum")[-1]


def test_the_unsure_and_all_of_them() -> None:
    for trials, confidence, verdict in (("unsure", 0.7, "tried"), ("unsure", 0.9, "adopted"), ("all", 0.9, "tried")):
        log = running(specs=SAFE, trials=trials)
        propose(log, confidence=confidence)
        assert log.verdict == verdict


def test_what_no_metric_can_judge_is_not_tried() -> None:
    log = running(trials="all")
    propose(log, None, "run.evaluate")
    log.propose("bob", None, "run.evaluate", 0.9)
    assert not log.trials


def test_a_proposal_that_lacks_a_quorum_alone_is_tried() -> None:
    log = running()
    propose(log, confidence=0.5)
    assert log.verdict == "tried" and "no quorum" in log.last.reason
    assert log.last.reason.endswith("; a trial shows what it is worth")
    log.trial_ended(gain=-0.3)
    log.tick(6)
    propose(log, confidence=0.5)
    assert log.verdict == "rejected" and len(log.trials) == 1


def test_what_was_vetoed_or_split_or_observed_is_not() -> None:
    log = running("ann", "bob", "cid")
    log.propose("ann", 0.5, confidence=0.5)
    log.vote("bob", "against", confidence=0.9)
    log.vote("cid", "abstain")
    assert log.verdict == "rejected" and "vetoed" in log.last.reason
    observed = running(autonomy="observe")
    propose(observed)
    assert observed.verdict == "rejected"
    advised = running(autonomy="advise")
    propose(advised)
    assert advised.verdict == "advised"
    assert not (log.trials or observed.trials or advised.trials)


def test_parts_of_a_plan_are_one_arm() -> None:
    log = running()
    for actuator, value in ((LR, 0.5), (CLIP, 0.6)):
        log.propose("ann", value, actuator, 0.9, plan=(LR, CLIP))
        log.vote("bob", "abstain", actuator=actuator)
    (trial,) = log.trials
    assert [decision.verdict for decision in log.decisions] == ["tried", "tried"]
    assert trial.arms[1].changes == {LR: 0.5, CLIP: 0.6}
    assert trial.arms[1].decisions == tuple(decision.id for decision in log.decisions)
    log.trial_ended(kept=1, gain=0.4)
    assert [outcome.gain for outcome in log.outcomes] == [0.4, 0.4]


@pytest.mark.parametrize(
    ("started", "told"),
    [
        ({"trial_share": 0.0}, "it would throw away 16 steps, and of the newest 200 ticks 0 of 0 are spent"),
        ({"max_steps": 100}, "it would throw away 16 steps, and 0 of 10 are spent on trials"),
        ({"max_steps": 30, "trial_share": 1.0}, "it takes 12 steps, and the run ends at step 30"),
    ],
)
def test_without_steps_to_spend_it_is_adopted_and_says_why(started: dict[str, Any], told: str) -> None:
    log = running(**started)
    propose(log)
    assert log.verdict == "adopted" and log.last.reason.endswith(f"; not tried: {told}")
    doubtful = running(**started)
    propose(doubtful, confidence=0.5)
    assert doubtful.verdict == "rejected"


def test_the_newest_200_ticks_have_a_share_too() -> None:
    log = running(max_steps=1000)
    verdicts = []
    for _ in range(3):
        propose(log, 0.5 if log.mesh.state.effective[LR] == 1.0 else 1.0)
        verdicts.append(log.verdict)
        if log.verdict == "tried":
            log.trial_ended(kept=1, gain=0.4, extra=16)
        log.receipt(log.last)
        log.tick(101)
    assert verdicts == ["tried", "adopted", "tried"]


def test_a_rollback_costs_its_length_more() -> None:
    log = running(trial_share=0.05)
    propose(log, 9, "run.rollback")
    assert log.verdict == "tried"
    longer = running(trial_share=0.05)
    propose(longer, 3, "run.rollback")
    assert longer.verdict == "adopted" and "it would throw away 15 steps" in longer.last.reason


def test_what_passed_and_cannot_be_tried_is_adopted() -> None:
    log = running()
    propose(log)
    tried = log.last
    log.trial_ended(status="refused", arms=(), reason="the model is sharded")
    assert log.verdict == "adopted" and (log.last.actuator, log.last.value) == (LR, 0.5)
    assert "it could not be tried (the model is sharded), and is adopted without" in log.last.reason
    log.receipt(tried, "skipped")
    log.receipt(log.last)
    assert log.mesh.state.effective[LR] == 0.5 and log.mesh.state.adopted == 1
    unplayed = running()
    propose(unplayed)
    unplayed.trial_ended(gain=None)
    assert unplayed.verdict == "adopted" and "it cannot be set" in unplayed.last.reason
    doubtful = running()
    propose(doubtful, confidence=0.5)
    doubtful.trial_ended(status="refused", arms=(), reason="the model is sharded")
    assert doubtful.verdict == "tried"


def test_an_interrupted_trial_says_nothing() -> None:
    log = running()
    propose(log)
    log.trial_ended(status="interrupted", reason="an operator said hold")
    assert not log.outcomes and log.verdict == "tried"
    assert log.mesh.trials.open is None and log.mesh.trials.extra == 8


def test_an_answer_to_no_trial_is_counted_and_nothing_else() -> None:
    log = running()
    stray = TrialEnded(**log.stamp(), trial="none", status="completed", kept=1, tick=3, step=3, extra=500)
    assert log.put("branch", stray) == []
    assert log.mesh.state.counters["trial.not_open"] == 1 and log.mesh.trials.extra == 0


def test_a_learner_that_starts_again_ends_the_trial() -> None:
    log = running()
    propose(log)
    log.restart(specs=RISKY, reading=READING, trials="risky")
    assert log.mesh.trials.open is None
    log.tick(30)
    propose(log)
    assert log.verdict == "tried" and len(log.trials) == 2


def test_what_is_measured_moves_reputations_by_its_sign() -> None:
    up = running(specs=RISKY)
    propose(up)
    up.trial_ended(gain=0.0, noise=0.1)
    assert up.outcomes[0].beat == 0.5 and up.outcomes[0].lines[0].merit < 0, "a gain has to show"


def test_a_run_with_trials_is_replayed_byte_for_byte() -> None:
    log = running()
    propose(log)
    log.trial_ended(kept=1, gain=0.4)
    log.receipt(log.decisions[0])
    log.tick(8)
    propose(log, 0.2, confidence=0.5)
    log.tick(300)
    report = replay(log.events, RUN)
    assert report.same and report.equal == len(log.outputs) and not report.pending


def test_metrics_that_stand_for_the_whole_need_not_be_the_reading() -> None:
    log = Log()
    log.start(
        RISKY,
        trials="risky",
        reading="eval/acc",
        metrics=(*METRICS, MetricSpec(name="eval/acc", better="up", held_out=True)),
    )
    log.join("ann", speciality=(LR,))
    log.tick(10)
    log.propose("ann", 0.5, confidence=0.9, target="loss", expected_change=-0.2)
    log.trial_ended(kept=1, gain=0.4)
    assert log.outcomes[0].target == "eval/acc" and log.outcomes[0].forecast is None
