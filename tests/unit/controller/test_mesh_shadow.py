"""Agents whose votes are kept and do not count, and voices with too little reputation."""

from tests.support.mesh_log import LR, Log

from oven_core.protocol.messages import Decision


def lines(decision: Decision) -> list[tuple[str, str, bool, float]]:
    return [(line.agent, line.stance, line.shadow, line.weight) for line in decision.tally]


def test_a_shadow_opens_no_ballot_and_is_not_awaited() -> None:
    log = Log.running("amy", "bob", alone=(LR,), shadow=("bob",))
    log.join("cat", shadow=True)
    log.propose("bob", 0.5, confidence=0.9)
    log.propose("cat", 0.5, confidence=0.9)
    assert not log.ballots and log.mesh.state.counters["shadow.proposed"] == 2
    log.propose("amy", 0.5, confidence=0.9)
    assert log.ballots[0].eligible == ("amy",)
    assert log.verdict == "adopted", "nobody else was waited for"


def test_a_shadows_vote_is_last_in_the_tally_and_has_no_weight() -> None:
    log = Log.running("amy", "dan", shadow=("bob", "cat"))
    log.join("cat")
    log.join("bob")
    log.propose("amy", 0.5)
    log.vote("cat", "against", confidence=1.0, rationale="I would not")
    log.propose("bob", 4.0, confidence=1.0)
    log.vote("dan", "for")
    assert log.verdict == "adopted" and log.last.value == 0.5
    assert lines(log.last) == [
        ("amy", "propose", False, 0.6),
        ("dan", "for", False, 0.6),
        ("bob", "propose", True, 0.0),
        ("cat", "against", True, 0.0),
    ]
    assert log.last.tally[3].confidence == 1.0 and "cat" not in log.last.reason


def test_muting_works_at_once_and_unmuting_from_the_next_ballot_on() -> None:
    log = Log.running("amy", "bob", "cat")
    log.propose("amy", 0.5)
    log.vote("bob", "against", confidence=1.0)
    log.operator("c1", "mute", agent="bob", reason="it is wrong too often")
    assert log.answers[-1].reason == "agent bob is muted: its votes are logged but do not count"
    log.vote("cat", "for")
    assert log.verdict == "adopted", "the veto of a muted agent is none"
    assert lines(log.last)[2] == ("bob", "against", True, 0.0)
    log.propose("cat", 2.0, "grad.clip")
    log.vote("bob", "for", actuator="grad.clip")
    log.operator("c2", "unmute", agent="bob")
    log.vote("amy", "abstain", actuator="grad.clip")
    assert log.verdict == "rejected"
    log.propose("amy", 2.0, "grad.clip")
    assert [ballot.eligible for ballot in log.ballots[-2:]] == [("amy", "cat"), ("amy", "bob", "cat")]


def test_a_ballot_that_only_awaits_a_muted_agent_closes() -> None:
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    assert not log.decisions
    log.operator("c1", "mute", agent="bob")
    assert log.verdict == "adopted"
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    log.operator("c1", "mute", agent="amy")
    log.vote("bob", "abstain")
    assert log.verdict == "rejected" and "no agent supports it any longer" in log.last.reason


def test_only_agents_of_the_run_can_be_muted_and_unmuted() -> None:
    log = Log.running("amy", "bob", shadow=("bob",))
    log.join("cat", shadow=True)

    def answer(action: str, agent: str) -> tuple[bool, str]:
        log.operator(f"{len(log.events)}", action, agent=agent)
        return log.answers[-1].done, log.answers[-1].reason

    assert answer("mute", "zoe") == (False, "no agent “zoe” has joined this run; its agents: amy, bob, cat")
    assert answer("mute", "amy")[0] and answer("mute", "amy")[0]
    assert answer("unmute", "amy") == (True, "agent amy is not muted: its votes count from the next ballot")
    assert answer("unmute", "bob") == (
        False,
        "agent bob is still a shadow: it is listed in rules.shadow; remove it there and restart the learner",
    )
    assert "it joined as a shadow" in answer("unmute", "cat")[1]
    log.operator("m", "mute", agent="amy")
    log.status("amy", "left")
    log.restart(shadow=("bob",))
    log.join("amy")
    assert log.mesh.state.is_shadow("amy"), "a mute outlasts the agent's and the learner's restart"


def test_lockstep_does_not_wait_for_a_shadow() -> None:
    log = Log()
    log.start(lockstep=True, shadow=("bob",))
    for agent in ("amy", "bob"):
        log.join(agent)
    log.tick()
    log.done("amy")
    assert log.closed_ticks == [1]
    log.join("cat")
    log.tick()
    log.done("amy")
    waited = list(log.closed_ticks)
    log.operator("c1", "mute", agent="cat")
    assert (waited, log.closed_ticks) == ([1], [1, 2])


def test_a_low_reputation_makes_no_quorum_and_no_veto_and_the_reason_says_so() -> None:
    log = Log()
    log.start(reputations={"amy": 0.2, "bob": 0.2}, alone={"amy": (LR,)})
    log.join("amy")
    for agent in ("bob", "cat", "dan"):
        log.join(agent)
    log.propose("amy", 0.5, confidence=1.0)
    log.vote("bob", "for")
    log.vote("cat", "for")
    log.vote("dan", "abstain")
    assert log.verdict == "rejected"
    low = "no quorum or veto with a reputation below 0.25"
    assert f"; {low}: amy 0.2, bob 0.2; no quorum: no trusted agent proposes it" in log.last.reason
    log.propose("cat", 2.0, "grad.clip")
    log.vote("dan", "for", actuator="grad.clip")
    log.vote("bob", "against", actuator="grad.clip", confidence=1.0)
    log.vote("amy", "abstain", actuator="grad.clip")
    assert log.verdict == "adopted"
    assert f"; {low}: bob 0.2; independent evidence: held_out (cat) and rewards (dan)" in log.last.reason
    log.mesh.state.reputations["bob"] = 0.25
    log.propose("cat", "big", "teacher.active")
    log.vote("bob", "against", actuator="teacher.active", confidence=1.0)
    log.vote("dan", "for", actuator="teacher.active")
    log.vote("amy", "for", actuator="teacher.active")
    assert "vetoed by bob" in log.last.reason


def test_however_many_shadows_vote_the_decision_fits_into_the_log() -> None:
    log = Log.running("amy", alone=(LR,), shadow=tuple(f"s{n}" for n in range(200)))
    log.join("bob")
    for n in range(200):
        log.join(f"s{n}")
    log.propose("amy", 0.5, confidence=0.9)
    for n in range(200):
        log.vote(f"s{n}", "against", confidence=1.0, rationale="x" * 2000)
    log.vote("bob", "for")
    assert log.verdict == "adopted" and len(log.last.tally) == 2 + 64
    assert len(log.last.wire()) < 32_000
