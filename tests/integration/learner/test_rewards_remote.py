"""Remote committee members on a real server: whatever one of them does, no wrong score, and every fault by its name."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from nats.aio.msg import Msg
from tests.support.learner_side import Server

from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.protocol.committee_requests import Completion, ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.security.credentials import Credentials
from oven_learner.rewards.member_models import RequestedModel
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.verdicts import Abstention, Verdict

MEMBERS = ("good", "bad")
Answer: TypeAlias = Callable[[Bus, Msg, ScoreRequest], Coroutine[Any, Any, None]]
TRUTH = {"a": 0.125, "b": 0.5, "c": 1.0}


def request(number: int = 0) -> ScoreRequest:
    completions = tuple(Completion(id=f"{number}-{text}", text=text) for text in TRUTH)
    return ScoreRequest(run="r", group=f"g{number}", prompt="p", completions=completions, deadline_s=1)


def honest(request: ScoreRequest, member: str) -> ScoreReply:
    return ScoreReply(member=member, group=request.group, scores={c.id: TRUTH[c.text] for c in request.completions})


def saying(make: Callable[[ScoreRequest], bytes]) -> Answer:
    async def answer(bus: Bus, message: Msg, request: ScoreRequest) -> None:
        await bus.publish(message.reply, make(request))

    return answer


async def silent(bus: Bus, message: Msg, request: ScoreRequest) -> None:
    pass


async def flooding(bus: Bus, message: Msg, request: ScoreRequest) -> None:
    """The truth once, then a thousand other scores on the same inbox."""
    await bus.publish(message.reply, honest(request, "bad").wire())
    foreign_reply = ScoreReply(
        member="bad", group=request.group, scores={c.id: 0.0 for c in request.completions}
    ).wire()
    for _ in range(1000):
        await bus.publish(message.reply, foreign_reply)


async def late(bus: Bus, message: Msg, request: ScoreRequest) -> None:
    """Scores that would be wrong, after the deadline that the request names."""
    await asyncio.sleep(request.deadline_s + 0.05)
    await bus.publish(message.reply, ScoreReply(member="bad", group=request.group, scores={"x": 0.0}).wire())


def edited(**update: object) -> Answer:
    return saying(lambda request: honest(request, "bad").model_copy(update=update).wire())


def shifted(request: ScoreRequest) -> bytes:
    return honest(request, "bad").model_copy(update={"scores": {f"{c.id}x": 0.5 for c in request.completions}}).wire()


def beyond(value: float) -> Callable[[ScoreRequest], bytes]:
    def make(request: ScoreRequest) -> bytes:
        return ScoreReply(member="bad", group=request.group, scores={c.id: value for c in request.completions}).wire()

    return make


FAULTS: dict[str, tuple[Answer, str]] = {
    "dead": (silent, "deadline"),
    "late": (late, "deadline"),
    "prose": (saying(lambda _: b"I would give the first one 7/10."), "malformed"),
    "empty": (saying(lambda _: b""), "malformed"),
    "huge": (saying(lambda _: b"[" * 900_000), "malformed"),
    "other_ids": (saying(shifted), "wrong_ids"),
    "other_group": (edited(group="another"), "wrong_ids"),
    "in_anothers_name": (edited(member="good"), "malformed"),
    "percent": (saying(beyond(50.0)), "out_of_range"),
    "negative": (saying(beyond(-0.5)), "out_of_range"),
    "nan": (saying(beyond(float("nan"))), "malformed"),
    "another_judge": (edited(judge="someone/else"), "other_judge"),
    "its_own_failure": (edited(scores=None, failure="rate_limit"), "rate_limit"),
}


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    for member in MEMBERS:
        server.files.add_user("member", member)
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def listening(server: Server, member: str, answer: Answer) -> AsyncIterator[list[ScoreRequest]]:
    """A member that answers each request with `answer`; what it was asked."""
    requests: list[ScoreRequest] = []
    tasks: set[asyncio.Task[None]] = set()
    async with Bus.connect(server.url, Credentials.load(server.creds(member))) as bus:

        async def hear(message: Msg) -> None:
            request = ScoreRequest.model_validate_json(message.data)
            requests.append(request)
            task = asyncio.create_task(answer(bus, message, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await bus.subscribe(names.reward(member), hear)
        await bus.flush()
        yield requests
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def remote(  # type: ignore[no-untyped-def]
    server: Server, members: tuple[str, ...] = MEMBERS, deadline_s: float = 1.0, absence_timeout_s: float = 10.0
):
    key = Credentials.load(server.creds("learner"))
    made = RemoteMembers(members, server.url, key, deadline_s=deadline_s, absence_timeout_s=absence_timeout_s)
    try:
        yield made
    finally:
        made.close()
        assert not any(thread.name == "oven-rewards" for thread in threading.enumerate())


async def ask(members: RemoteMembers, count: int = 1) -> dict[str, list[Verdict]]:
    """As the training thread does: not on the loop that the members live on."""
    named = dict.fromkeys(members.members, RequestedModel())
    return await asyncio.to_thread(members.ask, [request(number) for number in range(count)], named)


GOOD = saying(lambda request: honest(request, "good").wire())
SCORES = tuple(TRUTH.values())


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_an_abstention_by_its_name_and_the_others_score(nats: Server, fault: str) -> None:
    answer, kind = FAULTS[fault]
    async with listening(nats, "good", GOOD), listening(nats, "bad", answer):
        with remote(nats) as members:
            answers = await ask(members, 3)
    assert answers == {"good": [SCORES] * 3, "bad": [Abstention(kind)] * 3}


async def test_an_absent_member_is_detected_before_the_deadline(nats: Server) -> None:
    async with listening(nats, "good", GOOD):
        with remote(nats, deadline_s=60, absence_timeout_s=0.5) as members:
            async with asyncio.timeout(60):
                answers = await ask(members)
    assert answers == {"good": [SCORES], "bad": [Abstention("no_responder")]}


async def test_a_member_that_is_being_started_is_waited_for(nats: Server) -> None:
    with remote(nats, deadline_s=60) as members:
        asking = asyncio.create_task(ask(members))
        as_good = saying(lambda request: honest(request, "bad").wire())
        async with listening(nats, "good", GOOD), listening(nats, "bad", as_good):
            answers = await asking
    assert answers == {"good": [SCORES], "bad": [SCORES]}


async def test_a_flood_of_replies_counts_once_and_drowns_nobody(nats: Server) -> None:
    async with listening(nats, "good", GOOD), listening(nats, "bad", flooding):
        with remote(nats, deadline_s=30) as members:
            answers = await ask(members, 20)
    assert answers == {"good": [SCORES] * 20, "bad": [SCORES] * 20}


async def test_an_answer_that_cannot_be_used_is_asked_for_once_more(nats: Server) -> None:
    attempts = 0

    async def better_the_second_time(bus: Bus, message: Msg, request: ScoreRequest) -> None:
        nonlocal attempts
        attempts += 1
        await bus.publish(message.reply, b"oops" if attempts == 1 else honest(request, "bad").wire())

    async with listening(nats, "bad", better_the_second_time) as requests:
        with remote(nats, ("bad",)) as members:
            assert await ask(members) == {"bad": [SCORES]}
            assert len(requests) == 2

    async with listening(nats, "bad", FAULTS["its_own_failure"][0]) as requests:
        with remote(nats, ("bad",)) as members:
            assert await ask(members) == {"bad": [Abstention("rate_limit")]}
            assert len(requests) == 1, "its own failure is its own business"


async def test_many_groups_are_asked_for_together(nats: Server) -> None:
    """Nobody is answered before all twenty have come: one after another would never end."""
    waiting: list[tuple[Msg, ScoreRequest]] = []

    async def together(bus: Bus, message: Msg, request: ScoreRequest) -> None:
        waiting.append((message, request))
        if len(waiting) == 20:
            for held, of_it in waiting:
                await bus.publish(held.reply, honest(of_it, "good").wire())

    async with listening(nats, "good", together):
        with remote(nats, ("good",), deadline_s=30) as members:
            assert await ask(members, 20) == {"good": [SCORES] * 20}


async def test_a_slow_member_costs_no_more_than_the_deadline(nats: Server) -> None:
    """Two hundred groups to a member that never answers, of which not all are asked at a time."""
    async with listening(nats, "bad", silent):
        with remote(nats, ("bad",), deadline_s=0.5) as members:
            async with asyncio.timeout(60):
                assert await ask(members, 200) == {"bad": [Abstention("deadline")] * 200}


async def test_the_bus_goes_down_and_comes_back(nats: Server) -> None:
    async with listening(nats, "good", GOOD):
        with remote(nats, ("good",)) as members:
            assert await ask(members) == {"good": [SCORES]}
            await nats.kill()
            assert await ask(members) == {"good": [Abstention("bus_down")]}
            await nats.start()
            answered: list[Verdict] = []

            async def again() -> None:
                while SCORES not in answered:
                    answered.extend((await ask(members))["good"])

            await asyncio.wait_for(again(), 60)
    assert all(isinstance(verdict, Abstention) for verdict in answered[:-1])


async def test_what_was_lost_with_the_connection_is_asked_for_again(nats: Server) -> None:
    arrived = asyncio.Event()

    async def second_time(bus: Bus, message: Msg, request: ScoreRequest) -> None:
        if arrived.is_set():
            await GOOD(bus, message, request)
        arrived.set()

    async with listening(nats, "good", second_time):
        with remote(nats, ("good",), deadline_s=60) as members:
            asking = asyncio.create_task(ask(members))
            await arrived.wait()
            await nats.kill()
            await nats.start()
            assert await asking == {"good": [SCORES]}


async def test_a_frozen_server_costs_the_deadline(nats: Server) -> None:
    async with listening(nats, "good", GOOD):
        with remote(nats, ("good",), deadline_s=0.5) as members:
            assert await ask(members) == {"good": [SCORES]}
            nats.freeze(True)
            assert await ask(members) == {"good": [Abstention("deadline")]}
            nats.freeze(False)


async def test_no_server_at_all_is_an_abstention_too(nats: Server) -> None:
    await nats.kill()
    with remote(nats) as members:
        assert await ask(members) == {member: [Abstention("bus_down")] for member in MEMBERS}
    await nats.start()


async def test_a_group_too_large_for_the_bus_is_not_sent(nats: Server) -> None:
    with remote(nats, ("good",)) as members:
        big = request().model_copy(update={"prompt": "p" * 2_000_000})
        assert await asyncio.to_thread(members.ask, [big], {"good": RequestedModel()}) == {
            "good": [Abstention("too_large")]
        }


async def test_a_member_may_not_listen_to_anothers_groups(nats: Server) -> None:
    """The server's permissions: answering for another would need its requests' inboxes."""
    messages: list[Msg] = []

    async def listen(message: Msg) -> None:
        messages.append(message)

    async with Bus.connect(nats.url, Credentials.load(nats.creds("bad"))) as spy, listening(nats, "good", GOOD):
        await spy.subscribe(names.reward("good"), listen)
        await spy.flush()
        with remote(nats, ("good",)) as members:
            assert await ask(members) == {"good": [SCORES]}
        await spy.flush()
        assert not messages and any("ermission" in problem for problem in spy.errors)


async def test_a_probe_brings_what_the_members_process_says_of_a_model(nats: Server) -> None:
    model = JudgeSpec(provider="deepseek", model="chat")
    replies = {
        "good": ProbeReply(member="good", judge=model.identity),
        "bad": ProbeReply(member="bad", judge=model.identity, failure="auth", detail="HTTP 401"),
    }
    async with contextlib.AsyncExitStack() as around:
        for member in MEMBERS:
            bus = await around.enter_async_context(Bus.connect(nats.url, Credentials.load(nats.creds(member))))

            async def hear(message: Msg, bus: Bus = bus, member: str = member) -> None:
                assert ProbeRequest.model_validate_json(message.data).judge == model
                await bus.publish(message.reply, replies[member].wire())

            await bus.subscribe(names.probe(member), hear)
            await bus.flush()
        with remote(nats) as members:
            probes = {member: asyncio.wrap_future(members.probe(member, model)) for member in MEMBERS}
            assert await probes["good"] == ""
            assert await probes["bad"] == "deepseek/chat returned no verdict: auth, HTTP 401"
            replies["good"] = ProbeReply(member="bad", judge=model.identity)
            report = await asyncio.wrap_future(members.probe("good", model))
            assert report == "the process of good answered as bad with the model deepseek/chat"
    with remote(nats) as members:
        assert "the process of good does not listen" in await asyncio.wrap_future(members.probe("good", model))


async def test_a_closed_client_can_ask_again(nats: Server) -> None:
    """A second `train()`. The judge answers a second question when it has heard it, and nobody asks it twice."""
    async with listening(nats, "good", GOOD) as good, listening(nats, "bad", silent) as bad:
        with remote(nats, deadline_s=0.5) as members:
            for train in range(1, 3):
                assert await ask(members, 2) == {"good": [SCORES] * 2, "bad": [Abstention("deadline")] * 2}
                assert (len(good), len(bad)) == (2 * train, 2 * train)
                members.close()
