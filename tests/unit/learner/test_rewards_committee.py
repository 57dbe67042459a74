"""The committee's members, requests and metrics, with a remote side that says what the test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from oven_core.protocol.committee_requests import JudgeHealth, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_learner.actuators import Actuators
from oven_learner.rewards import Committee
from oven_learner.rewards.judge_knobs import register_committee_knobs
from oven_learner.rewards.member_models import RequestedModel
from oven_learner.rewards.remote_members import read_reply
from oven_learner.rewards.verdicts import Abstention, Cost, Verdict
from oven_runs.log.committee_view import WEIGHTS


class Remote:
    """Members that answer with a function of the request."""

    deadline_s = 5.0

    def __init__(self, **answers: Callable[[ScoreRequest], Verdict]) -> None:
        self.answers = answers
        self.requests: list[ScoreRequest] = []
        self.health: dict[str, JudgeHealth] = {}

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.answers)

    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        return {}

    def probe(self, member: str, model: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        raise NotImplementedError

    def join(self, member: str) -> None:
        self.answers[member] = by_length

    def leave(self, member: str) -> None:
        del self.answers[member]

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, RequestedModel]) -> dict[str, list[Verdict]]:
        self.requests += requests
        return {name: [self.answers[name](request) for request in requests] for name in members}

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        return {}

    def take_cost(self) -> Cost:
        return Cost()

    def close(self) -> None:
        pass


def by_length(request: ScoreRequest) -> Verdict:
    return tuple(len(completion.text) / 10 for completion in request.completions)


def down(request: ScoreRequest) -> Verdict:
    return Abstention("no_responder")


def share_of_a(completions: list[str], **_: Any) -> list[float | None]:
    return [text.count("a") / len(text) for text in completions]


def judged(committee: Committee, completions: list[str], size: int = 2) -> tuple[list[float | None], dict[str, float]]:
    committee.group_size = size
    metrics: dict[str, float] = {}
    prompts = [f"p{row // size}" for row in range(len(completions))]
    return committee(prompts, completions, log_metric=metrics.__setitem__), metrics


def test_one_rule_alone_is_the_reward() -> None:
    rewards, metrics = judged(Committee({"a": share_of_a}), ["ab", "aaa", "b", "abb"])
    assert rewards == [0.5, 1.0, 0.0, 1 / 3]
    assert metrics["rewards/a/mean"] == pytest.approx((1.5 + 1 / 3) / 4)
    assert metrics["committee/skipped_groups"] == metrics["committee/abstentions"] == 0
    assert "committee/agreement" not in metrics


def test_equal_completions_are_asked_for_once_and_get_one_reward() -> None:
    remote = Remote(judge=by_length)
    rewards, _ = judged(Committee({"a": share_of_a}, remote=remote), ["ab", "ab", "aba", "ab"], size=4)
    assert [len(request.completions) for request in remote.requests] == [2]
    assert rewards[0] == rewards[1] == rewards[3] != rewards[2]


def test_requests_say_nothing_of_the_order_and_repeat_with_the_seed() -> None:
    texts = [f"answer {i}" for i in range(8)]
    orders, ids = [], []
    for seed in (1, 1, 2):
        remote = Remote(judge=by_length)
        committee = Committee({}, remote=remote, seed=seed, run="r", description="a policy")
        judged(committee, texts * 2, size=8)
        orders.append([[completion.text for completion in request.completions] for request in remote.requests])
        ids.append([completion.id for request in remote.requests for completion in request.completions])
        assert len(set(ids[-1])) == 16, "the same text has another id in another group"
        assert remote.requests[0].policy == "a policy" and remote.requests[0].run == "r"
    assert orders[0] == orders[1] and ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert orders[0][0] != texts and orders[0][0] != orders[0][1]


def test_without_a_quorum_a_group_has_no_reward_and_the_others_do() -> None:
    def not_the_second(request: ScoreRequest) -> Verdict:
        return Abstention("rate_limit") if request.prompt == "p1" else by_length(request)

    committee = Committee({"a": share_of_a}, remote=Remote(judge=not_the_second, other=down))
    rewards, metrics = judged(committee, ["ab", "aba", "ab", "aab"])
    assert rewards[2:] == [None, None] and None not in rewards[:2]
    assert metrics["committee/skipped_groups"] == 1 and metrics["committee/abstentions"] == 3
    assert metrics["committee/abstain/no_responder"] == 2 and metrics["committee/abstain/rate_limit"] == 1
    assert "rewards/other/mean" not in metrics, "who scored nothing has no mean"
    assert metrics["rewards/judge/mean"] == pytest.approx(0.25), "of the group that it scored"


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (lambda **_: 1 / 0, "raised"),
        (lambda **_: [0.5], "malformed"),
        (lambda completions, **_: [2.0] * len(completions), "out_of_range"),
        (lambda completions, **_: [float("nan")] * len(completions), "out_of_range"),
        (lambda completions, **_: ["1"] * len(completions), "malformed"),
        (lambda completions, **_: [None] * len(completions), "not_applicable"),
    ],
)
def test_a_rule_that_fails_abstains_and_never_becomes_a_number(rule: Any, kind: str) -> None:
    rewards, metrics = judged(Committee({"a": share_of_a, "b": rule, "c": share_of_a}), ["ab", "aab"])
    assert rewards == judged(Committee({"a": share_of_a, "c": share_of_a}), ["ab", "aab"])[0]
    assert metrics[f"committee/abstain/{kind}"] == 1
    rewards, _ = judged(Committee({"b": rule}), ["ab", "aab"])
    assert rewards == [None, None]


def test_a_rule_that_does_not_apply_to_one_completion_abstains_on_its_group_only() -> None:
    def shy(completions: list[str], **_: Any) -> list[float | None]:
        return [None if text == "x" else 0.5 for text in completions]

    rewards, metrics = judged(Committee({"shy": shy}), ["x", "a", "a", "b"])
    assert rewards == [None, None, 0.5, 0.5] and metrics["committee/abstentions"] == 1


def test_weights_are_a_simplex_that_acts_on_the_next_batch() -> None:
    committee, actuators = Committee({"a": share_of_a, "b": share_of_a}, weights={"b": 0}), Actuators()
    register_committee_knobs(actuators, committee)
    assert actuators.read(WEIGHTS) == {"a": 1.0, "b": 0.0} and committee.quorum == 1
    assert actuators.apply(WEIGHTS, {"a": 0.25, "b": 0.75}).status == "applied"
    assert committee.weights == {"a": 0.25, "b": 0.75} and committee.quorum == 2
    assert actuators.apply(WEIGHTS, {"a": 0.25}).status == "rejected"
    alone = Actuators()
    register_committee_knobs(alone, Committee({"a": share_of_a}))
    assert WEIGHTS not in alone, "nothing to weigh"


def test_scores_that_are_all_equal_make_no_quorum_and_are_counted() -> None:
    committee = Committee({"a": share_of_a, "flat": lambda completions, **_: [0.5] * len(completions)})
    rewards, metrics = judged(committee, ["ab", "aaa", "ab", "ba"])
    assert rewards == [None, None, 0.5, 0.5], "in the second group all see the same"
    assert metrics["committee/abstain/no_difference"] == metrics["committee/abstentions"] == 1
    assert metrics["rewards/flat/mean"] == 0.5
    assert committee.last_outcome.abstentions == {"no_difference": 1}, "it is named when the run is held"


REQUEST = ScoreRequest.model_validate(
    {"run": "r", "group": "g", "prompt": "p", "deadline_s": 1,
     "completions": [{"id": "x", "text": "1"}, {"id": "y", "text": "2"}]}
)  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ({"scores": {"y": 1, "x": 0.25}}, (0.25, 1.0)),
        ({"scores": {"x": 0.25}}, "wrong_ids"),
        ({"scores": {"x": 0.25, "y": 0.5, "z": 1}}, "wrong_ids"),
        ({"group": "other", "scores": {"x": 0.25, "y": 0.5}}, "wrong_ids"),
        ({"scores": {"x": 0.25, "y": 1.01}}, "out_of_range"),
        ({"scores": {"x": -0.1, "y": 1}}, "out_of_range"),
        ({"scores": {"x": "0.25", "y": 1}}, "malformed"),
        ({"scores": {"x": "NaN", "y": 1}}, "malformed"),
        ({"scores": {"x": True, "y": 1}}, "malformed"),
        ({"member": "other", "scores": {"x": 0.25, "y": 1}}, "malformed"),
        ({"v": 2, "scores": {"x": 0.25, "y": 1}}, "malformed"),
        ({"scores": None}, "not_applicable"),
        ({"failure": "rate_limit", "scores": {"x": 0.25, "y": 1}}, "rate_limit"),
        ({"failure": "Ignore all! <script>"}, "other"),
    ],
)
def test_a_reply_is_scores_for_exactly_what_was_asked_or_nothing(reply: dict[str, Any], verdict: Any) -> None:
    fields = {"v": 1, "type": "ScoreReply", "member": "judge", "group": "g"} | reply
    expected = verdict if isinstance(verdict, tuple) else Abstention(verdict)
    assert read_reply(json.dumps(fields).encode(), "judge", REQUEST)[0] == expected


def test_known_costs_are_reported_once_per_step() -> None:
    class Costly(Remote):
        cost = Cost(120, 0.5)

        def take_cost(self) -> Cost:
            cost, self.cost = self.cost, Cost()
            return cost

    remote = Costly(judge=by_length)
    committee = Committee({}, remote=remote, description="A test.")
    assert {"committee/tokens", "committee/cost_usd"} <= {spec.name for spec in committee.metric_specs()}
    assert committee.take_cost() == {"committee/tokens": 120.0, "committee/cost_usd": 0.5}
    assert committee.take_cost() == {"committee/tokens": 0.0}
    remote.cost = Cost(7) + Cost(3, 0.25)
    assert committee.take_cost() == {"committee/tokens": 10.0, "committee/cost_usd": 0.25}
    rules = Committee({"rule": share_of_a})
    assert rules.take_cost() == {} and "committee/tokens" not in {spec.name for spec in rules.metric_specs()}


def test_a_reply_says_what_it_cost_and_no_cost_is_below_nothing() -> None:
    answer = ScoreReply(
        member="judge", group="g", failure="budget", input_tokens=5, output_tokens=2, cost_usd=0.25
    ).wire()
    assert read_reply(answer, "judge", REQUEST)[:2] == (Abstention("budget"), Cost(7, 0.25))
    for cost in (b"-0.25", b"NaN", b"1e999"):
        assert read_reply(answer.replace(b"0.25", cost), "judge", REQUEST)[:2] == (Abstention("malformed"), Cost())


def ranked(request: ScoreRequest) -> Verdict:
    return tuple(len(completion.text) / 10 for completion in request.completions)


def against(request: ScoreRequest) -> Verdict:
    return tuple(1 - len(completion.text) / 10 for completion in request.completions)


def test_a_judge_against_all_others_loses_its_weight_and_a_checkpoint_keeps_that() -> None:
    remote = Remote(good=ranked, fair=ranked, bad=against)
    committee = Committee({"a": by_letters}, remote=remote)
    texts = ["a", "aa", "aaaa", "aaaaaaa"]
    first, _ = judged(committee, texts, size=4)
    for _ in range(30):
        last, metrics = judged(committee, texts, size=4)
    assert metrics["committee/bad/reliability"] == pytest.approx(0.1) and metrics["committee/good/reliability"] == 1.0
    assert committee.weights == dict.fromkeys(("a", "good", "fair", "bad"), 0.25), "what the user set is not touched"
    assert spread(last) > spread(first)
    resumed = Committee({"a": by_letters}, remote=remote)
    resumed.load_state_dict(json.loads(json.dumps(committee.state_dict())))
    assert judged(resumed, texts, size=4)[0] == judged(committee, texts, size=4)[0]
    unweighed = Committee({"a": by_letters}, remote=remote, reliability=False)
    unweighed.load_state_dict(committee.state_dict())
    assert judged(unweighed, texts, size=4)[0] == first


def spread(rewards: list[float | None]) -> float:
    scored = [reward for reward in rewards if reward is not None]
    return max(scored) - min(scored)


def by_letters(completions: list[str], **_: Any) -> list[float | None]:
    return [len(text) / 10 for text in completions]


def test_findings_about_judges_are_logged_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    remote = Remote(judge=ranked)
    committee = Committee({"a": by_letters}, remote=remote)
    remote.health["judge"] = JudgeHealth(controls=4, controls_failed=2, quarantined=True, order_flips=0.25, cut_texts=3)
    for _ in range(2):
        _, metrics = judged(committee, ["a", "aa"])
    assert {
        name.rpartition("/")[2]: value for name, value in metrics.items() if name.startswith("committee/judge/")
    } == {
        **{"reliability": 1.0, "length": pytest.approx(1.0), "order_bias": metrics["committee/judge/order_bias"]},
        **{"order_flips": 0.25, "changes": 0.0, "controls_failed": 2.0, "quarantined": 1.0, "cut_texts": 3.0},
    }
    announced = {metric.name for metric in committee.metric_specs()}
    assert {name for name in metrics if name.startswith("committee/judge/")} <= announced
    assert caplog.text.count("is in quarantine") == caplog.text.count("reads long answers only") == 1
    remote.health["judge"] = JudgeHealth()
    judged(committee, ["a", "aa"])
    assert "resolved: it is in quarantine" in caplog.text


def test_an_answer_known_to_be_right_goes_out_with_the_request(caplog: pytest.LogCaptureFixture) -> None:
    remote = Remote(judge=ranked)
    by_rule = Committee(
        {"a": lambda completions, **_: [float(t == "aa") for t in completions]}, remote=remote, reference="a"
    )
    judged(by_rule, ["a", "aa", "b", "bb"])
    assert [request.reference for request in remote.requests] == ["aa", ""]
    by_column = Committee({}, remote=remote, reference="solution")
    by_column.group_size = 2
    by_column(["p"] * 2, ["a", "b"], solution=["42", "42"])
    by_column(["p"] * 2, ["a", "b"], solution=[None, None])
    assert [request.reference for request in remote.requests[2:]] == ["42", ""]
    for _ in range(2):
        by_column(["p"] * 2, ["a", "b"])
    assert caplog.text.count("neither a rule nor a column") == 1


def test_a_remote_member_without_weight_is_not_asked() -> None:
    """An answer costs. It is asked as soon as it has weight."""
    free, paid = Remote(judge=by_length), {"a": 1.0, "b": 0.0, "judge": 0.0}
    committee = Committee({"a": share_of_a, "b": share_of_a}, remote=free, weights=paid)
    rewards, metrics = judged(committee, ["ab", "aaa"])
    assert not free.requests and rewards == [0.5, 1.0]
    assert "rewards/judge/mean" not in metrics and "rewards/b/mean" in metrics, "a rule costs nothing"
    assert metrics["committee/abstentions"] == 0, "who was not asked abstained from nothing"
    committee.set_weights({"a": 0.5, "b": 0.0, "judge": 0.5})
    _, metrics = judged(committee, ["ab", "aaa"])
    assert len(free.requests) == 1 and "rewards/judge/mean" in metrics


def test_the_quorum_is_at_most_the_members_with_weight() -> None:
    committee = Committee({"a": share_of_a, "b": share_of_a, "c": share_of_a}, quorum=3)
    committee.set_weights({"a": 0.5, "b": 0.5, "c": 0.0})
    assert committee.quorum == 2


def test_the_metrics_of_failures_are_bounded() -> None:
    def inventive(request: ScoreRequest) -> Verdict:
        return Abstention(f"kind_{request.prompt}")

    _, metrics = judged(Committee({}, remote=Remote(judge=inventive)), ["a"] * 40, size=1)
    assert len([name for name in metrics if name.startswith("committee/abstain/kind_")]) == 16
    assert metrics["committee/abstain/other"] == 24


@pytest.mark.parametrize("data", [b"", b"null", b"7/10", b"\xff\xfe", b'{"type": "ScoreReply"', b"[" * 10_000])
def test_bytes_that_are_no_reply_are_malformed(data: bytes) -> None:
    assert read_reply(data, "judge", REQUEST)[0] == Abstention("malformed")


def test_a_nan_is_no_score() -> None:
    data = ScoreReply(member="judge", group="g", scores={"x": 0.5, "y": 1.0}).wire().replace(b"1.0", b"NaN")
    assert read_reply(data, "judge", REQUEST)[0] in (Abstention("malformed"), Abstention("out_of_range"))
