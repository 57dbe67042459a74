"""Which votes are a quorum: two independent kinds of evidence, and the exceptions."""

from __future__ import annotations

import random
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR, RUN, SPECS, Log

from oven_core.mesh.quorum import Quorum, check_quorum
from oven_core.mesh.value_merge import WeightedVote
from oven_core.protocol.evidence import KINDS, Signal
from oven_core.protocol.messages import TallyLine, Value
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

CLIP, MIX, TEACHER = "grad.clip", "data.mixture", "teacher.active"
SPEC = {spec.name: spec for spec in SPECS}
LOSS, GRADIENTS, GRAPH = Signal("loss", ("loss",)), Signal("gradients", ("grad_norm",)), Signal("graph", ())


def vote(
    signal: Signal | None,
    stance: Literal["propose", "for"] = "for",
    confidence: float = 0.6,
    agent: str = "amy",
    decides_alone: bool = False,
) -> WeightedVote:
    line = TallyLine(agent=agent, stance=stance, confidence=confidence, reputation=1.0, weight=confidence)
    return WeightedVote(agent, 0.5, confidence, line, decides_alone, signal)


def quorum(*side: WeightedVote, actuator: str = LR, before: Value = 1.0, harm: str = "", **rules: Any) -> Quorum:
    return check_quorum(SPEC[actuator], before, side, Rules(**rules), harm, needs_person=False)


@pytest.mark.parametrize(("confidences", "reached"), [((0.6, 0.1), True), ((0.2, 0.6), True), ((0.55, 0.55), False)])
def test_two_independent_kinds_are_a_quorum_if_one_vote_is_confident(
    confidences: tuple[float, float], reached: bool
) -> None:
    result = quorum(vote(LOSS, "propose", confidences[0]), vote(GRADIENTS, confidence=confidences[1], agent="bob"))
    assert result.is_reached is reached
    assert not reached or result.reason == "independent evidence: loss (amy) and gradients (bob)"


@pytest.mark.parametrize(
    "second",
    [
        LOSS,
        Signal("loss", ("sft/loss",)),
        Signal("held_out", ("loss",)),
        Signal("gradients", ("grad_norm", "loss")),
        None,
    ],
    ids=["same", "same kind", "same metric", "one common metric", "none"],
)
def test_votes_that_read_the_same_are_one_kind(second: Signal | None) -> None:
    result = quorum(vote(LOSS, "propose", 1.0), *[vote(second, "propose", 1.0, f"n{n}") for n in range(5)])
    assert not result.is_reached and "two independent kinds required, one of them at 0.6" in result.reason


def test_a_quorum_needs_a_proposal() -> None:
    assert not quorum(vote(LOSS), vote(GRADIENTS)).is_reached
    assert not quorum().is_reached


def test_the_graph_seconds_only_a_small_change() -> None:
    result = quorum(vote(LOSS, "propose"), vote(GRAPH, agent="graph"))
    assert result.is_reached and result.only_small
    assert not quorum(vote(GRAPH, "propose", 1.0), vote(GRAPH, agent="bob")).is_reached
    measured = quorum(vote(LOSS, "propose"), vote(GRAPH, agent="graph"), vote(GRADIENTS, agent="bob"))
    assert measured.is_reached and not measured.only_small, "two measured kinds do not need the graph"


@pytest.mark.parametrize(
    ("actuator", "before"),
    [(TEACHER, "none"), ("run.rollback", None), ("run.hold", None), (LR, None), (MIX, None)],
)
def test_the_graph_carries_no_change_that_has_no_size(actuator: str, before: Value) -> None:
    assert not quorum(vote(LOSS, "propose", 1.0), vote(GRAPH), actuator=actuator, before=before).is_reached


def test_an_unbounded_linear_value_has_no_size() -> None:
    votes = vote(LOSS, "propose", 1.0), vote(GRAPH)
    unbounded = SPEC[CLIP].model_copy(update={"high": None})
    assert quorum(*votes, actuator=CLIP).only_small
    assert not check_quorum(unbounded, 1.0, votes, Rules(), "", needs_person=False).is_reached


@pytest.mark.parametrize(("confidence", "reached"), [(0.6, True), (0.59, False)])
def test_one_proposal_at_the_minimum_confidence_is_enough_in_an_exception(confidence: float, reached: bool) -> None:
    alone = vote(LOSS, "propose", confidence)
    assert quorum(alone, harm="loss is not finite").is_reached == reached
    assert quorum(alone, actuator="run.evaluate", before=None).is_reached == reached
    assert quorum(alone, evidence_kinds=1).is_reached == reached
    assert check_quorum(SPEC[LR], 1.0, [alone], Rules(), "", needs_person=True).is_reached == reached
    assert not quorum(alone).is_reached


def test_an_agent_decides_alone_only_with_a_proposal() -> None:
    assert quorum(vote(None, "propose", 0.6, decides_alone=True)).reason == "amy may decide alone at 0.6"
    assert not quorum(vote(None, "propose", 0.59, decides_alone=True)).is_reached
    assert not quorum(vote(LOSS, "propose", 0.9), vote(None, "for", 1.0, "spec", decides_alone=True)).is_reached


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.none(), st.builds(Signal, st.sampled_from(KINDS), st.sampled_from([(), ("a",), ("b",), ("a", "b")]))
            ),
            st.sampled_from(["propose", "for"]),
            st.floats(0.01, 1),
            st.booleans(),
        ),
        max_size=7,
    ),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_order_and_names_do_not_matter_and_one_voice_is_never_enough(
    entries: list[tuple[Signal | None, Literal["propose", "for"], float, bool]], with_grants: bool, rng: random.Random
) -> None:
    names = [f"n{n}" for n in range(len(entries))]
    votes = [
        vote(s, stance, c, n, special and with_grants)
        for n, (s, stance, c, special) in zip(names, entries, strict=True)
    ]
    renamed = [
        vote(s, stance, c, n, special and with_grants)
        for n, (s, stance, c, special) in zip(reversed(names), entries, strict=True)
    ]
    rng.shuffle(renamed)
    first, second = quorum(*votes), quorum(*renamed)
    assert (first.is_reached, first.only_small) == (second.is_reached, second.only_small)
    if first.is_reached and not with_grants:
        kinds = {signal.kind for signal, *_ in entries if signal is not None}
        assert len(kinds) >= 2 and any(stance == "propose" for _, stance, *_ in entries)
        assert first.only_small or len(kinds - {"graph"}) >= 2


def graph_and(proposal: Value, actuator: str = LR, confidence: float = 0.6) -> Log:
    """A proposal that rests on the loss, and the graph's support."""
    log = Log.running("amy", "graph", max_factor=100.0, max_fraction=1.0, max_shift=1.0)
    log.propose("amy", proposal, actuator, confidence, evidence=(LOSS.entry,))
    log.vote("graph", "for", actuator=actuator, confidence=confidence, evidence=(GRAPH.entry,))
    return log


def test_a_large_change_with_the_graph_is_limited_to_a_small_one() -> None:
    log = graph_and(8.0)
    assert (log.verdict, log.last.value) == ("adopted", 2.0)
    assert "loss (amy) and the knowledge graph: enough for a small change" in log.last.reason
    assert log.last.reason.endswith("limited to 2, a factor of 2 from 1, instead of 8")
    assert graph_and(1.5).last.value == 1.5
    clip = graph_and(5.0, CLIP)
    spec, before = SPEC[CLIP], clip.last.before
    assert isinstance(before, float) and spec.low is not None and spec.high is not None
    assert clip.last.value == pytest.approx(before + 0.1 * (spec.high - spec.low))
    mix = graph_and({"web": 0.0, "code": 0.0, "math": 1.0}, MIX)
    assert mix.verdict == "adopted" and "a shift of 0.2 instead of" in mix.last.reason
    assert replay(mix.events, RUN).same


def test_a_choice_with_only_the_graph_is_rejected() -> None:
    assert graph_and("big", TEACHER, 1.0).verdict == "rejected"
    assert graph_and(None, "run.hold", 1.0).verdict == "rejected"


def test_the_graph_does_not_limit_a_change_with_two_measured_kinds() -> None:
    log = Log.running("amy", "bob", "graph", max_factor=100.0)
    log.propose("amy", 8.0, evidence=(LOSS.entry,))
    log.vote("bob", "for", evidence=(GRADIENTS.entry,))
    log.vote("graph", "for", evidence=(GRAPH.entry,))
    assert (log.verdict, log.last.value) == ("adopted", 8.0)


def test_the_vote_of_an_agent_without_a_reputation_is_no_second_kind() -> None:
    log = Log()
    log.start(reputations={"bob": 0.2})
    for agent in ("amy", "bob"):
        log.join(agent)
    log.propose("amy", 0.5, evidence=(LOSS.entry,))
    log.vote("bob", "for", evidence=(GRADIENTS.entry,))
    assert log.verdict == "rejected" and "evidence in favour: loss" in log.last.reason


def test_a_vote_for_another_direction_is_no_second_kind() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5, confidence=0.9, evidence=(LOSS.entry,))
    log.propose("bob", 2.0, confidence=0.2, evidence=(GRADIENTS.entry,))
    assert log.verdict == "rejected" and "evidence in favour: loss" in log.last.reason


def test_the_ballot_and_the_tally_carry_the_evidence() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5, evidence=("symptom:loss_spike", LOSS.entry))
    log.vote("bob", "for", evidence=("a note",))
    assert log.ballots[0].evidence == ("symptom:loss_spike", LOSS.entry)
    assert [line.kind for line in log.last.tally] == ["loss", ""]
