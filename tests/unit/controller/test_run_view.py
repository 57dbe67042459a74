"""The run in lines and in `status`: advice, commands with their answers, shadows, outcomes."""

from datetime import timedelta

from tests.support.mesh_log import LR, NOON, Log

from oven_controller.stack.line_output import MAX_COLUMNS, LinePrinter
from oven_core.protocol.events import Event
from oven_core.protocol.messages import WITHHELD_PREFIX, Decision, MetricSpec, Receipt
from oven_runs.log.explanation import short_id
from oven_runs.log.run_summary import RunSummary


def lines(events: list[Event], *own_agents: str) -> list[str]:
    out: list[str] = []
    report = LinePrinter(out.append, "r", NOON - timedelta(seconds=1), own_agents)
    for entry in events:
        report.on_event(entry)
    return [line.removeprefix("    1.0 s  ") for line in out] + report.summary()


def view(log: Log) -> RunSummary:
    summary = RunSummary()
    for entry in log.events:
        summary.feed(entry)
    return summary


def advised() -> tuple[Log, Decision]:
    log = Log.running("amy", "bob", autonomy="advise", approve_ticks=9)
    log.propose("amy", 0.5, rationale="the loss rose")
    log.vote("bob", "for")
    return log, log.last


def test_commands_and_their_answers_are_lines() -> None:
    log, advice = advised()
    log.operator("c1", "approve", of=advice.id, reason="go on")
    log.receipt(log.last)
    log.operator("c2", "set", by="kim", actuator="grad.clip", value=2.0)
    log.operator("c3", "set", actuator="grad.clip", value=99)
    log.operator("c4", "hold", reason="a look")
    log.obeyed("c4")
    text = lines(log.events)
    approved = next(line for line in text if line.startswith("step 0: lr_scale 1 → 0.5 adopted"))
    assert "(amy, bob for; no one against): approved by operator ann: go on" in approved
    for line in (
        "step 0: lr_scale 1 → 0.5 advised (amy, bob for; no one against): "
        f"approve with `oven-controller approve {LR}`; the loss rose",
        f"operator ann: approve {advice.id} go on",
        f"answer   to ann: approve done: decision {advice.id} ({LR} to 0.5) is approved",
        "operator kim: set grad.clip 2",
        "answer   to kim: set done: set grad.clip to 2",
        "answer   to ann: set refused: 99 cannot be set for grad.clip, outside its bounds 0 to 10: "
        "propose a value inside them",
        "operator ann: hold a look",
        "receipt  run.hold command applied at step 0: so",
        "decisions: 2 adopted, 0 rejected; receipts: 1 applied",
    ):
        assert line in text


def test_a_proposal_that_only_observe_stops_would_set_and_does_not_count_as_rejected() -> None:
    log = Log.running("amy", "bob", autonomy="observe", max_factor=4)
    log.propose("amy", 0.01, rationale="the loss rose")
    log.vote("bob", "for")
    decision = log.last
    log.tick(30)
    log.propose("amy", 0.5)
    log.vote("bob", "against")
    assert decision.verdict == log.last.verdict == "rejected"
    printed = lines(log.events)
    assert "step 0: lr_scale 1 → 0.25 would set (amy, bob for; no one against): the loss rose" in printed
    assert "decisions: 0 adopted, 1 rejected, 1 would be set (observe); receipts: none" in printed


def test_repeated_proposals_are_printed_once_and_counted() -> None:
    log = Log.running("amy", "bob", autonomy="observe")
    for _ in range(3):
        log.propose("amy", 0.5)
        log.vote("bob", "for")
        log.tick(30)
    log.end()
    printed = [line for line in lines(log.events) if "would set" in line]
    assert len(printed) == 2 and printed[1] == "lr_scale 1 → 0.5 would set, repeated 2 times"


def test_one_line_counts_the_agents_of_the_stack_and_a_guest_has_its_own() -> None:
    log = Log.running("amy", "bob", "cat", "guest")
    log.tick()  # the statuses are often logged after the first observation
    for name in ("bob", "cat"):
        log.status(name, "cannot_fire", reason="there is no actuator data.mixture")
    log.tick(2)
    log.end()
    for name in ("amy", "bob", "cat"):
        log.status(name, "left", reason="asked to stop")
    printed = lines(log.events, "amy", "bob", "cat")
    assert [line for line in printed if "joined" in line] == [
        "agent    guest joined",
        "3 agents joined; 2 agents have nothing to do in this run: `oven-controller agent list --run r`",
    ]
    assert not [line for line in printed if "data.mixture" in line and not line.startswith("learner")]
    assert printed[-2:] == [
        "did not vote: amy, guest",
        "2 agents have nothing to do in this run: `oven-controller agent list --run r`",
    ]
    assert not [line for line in printed if "asked to stop" in line]


def test_a_notice_has_a_line_but_not_one_about_a_withheld_proposal() -> None:
    log = Log.running("amy")
    log.status("amy", "notice", reason="its budget of calls is spent")
    log.status("amy", "notice", reason=f"{WITHHELD_PREFIX}0.5 for {LR}, because decision 1 on {LR} has no receipt yet")
    assert [line for line in lines(log.events) if "notice" in line] == ["notice   amy: its budget of calls is spent"]


def test_an_idle_agent_that_can_act_later_and_one_that_fails_have_a_line() -> None:
    log = Log.running("amy", "bob")
    log.tick(1)
    log.status("amy", "cannot_fire", reason="there is no actuator loss.sft")
    log.tick(2)
    log.join("amy")
    log.status("amy", "done")
    log.status("bob", "failed", reason="raised KeyError")
    printed = lines(log.events, "amy", "bob")
    assert "agent    amy can act now" in printed
    assert "agent    bob failed and votes no more: raised KeyError" in printed
    assert "agent bob failed: raised KeyError" in printed and not view(log).idle_agents()


def test_a_receipt_has_a_line_only_if_the_change_was_not_applied_as_decided() -> None:
    def receipts(status: str = "applied", after: float | None = None) -> list[str]:
        log = Log.running("amy", "bob")
        log.propose("amy", 0.5)
        log.vote("bob", "for")
        log.receipt(log.last, status, after)
        return [line for line in lines(log.events) if line.startswith("receipt")]

    assert receipts() == []
    assert receipts(after=0.4) == [f"receipt  {LR} 1 → 0.4 applied at step 0"]
    assert receipts(status="rejected", after=1.0) == [f"receipt  {LR} 1 → 1 rejected at step 0"]


def test_no_line_is_longer_than_160_characters() -> None:
    log = Log.running("amy", "bob", *(f"agent-with-a-long-name-{number}" for number in range(20)))
    log.propose("amy", 0.5, rationale="the loss rose " * 20)
    log.vote("bob", "against", confidence=0.9, rationale="one spike is noise " * 15)
    log.status("bob", "notice", reason="a long notice " * 50)
    log.tick(9)
    log.end()
    printed = lines(log.events, "amy")
    assert max(map(len, printed)) <= MAX_COLUMNS
    decision = next(line for line in printed if "rejected" in line)
    assert "amy for; bob against" in decision and decision.endswith(f"(explain {short_id(log.last.id)[:-3]})")


def test_a_judge_in_quarantine_is_shown_once_with_cause_and_remedy_and_in_the_summary() -> None:
    log = Log.running("amy")
    log.tick(2, **{"committee/tone/quarantined": 1.0, "committee/fact/quarantined": 0.0})
    printed = [line for line in lines(log.events) if "tone" in line]
    assert len(printed) == 2, "when it begins, and at the end"
    assert all("scored known answers wrongly twice" in line and "judge swap tone" in line for line in printed)
    log.tick(1, **{"committee/tone/quarantined": 0.0})
    assert view(log).quarantined() == []


def test_advice_is_open_until_it_is_approved_vetoed_or_set_aside() -> None:
    log, advice = advised()
    assert view(log).advised == {LR: advice} and not view(log).has_lapsed(advice)
    assert "1 advised and not approved" in "".join(lines(log.events))
    log.tick(10)
    assert view(log).has_lapsed(advice)
    for command in ({"action": "set", "actuator": LR, "value": 2.0}, {"action": "veto", "of": LR}):
        log, advice = advised()
        log.operator("c1", **command)
        assert not view(log).advised
    log, advice = advised()
    log.operator("c1", "veto", of="grad.clip")
    assert view(log).advised == {LR: advice}, "that veto was refused"
    log.propose("amy", 2.0, "grad.clip")
    log.operator("c2", "veto", of="grad.clip")
    assert view(log).advised == {LR: advice}, "that one closed a ballot"


def test_the_view_says_why_an_agent_is_a_shadow() -> None:
    log = Log.running("amy", "bob", shadow=("bob",))
    log.join("cat", shadow=True)
    log.operator("c1", "mute", by="kim", agent="amy")
    log.operator("c2", "mute", agent="nobody")
    summary = view(log)
    assert {name: agent.shadow_reason for name, agent in summary.agents.items()} == {
        "amy": "muted by kim", "bob": "rules.shadow", "cat": "requested by the agent"
    }  # fmt: skip
    assert "agent amy is a shadow: muted by kim" in lines(log.events)
    log.operator("c3", "unmute", agent="amy")
    log.restart()
    log.join("cat")
    assert "did not vote: amy, bob, cat" in lines(log.events)
    assert {agent.shadow_reason for agent in view(log).agents.values()} == {""}


def test_a_run_is_held_when_the_learner_confirms_it() -> None:
    log = Log.running()
    log.operator("c1", "hold")
    assert not view(log).hold_reason
    log.obeyed("c1")
    assert view(log).hold_reason == "ann: so" and not view(log).receipts
    log.operator("c2", "resume")
    log.obeyed("c2", status="noop")
    assert view(log).hold_reason
    log.operator("c3", "resume")
    log.obeyed("c3")
    assert not view(log).hold_reason
    log.obeyed("local-0")
    assert view(log).hold_reason == "so", "it holds itself"
    assert "receipt  run.hold applied at step 0: so" in lines(log.events)
    log.restart()
    assert not view(log).hold_reason


HELD = MetricSpec(name="eval/reward", better="up", held_out=True)


def summary_of(metrics: tuple[MetricSpec, ...], *measured: dict[str, float]) -> RunSummary:
    log = Log()
    log.start(metrics=metrics)
    for values in measured:
        log.tick(**values)
    return view(log)


def test_the_target_is_the_first_held_out_metric_whatever_its_name() -> None:
    loss = MetricSpec(name="loss", better="down")
    assert summary_of((loss,)).target() is None
    assert summary_of((loss, HELD), {"loss": 2.0}, {"loss": 1.0}).target() == "loss", "it was not measured yet"
    once = {"loss": 1.0, "eval/reward": 0.5}
    assert summary_of((loss, HELD), once, {"loss": 2.0}, {"loss": 3.0}).target() == "eval/reward"
    whole = MetricSpec(name="heldout_bpb", better="down", held_out=True)
    part = MetricSpec(name="eval/bpb/code", better="down", held_out=True)
    unjudged = MetricSpec(name="count", held_out=True)
    everything = {"count": 1.0, "eval/bpb/code": 2.0, "heldout_bpb": 3.0}
    assert summary_of((unjudged, part, whole), everything).target() == "heldout_bpb"


def test_the_summary_says_for_each_knob_what_changed_and_who_did_it() -> None:
    log = Log.running("amy", "bob", "cid")
    log.propose("amy", 0.5)
    log.vote("bob", "for")
    log.vote("cid", "against")
    log.receipt(log.last)
    log.operator("c2", "set", by="kim", actuator="grad.clip", value=2.0)
    log.receipt(log.last)
    summary = lines(log.events)
    assert f"{LR} 1 → 0.5, by amy, bob" in summary
    assert any(line.startswith("grad.clip ") and line.endswith("→ 2, by an operator") for line in summary)


def test_a_value_that_changes_without_a_decision_is_the_current_one() -> None:
    log = Log.running("amy")
    log.propose("amy", 0.5)
    log.receipt(log.last)
    reset = {"actuator": LR, "status": "applied", "before": 0.5, "after": 1.0, "reason": "your loop sets the rate"}
    log.put("receipt", Receipt.model_validate({**log.stamp(), **reset, "tick": 1, "step": 1}))
    assert view(log).knobs[LR] == 1.0
