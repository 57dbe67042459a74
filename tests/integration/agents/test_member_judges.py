"""A member whose judge is swapped, over real HTTP: each request is scored by the model that it names, or by none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.protocol.committee_requests import Completion, ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_llm.judges.adversarial_controls import INITIAL_INTERVAL
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge_probe import ProbeResult
from oven_llm.judges.member_judges import MemberJudges
from oven_llm.judges.member_process import look_up_judge

KEY = "sk-canary-a97b11"
SCORES = {"a1" * 6: 0.7, "b2" * 6: 0.3}


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint().running() as running:
        yield running


class Seated:
    """A member in this process, configured with the model `first`."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self.endpoint = endpoint
        config = folder / "config.json"
        member = {"provider": "compatible", "model": "first", "base_url": endpoint.openai_url, "role": "style"}
        config.write_text(json.dumps({"committee": {"members": {"critic": member}}}))
        self.recorded: list[ProbeResult] = []
        look_up = partial(look_up_judge, config, "critic")
        self.seat = MemberJudges(look_up(), look_up, on_probe=self.recorded.append)
        self.member = Member("critic", self.seat, self.seat.probe)

    def spec(self, model: str, **fields: object) -> JudgeSpec:
        settings = {"provider": "compatible", "model": model, "base_url": self.endpoint.openai_url, **fields}
        return JudgeSpec.model_validate(settings)

    async def score(self, judge: JudgeSpec | None = None, swap: int = 0) -> ScoreReply:
        completions = (Completion(id="a1" * 6, text="worth 7"), Completion(id="b2" * 6, text="worth 3"))
        request = ScoreRequest(
            run="r", group="g", prompt="p", completions=completions, deadline_s=20, judge=judge, swap=swap
        )
        return await self.member.answer(request.wire())

    async def probe(self, judge: JudgeSpec) -> ProbeReply:
        reply = await self.member.probe(ProbeRequest(judge=judge, deadline_s=20).wire())
        assert reply is not None
        return reply

    @property
    def asked_models(self) -> list[str]:
        """Models, in the order of the requests."""
        return [request["model"] for request in self.endpoint.requests]


@asynccontextmanager
async def seated(endpoint: Endpoint, folder: Path) -> AsyncIterator[Seated]:
    made = Seated(endpoint, folder)
    try:
        yield made
    finally:
        await made.seat.close()


async def test_each_request_is_scored_by_the_model_that_it_names(endpoint: Endpoint, tmp_path: Path) -> None:
    async with seated(endpoint, tmp_path) as seat:
        second, third = seat.spec("second"), seat.spec("third")
        assert (await seat.probe(second)).failure == ""
        assert seat.recorded == [], "it was probed, and does not judge yet"
        replies = [await seat.score(), await seat.score(second, 1), await seat.score(third, 2), await seat.score()]
    assert seat.asked_models == ["second", "first", "second", "third", "first"]
    assert [reply.judge for reply in replies] == ["", second.identity, third.identity, ""]
    assert {str(reply.scores) for reply in replies} == {str(SCORES)}
    assert [result.model for result in seat.recorded] == ["second"]
    assert "style" in seat.endpoint.requests[2]["messages"][0]["content"].lower(), "the role stays"


async def test_requests_under_way_during_a_swap_end_with_their_judge(endpoint: Endpoint, tmp_path: Path) -> None:
    async with seated(endpoint, tmp_path) as seat:
        both = await asyncio.gather(seat.score(seat.spec("m@500"), 1), seat.score(seat.spec("second"), 2))
        many = await asyncio.gather(*(seat.score(seat.spec(f"m{n}"), n) for n in range(3, 9)))
    assert [reply.scores for reply in both] == [SCORES] * 2
    assert [reply.judge for reply in many] == [seat.spec(f"m{n}").identity for n in range(3, 9)]
    assert all(reply.scores for reply in many), "none was closed under a request"


async def test_controls_start_anew_with_each_swap(endpoint: Endpoint, tmp_path: Path) -> None:
    async with seated(endpoint, tmp_path) as seat:
        controlled = [len(await _answers(seat, swap)) > 2 for swap in (0, 0, 1, 1, 2)]
    assert controlled == [True, False, True, False, True], (
        f"the first group of each, and not again within {INITIAL_INTERVAL}"
    )


async def _answers(seat: Seated, swap: int) -> list[str]:
    await seat.score(seat.spec("second") if swap else None, swap)
    user = seat.endpoint.requests[-1]["messages"][-1]["content"]
    data = json.loads(user.split("<data>\n")[1].split("\n</data>")[0])
    return [answer["text"] for answer in data["answers"]]


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"model": "m@401x9"}, "auth", "HTTP 401"),
        ({"model": "m@404x9"}, "not_found", "check `model`"),
        ({"model": "m@prosex9"}, "bad_json", "stronger model"),
        ({"model": "m", "key_env": "NOT_THERE"}, "not_configured", "NOT_THERE is not set"),
        ({"model": "m", "provider": "groc"}, "not_configured", "did you mean 'grok'"),
        ({"model": "m", "base_url": ""}, "not_configured", "needs committee.members.critic.base_url"),
    ],
)
async def test_a_probe_says_why_a_model_cannot_judge(
    endpoint: Endpoint, tmp_path: Path, fields: dict[str, str], kind: str, message: str
) -> None:
    async with seated(endpoint, tmp_path) as seat:
        reply = await seat.probe(seat.spec(**fields))
        assert (reply.failure, message in reply.detail) == (kind, True), reply
        assert (await seat.score()).scores, "the one before goes on"
        named = await seat.score(seat.spec(**fields), 1)
    assert named.scores is None and named.failure, "one that is named all the same abstains"


async def test_a_key_comes_from_this_process_only(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with seated(endpoint, tmp_path) as seat:
        spec = seat.spec("m@echo401x9", key_env="MY_KEY")
        reply = await seat.probe(spec)
    assert reply.failure == "auth" and seat.endpoint.headers[0]["Authorization"].endswith(KEY)
    assert KEY not in reply.wire().decode() and KEY not in ProbeRequest(judge=spec, deadline_s=1).wire().decode()
