"""How votes become a verdict and a value."""

import pytest
from tests.support.mesh_log import LR, Log

from oven_core.mesh.value_merge import weighted_median
from oven_core.protocol.messages import ActuatorSpec

MIX = "data.mixture"


def test_an_agent_that_may_decide_alone_is_a_quorum_if_it_is_confident() -> None:
    log = Log.running("lr", alone=(LR,))
    log.propose("lr", 0.5, confidence=0.91, rationale="loss rose 12 % in 20 steps")
    assert (log.verdict, log.last.value, log.last.before) == ("adopted", 0.5, 1.0)
    assert log.last.reason == (
        "lr proposed 0.5 for optimizer.lr_scale, now 1, because loss rose 12 % in 20 steps; "
        "lr 0.91 for, none against; lr may decide alone at 0.6"
    )


def test_one_agent_alone_is_no_quorum() -> None:
    log = Log.running("amy")
    log.propose("amy", 0.5, confidence=0.95)
    assert log.verdict == "rejected"
    assert log.last.reason.endswith(
        "no quorum: evidence in favour: gradients; two independent kinds required, one of them at 0.6"
    )
    assert [line.kind for line in log.last.tally] == ["gradients"]
    log = Log.running("amy", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.59)
    assert log.verdict == "rejected" and log.last.reason.endswith("or amy alone at 0.6, not 0.59")


def test_a_vote_for_is_no_quorum_even_of_an_agent_that_may_decide_alone() -> None:
    log = Log()
    log.start(alone={"spec": (LR,)})
    for agent in ("amy", "spec"):
        log.join(agent)
    log.propose("amy", 0.5)
    log.vote("spec", "for", confidence=0.95, evidence=())
    assert log.verdict == "rejected" and "two independent kinds required, one of them at 0.6" in log.last.reason


def test_two_agreeing_agents_get_the_middle_on_the_actuators_scale() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.4)
    log.propose("bob", 0.9)
    assert (log.verdict, log.last.value) == ("adopted", 0.6)  # geometric: the scale is logarithmic
    log.propose("amy", 2.0, "grad.clip")
    log.propose("bob", 3.0, "grad.clip")
    assert (log.verdict, log.last.value) == ("adopted", 2.5)
    assert log.last.snapshot_first


def test_a_vote_for_backs_the_opening_value() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", 0.5)
    log.propose("bob", 0.9, confidence=0.5)
    log.vote("cat", "for", confidence=0.5)
    assert log.last.value == 0.5
    assert log.last.tally[2].value == 0.5


def test_reputation_weighs() -> None:
    log = Log()
    log.start(reputations={"amy": 3.0})
    for agent in ("amy", "bob"):
        log.join(agent)
    log.propose("amy", 0.4)
    log.propose("bob", 0.9)
    assert log.last.value == 0.4
    assert [line.weight for line in log.last.tally] == [1.8, 0.6]


def test_opposed_directions_are_split() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.propose("bob", 2.0, confidence=0.5)
    assert log.verdict == "rejected"
    assert "split: the largest side has 0.545 of the total weight 1.1, 0.667 required" in log.last.reason


def test_two_thirds_are_enough_for_a_majority_of_two_thirds() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", 0.5)
    log.propose("bob", 0.5)
    log.vote("cat", "against")
    assert log.verdict == "adopted"


def test_a_confident_against_is_a_veto() -> None:
    log = Log.running("amy", "bob", "cat", majority=0.51)
    log.propose("amy", 0.5, confidence=1.0)
    log.vote("bob", "for", confidence=1.0)
    log.vote("cat", "against", confidence=0.7, rationale="it only looks like divergence")
    assert log.verdict == "rejected"
    assert "vetoed by cat at confidence 0.7 (a veto needs 0.7) because it only looks" in log.last.reason
    log.tick(5)
    log.propose("amy", 0.5, confidence=1.0, rationale="it still rises")
    log.vote("bob", "for", confidence=0.01)
    log.vote("cat", "against", confidence=0.69)
    assert log.verdict == "adopted"


def test_a_vote_without_weight_decides_nothing() -> None:
    log = Log()
    log.start(reputations={"shadow": 0.0}, shadow_reputation=0.0)
    for agent in ("amy", "shadow"):
        log.join(agent)
    log.propose("amy", 0.5)
    log.vote("shadow", "against", confidence=1.0)
    assert "amy 0.6 for, shadow 0 against; no quorum" in log.last.reason
    log.propose("shadow", 0.5)
    log.vote("amy", "abstain")
    assert "no vote has weight" in log.last.reason


def test_choices_go_by_majority_per_value() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", "small", "teacher.active")
    log.propose("bob", "big", "teacher.active", confidence=0.2)
    log.vote("cat", "for", actuator="teacher.active")
    assert (log.verdict, log.last.value) == ("adopted", "small")


def test_an_action_takes_the_lower_median_of_the_arguments() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", 30, "run.rollback")
    log.propose("bob", 10, "run.rollback")
    log.propose("cat", None, "run.rollback")
    assert (log.verdict, log.last.value) == ("adopted", 10)
    log.propose("amy", None, "run.hold")
    log.propose("bob", None, "run.hold")
    log.vote("cat", "abstain", actuator="run.hold")
    assert log.verdict == "rejected" and "run.rollback is in flight" in log.last.reason


def test_a_simplex_merges_by_component_and_is_renormalised() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", {"math": 0.2, "web": 0.2, "code": 0.6}, MIX)
    log.propose("bob", {"web": 0.4, "code": 0.4, "math": 0.2}, MIX)
    assert log.verdict == "adopted"
    assert log.last.value == {"web": 0.3, "code": 0.5, "math": 0.2}
    assert isinstance(log.last.value, dict) and list(log.last.value) == ["web", "code", "math"]


def test_a_simplex_pulled_apart_is_split() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", {"web": 0.6, "code": 0.2, "math": 0.2}, MIX)
    log.propose("bob", {"web": 0.3, "code": 0.5, "math": 0.2}, MIX)
    assert log.verdict == "rejected" and "split" in log.last.reason


def test_a_simplex_stays_within_the_bounds_of_its_shares() -> None:
    """The medians are 0.1, 0.4, 0.4, 0.4: renormalised, the first falls below its bound of 0.1."""
    log = Log()
    spec = ActuatorSpec(
        name=MIX, kind="simplex", choices=tuple("abcd"), low=0.1, value={"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}
    )
    log.start(specs=(spec,))
    wishes = [dict(zip("abcd", wish, strict=True)) for wish in ((0.1, 0.4, 0.4, 0.1), (0.1, 0.1, 0.4, 0.4))]
    wishes.append({"a": 0.1, "b": 0.4, "c": 0.1, "d": 0.4})
    for agent in ("amy", "bob", "cat"):
        log.join(agent)
    for agent, wish in zip(("amy", "bob", "cat"), wishes, strict=True):
        log.propose(agent, wish, MIX)
    assert log.verdict == "adopted" and log.last.value in wishes


@pytest.mark.parametrize(
    ("pairs", "scale", "lower", "median"),
    [
        ([(1.0, 1.0)], "linear", False, 1.0),
        ([(1.0, 1.0), (3.0, 1.0)], "linear", False, 2.0),
        ([(1.0, 1.0), (4.0, 1.0)], "log", False, 2.0),
        ([(1.0, 1.0), (3.0, 1.0)], "linear", True, 1.0),
        ([(9.0, 1.0), (1.0, 0.4), (3.0, 0.5)], "linear", False, 9.0),
        ([(9.0, 0.3), (1.0, 0.1), (3.0, 0.2)], "linear", False, 6.0),
        ([(5.0, 0.0), (3.0, 0.2)], "linear", False, 3.0),
    ],
)
def test_weighted_median(pairs: list[tuple[float, float]], scale: str, lower: bool, median: float) -> None:
    assert weighted_median(pairs, scale, lower) == pytest.approx(median)
