"""The run's life in the mesh: duplicates, restarts, receipts, lockstep, what is pending, divergence."""

from typing import Any

from tests.support.mesh_log import LR, RUN, SPECS, Log, event

from oven_core.protocol.messages import Decision
from oven_runs.log.replay import replay


def adopted(**rules: Any) -> tuple[Log, Decision]:
    log = Log.running("amy", alone=(LR,), **rules)
    log.propose("amy", 0.5, confidence=0.9)
    return log, log.last


def test_the_effective_value_changes_with_the_receipt() -> None:
    log, decision = adopted()
    state = log.mesh.state
    assert state.effective[LR] == 1.0 and list(state.in_flight) == [decision.id]
    log.receipt(decision, after=0.499999999912)
    assert state.effective[LR] == 0.5 and not state.in_flight


def test_a_receipt_of_a_failed_change_keeps_the_effective_value() -> None:
    for status in ("rejected", "expired", "unknown"):
        log, decision = adopted()
        log.receipt(decision, status)
        assert log.mesh.state.effective[LR] == 1.0 and not log.mesh.state.in_flight


def test_an_unreadable_value_is_missing() -> None:
    log, decision = adopted()
    log.receipt(decision, after="half")
    assert log.mesh.state.effective[LR] == 1.0
    assert log.mesh.state.counters["value.unreadable"] == 1


def test_learner_messages_count_once() -> None:
    log, decision = adopted()
    log.receipt(decision)
    log.tick(3)
    before = (log.mesh.state.tick, dict(log.mesh.state.effective))
    for entry in list(log.events):
        if entry.subject.rsplit(".", 1)[1] in ("run", "observation", "receipt"):
            log.put(entry.subject.split(".", 2)[2], entry.data)
    assert (log.mesh.state.tick, log.mesh.state.effective) == before
    assert log.mesh.state.counters["learner.repeated"] == 5


def test_messages_of_a_dead_incarnation_are_ignored() -> None:
    log, decision = adopted()
    log.restart()
    log.incarnation, log.n = 1, 50
    log.receipt(decision)
    assert log.mesh.state.counters["learner.other_incarnation"] == 1
    assert decision.id in log.mesh.state.in_flight


def test_a_restart_uses_the_new_values_and_keeps_decisions_in_flight() -> None:
    log, decision = adopted()
    log.tick(4)
    log.restart(specs=(SPECS[0].model_copy(update={"value": 0.7}),), tick=2)
    state = log.mesh.state
    assert (state.tick, state.effective, list(state.in_flight)) == (4, {LR: 0.7}, [decision.id])
    assert state.voters() == ("amy",) and state.interventions == 1
    log.receipt(decision, "unknown")
    assert state.effective == {LR: 0.7} and not state.in_flight


def test_ticks_never_go_back() -> None:
    log = Log.running()
    log.tick(3)
    log.put("observation", log.events[-3].data.replace(b'"n":1', b'"n":99'))
    assert log.mesh.state.tick == 3
    assert log.mesh.state.counters["observation.tick_went_back"] == 1


def test_unreadable_messages_are_counted_by_subject() -> None:
    log = Log.running()
    log.put("vote.amy", b"{")
    log.put("vote.amy", b'{"type":"Vote","v":2}')
    log.put("observation", b"\xff")
    assert log.outputs == []
    assert log.mesh.state.counters["malformed.vote"] == 2
    assert log.mesh.state.counters["version.vote"] == 1
    assert log.mesh.state.counters["malformed.observation"] == 1


def test_an_output_is_pending_until_it_is_read_back() -> None:
    log = Log.running("amy", alone=(LR,), echo=False)
    emitted = log.propose("amy", 0.5, confidence=0.9)
    assert list(log.mesh.pending.values()) == emitted and len(emitted) == 2
    log.put(emitted[0].subject.split(".", 2)[2], emitted[0].message)
    assert list(log.mesh.pending.values()) == emitted[1:]
    log.put(emitted[1].subject.split(".", 2)[2], emitted[1].message)
    assert log.mesh.pending == {} and log.mesh.divergence is None


def test_different_bytes_in_the_log_are_a_divergence() -> None:
    log = Log.running("amy", alone=(LR,), echo=False)
    _, decision = log.propose("amy", 0.5, confidence=0.9)
    log.put(decision.subject.split(".", 2)[2], decision.message.wire().replace(b'"value":0.5', b'"value":0.6', 1))
    assert log.mesh.divergence is not None and '"value":0.6' in log.mesh.divergence
    log = Log.running()
    log.put("decision.000000000001-00", decision.message)
    assert log.mesh.divergence is not None and "was not computed by this replica" in log.mesh.divergence


def test_repeated_outputs_of_the_mesh_are_harmless() -> None:
    """Whoever makes the server write on its subjects can copy what it signed."""
    log, decision = adopted()
    for _ in range(2):
        log.put(f"ballot.{decision.ballot}", next(e.data for e in log.events if ".ballot." in e.subject))
        log.put(f"decision.{decision.id}", decision.wire())
    assert log.mesh.divergence is None and log.mesh.pending == {}
    assert log.mesh.state.counters["repeated.decision"] == log.mesh.state.counters["repeated.ballot"] == 2
    assert replay(log.events, RUN).same
    log.put(f"decision.{decision.id}", decision.wire().replace(b'"value":', b'"value": ', 1))
    assert log.mesh.divergence is not None


def test_a_redelivery_and_another_runs_event_are_skipped() -> None:
    log, _ = adopted()
    for entry in log.events:
        assert log.mesh.step(entry) == []
    assert log.mesh.step(event(10**6, "oven.rr.vote.amy", b"{}")) == []
    assert log.mesh.divergence is None


def test_lockstep_closes_a_tick_once_every_agent_is_done() -> None:
    log = Log()
    log.start(lockstep=True)
    log.join("amy")
    log.join("bob")
    log.done("amy")
    log.done("bob")
    assert log.closed_ticks == []  # nothing was observed yet
    log.tick()
    log.done("amy")
    assert log.closed_ticks == []
    log.done("bob")
    log.done("bob")
    assert log.closed_ticks == [1]


def test_lockstep_resolves_a_ballot_inside_its_tick() -> None:
    log = Log()
    log.start(lockstep=True, alone={"amy": (LR,)})
    log.join("amy")
    log.join("bob")
    log.tick()
    log.done("bob")
    log.propose("amy", 0.5, confidence=0.9)
    log.done("amy")
    assert log.closed_ticks == [] and log.decisions == []
    log.done("bob", seen=log.ballots[0].id)
    assert log.verdict == "adopted" and log.last.tick == 1
    assert log.closed_ticks == [1]


def test_lockstep_without_live_agents_closes_ticks_at_once() -> None:
    log = Log()
    log.start(lockstep=True, silent_ticks=2)
    log.tick()
    assert log.closed_ticks == [1]
    log.join("amy")
    log.tick(3)
    assert log.closed_ticks == [1, 4]  # amy was lost at 4
    log.done("amy")
    log.status("amy", "left")
    log.tick()
    assert log.closed_ticks == [1, 4, 5]


def test_a_repeated_operator_command_is_recorded_once() -> None:
    log = Log.running()
    log.operator("a", "hold")
    log.operator("a", "stop")
    assert [(name, command.action) for name, command in log.mesh.state.commands.values()] == [("ann", "hold")]
