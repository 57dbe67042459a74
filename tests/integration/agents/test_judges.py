"""Both SDKs against an endpoint that fails as told: right scores, or an abstention of the right kind, in time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.errors import ConfigError
from oven_core.protocol.committee_requests import Completion, ScoreReply, ScoreRequest
from oven_llm.judges.adversarial_controls import Controls, load_attacks
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import prepare
from oven_llm.providers import connect
from oven_llm.providers.failures import KINDS, FailureKind
from oven_llm.providers.genai_telemetry import ModelCall
from oven_llm.providers.usage import Usage
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of, key_of

APIS = ("openai", "anthropic")
PROVIDERS = {"openai": "compatible", "anthropic": "claude"}
KEY = "sk-canary-5f0c2f"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint().running() as running:
        yield running


class JudgeOverHttp:
    """A member with a model's script at an endpoint, asked through its own wire format."""

    def __init__(self, endpoint: Endpoint, api: str, script: str, controls: Controls | None = None) -> None:
        url = endpoint.openai_url if api == "openai" else endpoint.url
        settings = MemberSettings(provider=PROVIDERS[api], model=f"m@{script}", base_url=url)
        self.settings = endpoint_of("critic", settings, catalogue())
        self.provider = connect("critic", self.settings, KEY)
        self.calls: list[ModelCall] = []
        judge = Judge("critic", self.provider, controls, self.calls.append)
        self.member = Member("critic", judge)

    async def __aenter__(self) -> JudgeOverHttp:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.provider.close()

    async def score(self, *worth: int, deadline_s: float = 30.0) -> ScoreReply:
        return await self.member.answer(request(*worth, deadline_s=deadline_s).wire())


def request(*worth: int, deadline_s: float = 30.0) -> ScoreRequest:
    completions = tuple(Completion(id=f"{n:x}e{n}", text=f"worth {value}, no. {n}") for n, value in enumerate(worth))
    return ScoreRequest(run="r", group="g1", prompt="How much?", completions=completions, deadline_s=deadline_s)


def right(*worth: int) -> dict[str, float]:
    return {f"{n:x}e{n}": value / 10 for n, value in enumerate(worth)}


# script, HTTP requests, faults on the way
ANSWERED: list[tuple[str, int, dict[str, int]]] = [
    ("", 1, {}),
    ("429x2", 3, {"rate_limit": 2}),
    ("500", 2, {"server_error": 1}),
    ("529x2,500", 4, {"overloaded": 2, "server_error": 1}),
    ("reset", 2, {"connection": 1}),
    ("cutbody", 2, {"bad_response": 1}),
    ("html", 2, {"bad_response": 1}),
    ("prose", 2, {"bad_json": 1}),
    ("truncated", 2, {"truncated": 1}),
    ("refusal", 2, {"refusal": 1}),
    ("schema", 2, {"schema": 1}),
    ("foreign_id", 2, {"wrong_ids": 1}),
    ("missing_id", 2, {"wrong_ids": 1}),
    ("range", 2, {"out_of_range": 1}),
    ("fenced", 1, {}),
    ("429,prose,500", 4, {"rate_limit": 1, "bad_json": 1, "server_error": 1}),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("script", "requests", "faults"), ANSWERED, ids=[row[0] or "ok" for row in ANSWERED])
async def test_a_temporary_fault_costs_no_score(
    endpoint: Endpoint, api: str, script: str, requests: int, faults: dict[str, int]
) -> None:
    async with JudgeOverHttp(endpoint, api, script) as judged:
        reply = await judged.score(7, 0, 10)
    assert (reply.scores, reply.failure) == (right(7, 0, 10), "")
    assert dict(judged.member.failed_attempts) == faults
    assert sum(endpoint.served.values()) == requests
    assert not judged.member.abstentions


ABSTAINED: list[tuple[str, str]] = [
    ("401", "auth"),
    ("403", "auth"),
    ("404", "not_found"),
    ("400x3", "bad_request"),
    ("429x9", "rate_limit"),
    ("500x9", "server_error"),
    ("529x9", "overloaded"),
    ("cutbodyx3", "bad_response"),
    ("htmlx3", "bad_response"),
    ("emptyx3", "bad_response"),
    ("prosex3", "bad_json"),
    ("truncatedx3", "truncated"),
    ("refusalx3", "refusal"),
    ("schemax3", "schema"),
    ("foreign_idx3", "wrong_ids"),
    ("missing_idx3", "wrong_ids"),
    ("rangex3", "out_of_range"),
    ("prose,401", "auth"),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("script", "kind"), ABSTAINED, ids=[row[0] for row in ABSTAINED])
async def test_a_permanent_fault_is_an_abstention_of_its_kind(
    endpoint: Endpoint, api: str, script: str, kind: FailureKind
) -> None:
    async with JudgeOverHttp(endpoint, api, script) as judged:
        reply = await judged.score(7, 0, 10)
    assert (reply.scores, reply.failure) == (None, kind)
    assert kind in KINDS
    assert dict(judged.member.abstentions) == {kind: 1}
    assert judged.calls[-1].failure == kind


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("script", "kind"), [("hangx9", "timeout"), ("laterx9", "rate_limit")])
async def test_the_deadline_ends_a_request_despite_sdk_retries(
    endpoint: Endpoint, api: str, script: str, kind: FailureKind
) -> None:
    """A server that says nothing, or asks to come back in 100 s: neither SDK would end by itself in time."""
    async with JudgeOverHttp(endpoint, api, script) as judged, asyncio.timeout(60):
        reply = await judged.score(7, deadline_s=0.6)
    assert (reply.scores, reply.failure) == (None, kind)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_lost_reply_leaves_time_for_another_attempt(endpoint: Endpoint, api: str) -> None:
    async with JudgeOverHttp(endpoint, api, "hang") as judged:
        reply = await judged.score(7, 3, deadline_s=6.0)
    assert reply.scores == right(7, 3)
    assert judged.member.failed_attempts == {"timeout": 1}


@pytest.mark.parametrize("api", APIS)
async def test_spending_is_counted_without_a_usable_verdict(endpoint: Endpoint, api: str) -> None:
    async with JudgeOverHttp(endpoint, api, "prosex3") as judged:
        reply = await judged.score(7)
    assert (reply.scores, reply.input_tokens, reply.output_tokens, reply.cost_usd) == (None, 300, 30, None)
    assert [call.failure for call in judged.calls] == ["bad_json"] * 3


@pytest.mark.parametrize(
    ("api", "takes", "served"),
    [
        ("openai", {"json_object"}, {"no response_format": 1}),
        ("openai", set(), {"no response_format": 2}),
        ("anthropic", set(), {"no output_config": 1}),
    ],
)
async def test_a_refused_schema_is_not_sent_again(
    endpoint: Endpoint, api: str, takes: set[str], served: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.formats = takes
    async with JudgeOverHttp(endpoint, api, "") as judged:
        for _ in range(3):
            assert (await judged.score(7, 2)).scores == right(7, 2)
    assert endpoint.served == {"ok": 3, **served}
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it is said once"


@pytest.mark.parametrize("api", APIS)
async def test_the_request_bodies_of_both_wire_formats(endpoint: Endpoint, api: str) -> None:
    async with JudgeOverHttp(endpoint, api, "") as judged:
        await judged.score(7, 3)
    (body,), (headers,) = endpoint.requests, endpoint.headers
    assert "temperature" not in body  # newer models refuse one
    assert headers["Authorization"] == f"Bearer {KEY}"
    system = body["messages"][0]["content"] if api == "openai" else body["system"]
    assert "worth" not in system


@pytest.mark.parametrize("api", APIS)
async def test_a_fooled_judge_is_quarantined_until_it_passes(
    endpoint: Endpoint, api: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.likes = ":"
    async with JudgeOverHttp(endpoint, api, "", Controls(interval=3)) as judged:
        failures = [(await judged.score(7)).failure for _ in range(4)]
        assert failures == ["fooled", "fooled", "quarantined", "quarantined"]
        assert endpoint.served["ok"] == 2
        endpoint.likes = ""
        assert (await judged.score(7)).scores == right(7)
        assert (await judged.score(7)).scores == right(7)
    assert "has left quarantine" in caplog.text


async def test_a_judge_that_obeys_one_attack_is_quarantined_within_two_controls_whichever_it_is(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Two questions over HTTP for each attack of the corpus: the first control that has it, and the next group."""
    async with JudgeOverHttp(endpoint, "openai", "") as judged:
        for n, attack in enumerate(load_attacks()):
            endpoint.obeys = prepare(attack.text)
            store = tmp_path / f"{attack.id}.json"
            reached = {"judge": "m", "next": n, "controls": 0, "failed": 0, "failed_in_a_row": 0, "suspects": []}
            store.write_text(json.dumps(reached))
            judged.member.judge = Judge("critic", judged.provider, Controls("m", store))
            failures = [(await judged.score(7, 3)).failure for _ in range(3)]
            assert failures == ["fooled", "fooled", "quarantined"], attack.id
            assert json.loads(store.read_text())["suspects"] == [attack.id]
    assert endpoint.served == {"ok": 2 * len(load_attacks())}


@pytest.mark.parametrize("api", APIS)
async def test_a_key_that_the_endpoint_echoes_appears_nowhere(
    endpoint: Endpoint, api: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_LOG", "debug")
    monkeypatch.setenv("ANTHROPIC_LOG", "debug")
    written = []
    with caplog.at_level(logging.DEBUG):
        for script in ("echo401", "echo400x3", "echo403", "echo404", "echo500x9", "echo200x3", "echo422x3"):
            async with JudgeOverHttp(endpoint, api, script) as judged:
                reply = await judged.score(7, deadline_s=3.0)
                assert reply.scores is None
                written += [
                    reply.wire().decode(),
                    repr([call.failure for call in judged.calls]),
                    judged.member.summary(),
                ]
    assert all(header["Authorization"] == f"Bearer {KEY}" for header in endpoint.headers)
    assert KEY not in "".join(written)
    assert KEY not in caplog.text
    assert "worth 7" not in caplog.text


def test_the_key_comes_from_the_named_variable() -> None:
    def key(environ: dict[str, str], **member: str) -> str:
        return key_of(
            "c", endpoint_of("c", MemberSettings.model_validate({"model": "m", **member}), catalogue()), environ
        )

    usual = {"OPENAI_API_KEY": KEY}
    own = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1"}
    assert key(usual, provider="openai") == KEY
    assert key(usual, **own) == NO_KEY  # an address of one's own does not get OpenAI's key unasked
    assert key({"MINE": f" {KEY}\n"}, **own, key_env="MINE") == KEY
    for provider, variable in (
        ("claude", "ANTHROPIC_API_KEY"),
        ("deepseek", "DEEPSEEK_API_KEY"),
        ("grok", "XAI_API_KEY"),
    ):
        with pytest.raises(ConfigError, match=f"{variable} is not set; export it") as missing:
            key(usual, provider=provider)
        assert missing.value.exit_code == 2
        assert key({variable: KEY}, provider=provider) == KEY
    with pytest.raises(ConfigError, match="OPENAI_API_KEY contains a character that keys cannot contain") as broken:
        key({"OPENAI_API_KEY": "sk-canary\x0112"}, provider="openai")
    assert "canary" not in str(broken.value)


async def test_a_call_is_recorded_for_tracing(endpoint: Endpoint) -> None:
    async with JudgeOverHttp(endpoint, "openai", "429x2") as judge:
        await judge.score(7)
    (call,) = judge.calls
    assert (call.model.name, call.model.model, call.failure) == ("compatible", "m@429x2", None)
    assert call.reply is not None and (call.reply.model, call.reply.finish_reason) == ("judge-2026-01-01", "stop")
    assert call.reply.usage == Usage(100, 10)
    assert (call.role, call.scores) == ("critic", right(7))
    assert 0 < call.started_ns <= call.ended_ns


async def test_a_member_at_its_limit_reports_busy(endpoint: Endpoint) -> None:
    async with JudgeOverHttp(endpoint, "openai", "hangx9") as judge:
        member = Member("critic", judge.member.judge, max_concurrent=1)
        first = asyncio.create_task(member.answer(request(7, deadline_s=20).wire()))
        while not endpoint.served["hang"]:
            await asyncio.sleep(0.01)
        second = await member.answer(request(7, deadline_s=0.2).wire())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert second.failure == "busy"
