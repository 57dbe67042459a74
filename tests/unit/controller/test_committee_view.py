"""What `judge list` shows of a log, and how a model is named there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.judge_spec import OFF, JudgeSpec
from oven_core.protocol.messages import ActuatorSpec, LogMessage, Observation, Receipt, RunStarted
from oven_runs.log.committee_view import WEIGHTS, CommitteeView, MemberView, abstention_metric

CLAUDE, CHAT = "claude/sonnet", "deepseek/chat"


def knob(member: str, *choices: str, value: str | None = None) -> ActuatorSpec:
    return ActuatorSpec(
        name=f"committee.{member}", kind="choice", choices=choices, value=value or choices[0], moves_own_metric=True
    )


def shown(*bodies: LogMessage) -> list[MemberView]:
    view = CommitteeView()
    weights = ActuatorSpec(
        name=WEIGHTS,
        kind="simplex",
        choices=("exact", "critic", "tone"),
        value={"exact": 0.5, "critic": 0.3, "tone": 0.2},
    )
    started = RunStarted(
        incarnation=1, n=0, recipe="r", actuators=(weights, knob("critic", CLAUDE, OFF), knob("tone", CHAT, OFF))
    )
    for seq, body in enumerate((started, *bodies), 1):
        view.feed(Event(seq, "oven.r.run", b"", datetime(2026, 1, 1, tzinfo=UTC), body))
    return view.member_views({"critic": "critic", "tone": "style"})


def observed(tick: int, **metrics: float) -> Observation:
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics=metrics)


def receipt(actuator: str, after: str, status: str = "applied") -> Receipt:
    fields = {"incarnation": 1, "n": 9, "actuator": actuator, "status": status, "after": after, "tick": 2, "step": 2}
    return Receipt.model_validate(fields)


def test_each_member_has_its_model_its_share_and_what_it_did_in_the_newest_step() -> None:
    metrics = {"committee/skipped_groups": 0.0, "rewards/critic/mean": 0.5}
    before = observed(1, **metrics, **{abstention_metric("tone", "timeout"): 1.0})
    now = observed(
        2, **metrics, **{abstention_metric("tone", "rate_limit"): 2.0, abstention_metric("tone", "auth"): 1.0}
    )
    between = observed(3, loss=1.0)
    critic, tone = shown(before, now, between)
    assert critic == MemberView("critic", CLAUDE, "critic", 0.3, "scoring", (CLAUDE, OFF))
    assert (tone.role, tone.weight, tone.state) == ("style", 0.2, "abstaining: auth 1, rate_limit 2")
    _, tone = shown(observed(1, **metrics, **{abstention_metric("tone", "quarantined"): 4.0}))
    assert tone.state == "quarantined"
    assert [line.state for line in shown()] == ["not asked", "not asked"]


def test_the_view_follows_swaps_mutes_and_membership() -> None:
    announced = ActuatorAnnounced(incarnation=1, n=3, actuator=knob("critic", CLAUDE, CHAT, OFF), tick=1, step=1)
    critic, tone = shown(announced, receipt("committee.critic", CHAT), receipt("committee.tone", OFF))
    assert (critic.judge, critic.choices) == (CHAT, (CLAUDE, CHAT, OFF))
    assert (tone.judge, tone.state) == (OFF, "muted")
    critic, _ = shown(announced, receipt("committee.critic", CHAT, "rejected"))
    assert critic.judge == CLAUDE
    came = ActuatorAnnounced(incarnation=1, n=4, actuator=knob("late", CHAT, OFF), tick=1, step=1)
    departed = ActuatorAnnounced(incarnation=1, n=5, actuator=knob("tone", OFF), tick=1, step=1)
    assert [line.member for line in shown(came, departed)] == ["critic", "late"]


def test_an_identity_holds_what_scores_differently_and_no_key() -> None:
    mine = JudgeSpec(provider="compatible", model="m", base_url="http://127.0.0.1:8000/v1/", key_env="MY_KEY")
    assert mine.identity == "compatible/m@127.0.0.1:8000/v1"
    assert mine.model_copy(update={"key_env": "OTHER"}).identity == mine.identity
    with_logprobs = JudgeSpec(provider="grok", model="grok-3", logprobs=True, top_logprobs=8)
    assert with_logprobs.identity == "grok/grok-3+logprobs=8"


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "https://me:hunter2@host/v1"},
        {"base_url": "https://host/v1?key=hunter2"},
        {"base_url": "ftp://host"},
        {"top_logprobs": 21},
        {"key_env": "sk-hunter2"},
        {"model": ""},
    ],
)
def test_a_spec_refuses_what_would_tell_a_secret_or_cannot_be_asked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JudgeSpec.model_validate({"provider": "compatible", "model": "m", **wrong})
