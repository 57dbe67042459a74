"""Judges that are swapped while a committee works: what operators say, what the log hears, and what requests name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_core.protocol.events import Event
from oven_core.protocol.judge_spec import OFF, JudgeSpec
from oven_core.protocol.messages import LogMessage, Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.resume_state import ResumeState, read_resume_state
from oven_learner.rewards import Committee
from oven_learner.rewards.judge_knobs import register_committee_knobs
from oven_learner.rewards.member_models import MemberModels, RequestedModel
from oven_learner.rewards.verdicts import Cost, Verdict
from oven_learner.testing import FakeLink, decision
from oven_runs.log.committee_view import WEIGHTS

FIRST = JudgeSpec(provider="claude", model="sonnet")
OTHER = JudgeSpec(provider="deepseek", model="chat", logprobs=True, top_logprobs=20)
CRITIC = "committee.critic"


class Members:
    """Remote members whose probes the test answers."""

    deadline_s = 5.0

    def __init__(self, *members: str) -> None:
        self.members = members
        self.judges = dict.fromkeys(members, FIRST)
        self.probes: list[tuple[str, JudgeSpec, bool, Future[str]]] = []
        self.named: list[Mapping[str, RequestedModel]] = []
        self.health: dict[str, JudgeHealth] = {}
        self.meanwhile: Callable[[], None] | None = None
        """What happens while they are asked."""

    def probe(self, member: str, model: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        self.probes.append((member, model, is_new, Future()))
        return self.probes[-1][3]

    def join(self, member: str) -> None:
        self.members = (*self.members, member)

    def leave(self, member: str) -> None:
        self.members = tuple(name for name in self.members if name != member)

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, RequestedModel]) -> dict[str, list[Verdict]]:
        self.named.append(members)
        if self.meanwhile is not None:
            self.meanwhile()
        return {
            member: [tuple(len(c.text) / 10 for c in request.completions) for request in requests] for member in members
        }

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        return {}

    def take_cost(self) -> Cost:
        return Cost()

    def close(self) -> None: ...


def rule(completions: list[str], **_: Any) -> list[float | None]:
    return [len(text) / 10 for text in completions]


class Run:
    """A training of that committee on a link without a bus."""

    def __init__(self, *members: str, past: ResumeState | None = None, **options: Any) -> None:
        self.remote = Members(*members)
        self.committee = Committee({"exact": rule}, remote=self.remote, **options)
        self.committee.group_size = 2
        self.link, self.actuators = FakeLink(past=past), Actuators()
        register_committee_knobs(self.actuators, self.committee)
        self.client = OvenClient(self.link, self.actuators)
        self.client.start()
        self._step = 0

    def say(self, action: Any, member: str = "critic", **fields: Any) -> str:
        command = OperatorCommand(id=f"c{len(self.link.sent)}", action=action, actuator=f"committee.{member}", **fields)
        self.link.incoming.append(command)
        return command.id

    def step(self, times: int = 1) -> None:
        """What is refused at one boundary is answered at the next, as what was probed is."""
        for _ in range(times):
            self._step += 1
            self.client.observe(self._step, {"loss": 1.0})
            self.client.poll()

    def receipt(self, command: str) -> Receipt:
        [answer] = [receipt for receipt in self.link.receipts() if receipt.command == command]
        return answer

    def ask(self) -> Mapping[str, RequestedModel]:
        self.committee(["p", "p"], ["a", "bb"])
        return self.remote.named[-1]


def test_a_successful_probe_adds_a_choice_without_delaying_steps() -> None:
    run = Run("critic")
    command = run.say("offer", judge=OTHER)
    run.step(3)
    assert run.link.receipts() == [] and len(run.link.observed()) == 3, "it is still being probed"
    [(member, model, is_new, probe)] = run.remote.probes
    assert (member, model, is_new) == ("critic", OTHER, False)
    probe.set_result("")
    run.step()
    *_, announced, receipt = run.link.sent
    assert isinstance(announced, ActuatorAnnounced) and announced.actuator.choices == (
        FIRST.identity,
        OTHER.identity,
        OFF,
    )
    assert announced.actuator.value == FIRST.identity and announced.actuator.moves_own_metric
    assert receipt == run.receipt(command) and (receipt.status, receipt.after) == ("noop", FIRST.identity)
    assert run.ask() == {"critic": RequestedModel()}, "an offer changes nothing yet"
    run.link.incoming.append(decision(CRITIC, OTHER.identity, apply_at=5))
    run.step()
    assert (run.link.receipts()[-1].before, run.link.receipts()[-1].after) == (FIRST.identity, OTHER.identity)
    assert run.ask() == {"critic": RequestedModel(OTHER, 1)}
    assert run.committee.weights == {"exact": 0.5, "critic": 0.5}, "the weight stays"


def test_a_failed_probe_is_refused_and_the_old_judge_stays() -> None:
    run = Run("critic")
    command = run.say("offer", judge=OTHER)
    run.step()
    second = run.say("offer", judge=OTHER)
    run.step(2)
    assert "deepseek/chat+logprobs=20 is currently being probed for critic" in run.receipt(second).reason
    run.remote.probes[0][3].set_result("gave no verdict: auth, HTTP 401")
    run.step()
    refused = run.receipt(command)
    assert (refused.status, refused.after, refused.reason) == (
        "rejected",
        FIRST.identity,
        "gave no verdict: auth, HTTP 401",
    )
    assert not any(isinstance(message, ActuatorAnnounced) for message in run.link.sent)
    assert len(run.remote.probes) == 1 and run.ask() == {"critic": RequestedModel()}


def test_pending_probes_expire_when_the_run_ends() -> None:
    run = Run("critic")
    command = run.say("offer", judge=OTHER)
    run.step()
    late = run.say("offer", judge=OTHER)
    run.client.close("completed")
    assert [(run.receipt(command).status, run.receipt(command).reason) for command in (command, late)] == [
        ("expired", "the run ended before the command was executed")
    ] * 2


def test_a_resumed_run_has_the_models_that_answered_and_the_one_that_judged() -> None:
    past = ResumeState(
        incarnation=1,
        training="1",
        values={"1": {CRITIC: OTHER.identity}},
        offers={"1": {CRITIC: {OTHER.identity: OTHER}}},
    )
    run = Run("critic", past=past)
    started = run.link.sent[0]
    assert isinstance(started, RunStarted)
    spec = next(spec for spec in started.actuators if spec.name == CRITIC)
    assert (spec.value, spec.choices) == (OTHER.identity, (FIRST.identity, OTHER.identity, OFF))
    assert run.ask()["critic"].judge == OTHER, "so that a member that was started anew is told by each request"


class Log:
    """A bus whose log has what a run said and was told; its own keyring."""

    keys: ClassVar[dict[str, str]] = {}

    def __init__(self, *bodies: LogMessage) -> None:
        time = datetime(2026, 1, 1, tzinfo=UTC)
        self.events = [Event(seq, "oven.r.run", b"", time, body) for seq, body in enumerate(bodies, 1)]

    async def head(self, _: str) -> int:
        return len(self.events)

    async def read(self, _: str, **__: Any) -> AsyncIterator[Event]:
        for event in self.events:
            yield event

    def verify(self, event: Event) -> Event:
        return event


async def test_the_log_alone_brings_back_offers_choices_members_and_weights() -> None:
    run = Run("critic")
    commands = [OperatorCommand(id="o", action="offer", actuator=CRITIC, judge=OTHER)]
    commands += [OperatorCommand(id="a", action="add", actuator="committee.tone", judge=FIRST, value=0.2)]
    commands += [
        OperatorCommand(id="x", action="offer", actuator=CRITIC, judge=JudgeSpec(provider="grok", model="dead"))
    ]
    run.link.incoming.extend(commands[:2])
    run.step()
    for probe in run.remote.probes:
        probe[3].set_result("")
    run.step()
    run.link.incoming.extend([commands[2], decision(CRITIC, OTHER.identity, apply_at=3)])
    run.step()
    run.remote.probes[2][3].set_result("no answer")
    run.step()
    log: Any = Log(*commands, *run.link.sent)
    past = await read_resume_state(log, "r", log)
    again = Run("critic", "tone", past=past)
    assert again.committee.weights == run.committee.weights == {"exact": 0.4, "critic": 0.4, "tone": 0.2}
    assert again.ask() == {"critic": RequestedModel(OTHER, 1), "tone": RequestedModel()}
    assert again.actuators.spec(CRITIC).choices == (FIRST.identity, OTHER.identity, OFF), "not what gave no verdict"


def test_a_muted_member_is_not_asked_and_the_quorum_does_not_count_it() -> None:
    run = Run("critic", "adversary")
    assert run.committee.quorum == 2
    for number, member in enumerate(("critic", "adversary")):
        assert run.actuators.apply(f"committee.{member}", OFF).status == "applied"
        assert run.committee.quorum == 2 - number
    run.committee(["p", "p"], ["a", "bb"])
    assert run.remote.named == [] and run.committee.last_outcome.rewards == [0.1, 0.2], "the rule alone"
    with pytest.raises(ConfigError, match="only muted members would have weight"):
        run.committee.set_weights({"exact": 0.0, "critic": 1.0, "adversary": 1.0})
    run.actuators.apply(CRITIC, FIRST.identity)
    assert run.ask() == {"critic": RequestedModel(None, 1)}, "back, and its controls start anew"


def test_a_new_judge_is_not_blamed_for_its_predecessor() -> None:
    run = Run("critic", "tone")
    texts = ["a", "bbb"]
    run.committee(["p", "p"], texts)
    assert {"committee/critic/length", "committee/tone/length"} <= set(run.committee.last_outcome.metrics)
    run.committee.judges.offer("critic", OTHER)

    def swapped() -> None:
        run.remote.health["critic"] = JudgeHealth(controls=1, controls_failed=1)  # of the one that is asked
        run.committee.choose_judge("critic", OTHER.identity)
        run.remote.health["critic"] = JudgeHealth(controls=1, controls_failed=1)

    run.remote.meanwhile = swapped
    run.committee(["p", "p"], texts)
    metrics = run.committee.last_outcome.metrics
    assert run.committee.last_outcome.rewards == pytest.approx([0.1, 0.3]), "they count for the group all the same"
    assert "committee/critic/length" not in metrics and "committee/critic/controls_failed" not in metrics
    assert "committee/tone/length" in metrics
    run.remote.meanwhile = None
    run.committee(["p", "p"], texts)
    assert "committee/critic/length" in run.committee.last_outcome.metrics, (
        "the next one is watched from its own first verdict"
    )


def test_muting_cannot_break_the_quorum() -> None:
    run = Run("critic", quorum=2)
    refused = run.actuators.apply(CRITIC, OFF)
    assert refused.status == "rejected" and "without critic, only 1 members would score, but committee.quorum is 2" in (
        refused.reason
    )
    alone = Committee({}, remote=Members("critic"))
    with pytest.raises(ConfigError, match="critic is the only unmuted member with weight"):
        alone.choose_judge("critic", OFF)
    with pytest.raises(ConfigError, match="critic is the only unmuted member with weight"):
        alone.remove_member("critic")


def test_a_member_joins_and_leaves_with_its_share_of_the_weight() -> None:
    run = Run("critic")
    command = run.say("add", "tone", judge=OTHER, value=0.2)
    run.step()
    assert run.remote.probes[0][:3] == ("tone", OTHER, True), "its process may still be on its way"
    run.remote.probes[0][3].set_result("")
    run.step()
    assert run.receipt(command).status == "applied" and run.receipt(command).after == OTHER.identity
    announced = [message.actuator for message in run.link.sent if isinstance(message, ActuatorAnnounced)]
    shares = {"exact": 0.4, "critic": 0.4, "tone": 0.2}
    assert [(spec.name, spec.value) for spec in announced] == [(WEIGHTS, shares), ("committee.tone", OTHER.identity)]
    assert run.ask() == {"critic": RequestedModel(), "tone": RequestedModel()}

    command = run.say("remove", "tone")
    run.step(2)
    assert (run.receipt(command).status, run.receipt(command).after) == ("applied", OFF)
    assert run.ask() == {"critic": RequestedModel()} and run.committee.weights == {"exact": 0.5, "critic": 0.5}
    spec = run.actuators.spec("committee.tone")
    assert spec.choices == (OFF,), "nothing but off is left of it"
    run.say("add", "tone", judge=FIRST, value=0.5)
    run.step()
    run.remote.probes[1][3].set_result("")
    run.step()
    assert run.committee.weights["tone"] == 0.5 and run.ask()["tone"] == RequestedModel(None, 1)


@given(st.lists(st.tuples(st.sampled_from(("a", "b")), st.sampled_from(("first", "other", "third", OFF)))))
def test_requests_name_what_was_chosen_last_and_each_change_starts_anew(words: list[tuple[str, str]]) -> None:
    judges = MemberModels({"a": FIRST, "b": None})
    third = JudgeSpec(provider="compatible", model="m", base_url="http://host/v1")
    chosen = {"a": FIRST.identity, "b": "configured"}
    for member, word in words:
        before = judges.current([member])[member] if not judges.is_muted(member) else None
        identity = {
            "first": {"a": FIRST.identity, "b": "configured"}[member],
            "other": judges.offer(member, OTHER),
            "third": judges.offer(member, third),
        }.get(word, OFF)
        judges.choose(member, identity)
        assert judges.active(member) == identity and judges.is_muted(member) == (identity == OFF)
        if identity != OFF:
            now = judges.current([member])[member]
            assert now.judge is None or now.judge.identity == identity
            same = identity == chosen[member]
            assert before is None or (now == before) == same, "another number for each swap"
        chosen[member] = identity


@pytest.mark.parametrize(
    ("action", "member", "fields", "message"),
    [
        ("offer", "critik", {"judge": OTHER}, "no committee member named 'critik'; did you mean 'critic'"),
        ("offer", "critic", {}, "the command does not name a model"),
        ("remove", "exact", {}, "no committee member named 'exact'"),
        ("add", "critic", {"judge": OTHER, "value": 0.5}, "critic is already a member"),
    ],
)
def test_an_invalid_change_of_a_judge_is_refused(
    action: str, member: str, fields: dict[str, Any], message: str
) -> None:
    run = Run("critic")
    command = run.say(action, member, **fields)
    run.step(2)
    assert run.receipt(command).status == "rejected" and message in run.receipt(command).reason
    assert run.remote.probes == []


def test_a_member_removed_before_its_answer_does_not_join() -> None:
    run = Run("critic")
    added = run.say("add", "tone", judge=OTHER, value=0.2)
    run.step()
    removed = run.say("remove", "tone")
    run.step(2)
    assert [run.receipt(command).status for command in (added, removed)] == ["rejected", "rejected"]
    assert run.remote.probes[0][3].cancelled() and "tone" not in run.committee.members


def test_only_an_offered_judge_can_be_chosen() -> None:
    judges = MemberModels({"critic": FIRST})
    with pytest.raises(ConfigError, match="is not one of the models of critic, claude/sonnet, off; offer it first"):
        judges.choose("critic", OTHER.identity)
    with pytest.raises(UnknownNameError, match="did you mean 'critic'"):
        judges.choose("critics", FIRST.identity)
    assert judges.offer("critic", FIRST) == FIRST.identity and judges.choices("critic") == (FIRST.identity, OFF)
