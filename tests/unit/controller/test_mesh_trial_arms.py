"""Further arms of a trial: differing values of one ballot, and the next plans of those who proposed the change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.mesh_log import LR, RUN, SPECS, Log

from oven_core.mesh.actuator_values import outside, shaped
from oven_core.mesh.trial_arms import differ
from oven_core.protocol.messages import ActuatorSpec, NextPlan, Value
from oven_core.protocol.trial_messages import ArmReading, TrialStarted
from oven_runs.log.replay import replay

CLIP, TEACHER, SKIP, BACK = "grad.clip", "teacher.active", "data.skip", "run.rollback"
READING = "eval/loss"
RISKY = (
    *(spec.model_copy(update={"risky": True}) if spec.name == TEACHER else spec for spec in SPECS),
    ActuatorSpec(name=SKIP, kind="action"),
)
MOVES = tuple(spec.name for spec in RISKY)


def running(*agents: str, shadows: tuple[str, ...] = (), **rules: Any) -> Log:
    log = Log()
    rules = {"trials": "risky", "trial_share": 1.0, "max_fraction": 0.5, **rules}
    log.start(RISKY, reading=READING, **rules)
    for agent in agents or ("ann", "bob"):
        log.join(agent, moves=MOVES, speciality=MOVES, shadow=agent in shadows)
    log.tick(10)
    return log


def plan(confidence: float = 0.7, remedy: str = "", /, **changes: Value) -> NextPlan:
    named = {"skip": SKIP, "back": BACK, "clip": CLIP, "teacher": TEACHER, "lr": LR, "hold": "run.hold"}
    return NextPlan(remedy=remedy, changes={named[key]: value for key, value in changes.items()}, confidence=confidence)


def offered(log: Log, *plans: NextPlan, value: Value = 3.0, actuator: str = CLIP, **more: Any) -> None:
    """One agent proposes a change and says what it would try next; the other abstains."""
    log.propose("ann", value, actuator, 0.9, otherwise=plans, evidence=("symptom:loss_spike",), **more)
    log.vote("bob", "abstain", actuator=actuator)


def arms(log: Log) -> list[dict[str, Value]]:
    return [arm.changes for arm in log.trials[-1].arms]


def test_values_that_differ_are_arms_and_the_heaviest_comes_first() -> None:
    log = running("ann", "bob", "cid")
    log.propose("ann", 5.0, CLIP, 0.7)
    log.propose("bob", 3.0, CLIP, 0.6)
    log.propose("cid", 1.5, CLIP, 0.9)
    assert arms(log) == [{}, {CLIP: 3.0}, {CLIP: 1.5}, {CLIP: 5.0}]
    first, low, high = log.decisions
    assert [decision.verdict for decision in log.decisions] == ["tried"] * 3
    assert "cid proposed 1.5; a trial compares it with 3" in low.reason and low.ballot == "" != first.ballot
    assert [(line.agent, line.value) for line in high.tally] == [("ann", 5.0)]


def test_who_asked_for_the_other_way_is_judged_by_its_own_arm() -> None:
    log = running("ann", "bob", "cid")
    log.propose("ann", 3.0, CLIP, 0.9)
    log.propose("bob", 3.0, CLIP, 0.9)
    log.propose("cid", 0.5, CLIP, 0.6)
    assert arms(log) == [{}, {CLIP: 3.0}, {CLIP: 0.5}]
    up, down = log.decisions
    read = {"mean": 2.0, "error": 0.1, "examples": 64}
    log.trial_ended(kept=2, arms=(ArmReading(**read), *(ArmReading(**read, gain=g, noise=0.1) for g in (-0.3, 0.4))))
    lines = [[(line.agent, line.merit > 0) for line in outcome.lines] for outcome in log.outcomes]
    assert lines == [[("ann", False), ("bob", False)], [("cid", True)]]
    log.receipt(down)
    log.receipt(up, "skipped")
    assert (log.mesh.state.effective[CLIP], log.mesh.state.adopted) == (0.5, 1)
    assert log.mesh.trials.lost(CLIP, "up") and not log.mesh.trials.lost(CLIP, "down")
    assert replay(log.events, RUN).same


def test_one_direction_that_lost_in_two_arms_has_lost_once() -> None:
    log = running(outcome_ticks=10)
    log.propose("ann", 5.0, CLIP, 0.9)
    log.propose("bob", 2.5, CLIP, 0.6)
    assert len(arms(log)) == 3
    log.trial_ended(gain=-0.3)
    assert log.mesh.trials.lost(CLIP, "up").endswith("asked again from tick 20 on")


def test_what_beat_the_control_and_not_the_best_has_not_lost() -> None:
    log = running()
    offered(log, plan(skip=10), plan(teacher="big"))
    read = {"mean": 2.0, "error": 0.1, "examples": 64}
    gains = [ArmReading(**read, gain=gain, noise=0.1) for gain in (0.3, 0.5, 0.1)]
    log.trial_ended(kept=2, arms=(ArmReading(**read), *gains))
    lost = log.mesh.trials.lost
    assert not lost(CLIP, "up") and not lost(SKIP, "set") and lost(TEACHER, "set"), "0.1 is within its noise"


@pytest.mark.parametrize("second", [3.0, 3.5])
def test_values_that_hardly_differ_are_one_arm(second: float) -> None:
    log = running()
    log.propose("ann", 3.0, CLIP, 0.9)
    log.propose("bob", second, CLIP, 0.6)
    assert len(arms(log)) == 2


def test_shadows_make_no_arm() -> None:
    log = running("ann", "bob", shadows=("bob",))
    log.propose("ann", 3.0, CLIP, 0.9)
    log.propose("bob", 0.5, CLIP, 0.9, otherwise=(plan(skip=5.0),))
    log.tick(5)
    assert arms(log) == [{}, {CLIP: 3.0}]


def test_newcomers_make_no_arm() -> None:
    log = running("ann", "bob", newcomers="probation", trusted={"ann": (CLIP,)})
    log.propose("ann", 3.0, CLIP, 0.9, otherwise=(plan(skip=5.0),))
    log.propose("bob", 0.5, CLIP, 0.9, otherwise=(plan(teacher="big"),))
    log.tick(5)
    assert arms(log) == [{}, {CLIP: 3.0}], "ann is trusted with one actuator, and bob with none"


def test_next_plans_are_arms_after_the_proposal() -> None:
    log = running()
    offered(log, plan(0.6, "rollback_and_skip", back=5, skip=10), plan(teacher="big"))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5, SKIP: 10}, {TEACHER: "big"}]
    assert list(arms(log)[2]) == [BACK, SKIP], "in the order in which they are carried out"
    first, back, skip, teacher = log.decisions
    assert "ann would try this next (rollback_and_skip); a trial compares it" in back.reason
    assert log.trials[0].arms[2].decisions == (back.id, skip.id)
    assert (back.tally[0].confidence, back.tally[0].value) == (0.6, 5)
    log.trial_ended(kept=2, gain=0.4)
    assert [(outcome.decision_id, outcome.lines[0].confidence) for outcome in log.outcomes] == [
        (first.id, 0.9), (back.id, 0.6), (skip.id, 0.6), (teacher.id, 0.7)
    ]  # fmt: skip
    for decision in (back, skip):
        log.receipt(decision)
    for decision in (first, teacher):
        log.receipt(decision, "skipped")
    assert not log.mesh.state.in_flight and log.mesh.state.effective[CLIP] == 1.0
    report = replay(log.events, RUN)
    assert report.same and report.equal == len(log.outputs)


def test_without_trials_next_plans_change_nothing() -> None:
    logs = []
    for plans in ((), (plan(skip=5.0),)):
        log = running(trials="off")
        offered(log, *plans)
        logs.append([output.message for output in log.outputs])
    assert logs[0] == logs[1] and logs[0]


@pytest.mark.parametrize(
    ("refused", "rules"),
    [
        (plan(clip=11.0), {}),
        (plan(teacher="huge"), {}),
        (plan(hold=None), {}),
        (plan(skip=5.0), {"autonomy_of": {SKIP: "advise"}}),
        (plan(skip=5.0), {"autonomy_of": {SKIP: "observe"}}),
        (plan(back=5, skip=5.0), {"requires": ((SKIP, "metric:tokens"),)}),
        (plan(teacher="big", skip=5.0), {"contradictions": ((TEACHER, SKIP),)}),
        (plan(teacher="none"), {}),
        (NextPlan(changes={"no.such": 1.0}, confidence=0.9), {}),
        (plan(clip=3.2), {}),
        (plan(lr=0.5), {}),
    ],
    ids=[
        "bounds", "choice", "no outcome", "advise", "observe", "requires", "contradiction", "no change", "unknown",
        "the same", "cooled down",
    ],
)  # fmt: skip
def test_what_the_rules_would_not_adopt_is_no_arm(refused: NextPlan, rules: dict[str, Any]) -> None:
    log = running(**rules)
    offered(log, refused, plan(back=5))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5}]


def test_what_cools_down_or_is_on_another_ballot_is_no_arm() -> None:
    log = running()
    log.propose("ann", "big", TEACHER, 0.9)
    offered(log, plan(teacher="small"), plan(back=5))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5}]
    log = running(cooldown_ticks=50)
    offered(log, value="big", actuator=TEACHER)
    log.trial_ended(kept=1, gain=0.4)
    log.receipt(log.last)
    log.tick(3)
    offered(log, plan(teacher="small"), plan(back=5))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5}]


def test_as_many_arms_as_there_are_steps_for() -> None:
    found = []
    for share in (0.05, 0.1, 0.15):
        log = running(trial_share=share)
        offered(log, plan(back=10), plan(skip=10))
        found.append(len(arms(log)) - 1)
    assert found == [1, 2, 3], "each takes 8 of 10, 20 and 30"
    log = running(trial_share=0.1)
    offered(log, plan(back=1), plan(skip=10))
    assert arms(log) == [{}, {CLIP: 3.0}, {SKIP: 10}], "the rollback's length does not fit, and what is shorter does"


def test_at_most_three_changes() -> None:
    log = running("ann", "bob", "cid")
    for agent, value in (("ann", 3.0), ("bob", 5.0), ("cid", 1.5)):
        log.propose(agent, value, CLIP, 0.9, otherwise=(plan(back=5), plan(skip=3)))
    assert len(arms(log)) == 4 and all(list(arm) == [CLIP] for arm in arms(log)[1:])


def test_beside_a_rate_no_other_change_fits() -> None:
    log = running(trials="all")
    offered(log, plan(skip=5.0), value=0.5, actuator=LR)
    assert arms(log) == [{}, {LR: 0.5}]
    log = running(trials="all", trial_cooldown=0)
    offered(log, plan(skip=5.0), value=0.5, actuator=LR)
    assert arms(log) == [{}, {LR: 0.5}, {SKIP: 5.0}]


def test_where_the_trial_cannot_be_made_only_what_passed_is_adopted() -> None:
    log = running()
    offered(log, plan(skip=5.0))
    first, skip = log.decisions
    log.trial_ended(status="refused", arms=(), reason="the model is sharded")
    assert [decision.verdict for decision in log.decisions] == ["tried", "tried", "adopted"]
    assert (log.last.actuator, log.last.value) == (CLIP, 3.0)
    for decision in (first, skip):
        log.receipt(decision, "skipped")
    assert list(log.mesh.state.in_flight) == [log.last.id]


def test_what_lost_a_trial_is_no_arm() -> None:
    log = running()
    offered(log, plan(skip=10), value="big", actuator=TEACHER)
    log.trial_ended(gain=-0.3)
    for decision in log.decisions:
        log.receipt(decision, "skipped")
    log.tick(8)
    offered(log, plan(skip=10), plan(back=5))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5}]


def test_an_exploring_proposal_has_further_arms_too() -> None:
    log = running()
    log.propose("ann", 3.0, CLIP, 0.5, otherwise=(plan(skip=5.0),))
    log.vote("bob", "abstain", actuator=CLIP)
    assert "no quorum" in log.decisions[0].reason and arms(log) == [{}, {CLIP: 3.0}, {SKIP: 5.0}]


@pytest.mark.parametrize(
    "otherwise",
    [
        [{"changes": {f"a{n}": 1.0 for n in range(9)}, "confidence": 0.5}],
        [{"changes": {"a" * 121: 1.0}, "confidence": 0.5}],
        [{"changes": {"a": 1.0}, "confidence": 0.5, "remedy": "r" * 65}],
        [{"changes": {}, "confidence": 0.5}],
        [{"changes": {"a": 1.0}, "confidence": 1.5}],
        [{"changes": {"a": 1.0}, "confidence": 0.5}] * 3,
    ],
    ids=["changes", "name", "remedy", "none", "confidence", "plans"],
)
def test_a_vote_with_more_than_that_is_malformed(otherwise: list[dict[str, Any]]) -> None:
    log = running()
    body = {"type": "Vote", "actuator": CLIP, "stance": "propose", "value": 3.0, "tick": 10, "confidence": 0.9}
    assert log.put("vote.ann", json.dumps({**body, "otherwise": otherwise}).encode()) == []
    assert log.mesh.state.counters["malformed.vote"] == 1 and not log.mesh.ballots
    with pytest.raises(ValidationError):
        NextPlan.model_validate(otherwise[0] if len(otherwise) < 3 else {})


def test_a_text_as_long_as_a_vote_comes_no_further() -> None:
    log = running()
    offered(log, plan(teacher="x" * 12_000), plan(back=5))
    assert arms(log) == [{}, {CLIP: 3.0}, {BACK: 5}]
    assert all(len(output.message.wire()) < 4_000 for output in log.outputs)


SCALES = (
    ActuatorSpec(name="a", kind="scalar", low=0, high=10),
    ActuatorSpec(name="a", kind="scalar", scale="log", low=0.01, high=100),
    ActuatorSpec(name="a", kind="scalar", scale="log"),
    ActuatorSpec(name="a", kind="scalar"),
)


@given(st.sampled_from(SCALES), *[st.floats(0.01, 10)] * 3)
def test_whether_two_values_differ_is_the_same_both_ways(spec: ActuatorSpec, now: float, a: float, b: float) -> None:
    assert differ(spec, now, a, b) == differ(spec, now, b, a)
    assert not differ(spec, now, a, a)
    if (a < now) != (b < now) and now not in (a, b):
        assert differ(spec, now, a, b)


def test_how_far_apart() -> None:
    linear, log, free_log, free = SCALES
    assert differ(linear, 1, 3, 4) and not differ(linear, 1, 3, 3.9)
    assert differ(log, 1, 0.5, 0.19) and not differ(log, 1, 0.5, 0.25)
    assert differ(free_log, 1, 2, 3) and not differ(free_log, 1, 2, 2.9)
    assert differ(free, 1, 2, 3) and not differ(free, 1, 2, 2.9)
    simplex = next(spec for spec in SPECS if spec.kind == "simplex")
    near, far = {"web": 0.55, "code": 0.25, "math": 0.2}, {"web": 0.6, "code": 0.2, "math": 0.2}
    assert differ(simplex, simplex.value, simplex.value, far) and not differ(
        simplex, simplex.value, simplex.value, near
    )


odd = st.sampled_from([None, "big", 0.0, -1.0, float("nan"), float("inf"), 1e308])
fit = st.sampled_from([0.5, 2.0, 3.0, 5.0, 9.0]) | st.floats(0.01, 10)
numbers = st.one_of(fit, fit, fit, fit, odd)
changes = st.fixed_dictionaries(
    {},
    optional={
        CLIP: numbers, LR: numbers, SKIP: numbers, BACK: numbers, "no.such": numbers, "run.hold": odd,
        TEACHER: st.sampled_from(["none", "small", "big"]) | odd,
        "data.mixture": st.just({"web": 0.2, "code": 0.2, "math": 0.6}) | odd,
    },
)  # fmt: skip
plans = st.builds(
    NextPlan, changes=changes.filter(lambda found: 0 < len(found) < 4), confidence=st.sampled_from([0.0, 0.5, 1.0])
)
steps = st.one_of(
    st.tuples(
        st.just("propose"), st.lists(st.tuples(st.sampled_from("abcd"), numbers), min_size=1, max_size=3),
        st.sampled_from([CLIP, CLIP, SKIP, LR]), st.sampled_from([0.3, 0.6, 0.9]),
        st.lists(plans, min_size=1, max_size=2),
    ),
    st.tuples(st.just("tick"), st.integers(1, 8)),
    st.tuples(st.just("end"), st.integers(0, 3), st.sampled_from([None, -1.0, 1.0])),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=3, max_size=16), st.sampled_from([0.05, 0.2, 1.0]))
def test_whatever_agents_offer_arms_are_what_the_rules_allow(said: list[tuple[Any, ...]], share: float) -> None:
    log = running("a", "b", "c", "d", shadows=("d",), trials="all", trial_share=share, trial_cooldown=2)
    checked = 0
    for step in said:
        effective = dict(log.mesh.state.effective)
        match step:
            case ("propose", proposals, actuator, confidence, otherwise):
                for agent, value in proposals:
                    log.propose(agent, value, actuator, confidence, otherwise=tuple(otherwise))
                for agent in sorted({*"abc"} - {agent for agent, _ in proposals}):
                    log.vote(agent, "abstain", actuator=actuator)
            case ("tick", count):
                log.tick(count)
            case ("end", kept, gain) if log.mesh.trials.open is not None:
                trial = log.mesh.trials.open
                log.trial_ended(kept=min(kept, len(trial.arms) - 1) if gain == 1.0 else 0, gain=gain)
                for flight in list(log.mesh.state.in_flight.values()):
                    if flight.decision.verdict == "tried":
                        log.receipt(flight.decision, "skipped")
        for trial in log.trials[checked:]:
            checked += 1
            _check(log, trial, effective, share)
    assert replay(log.events, RUN).same


def _check(log: Log, trial: TrialStarted, effective: dict[str, Value], share: float) -> None:
    specs, decided = {spec.name: spec for spec in RISKY}, {decision.id: decision for decision in log.decisions}
    ids = [id_ for arm in trial.arms for id_ in arm.decisions]
    assert len(trial.arms) <= 4 and len(ids) == len(set(ids)) and not trial.arms[0].changes
    assert len(trial.arms) == 2 or trial.cooldown == 0
    back = [max(0.0, trial.tick - float(arm.changes.get(BACK, trial.tick) or 0)) for arm in trial.arms[1:]]  # type: ignore[arg-type]
    assert len(back) * trial.steps + sum(back) + trial.cooldown * len(trial.arms) <= share * 200
    for arm in trial.arms[1:]:
        assert [decided[id_].actuator for id_ in arm.decisions] == list(arm.changes)
        assert all(decided[id_].verdict == "tried" for id_ in arm.decisions)
        assert "d" not in {line.agent for id_ in arm.decisions for line in decided[id_].tally if line.weight > 0}
        for name, value in arm.changes.items():
            assert shaped(specs[name], value) == value and outside(specs[name], value) is None
            assert specs[name].has_outcome and (value != effective[name] or specs[name].kind == "action")
