"""Sampled completions over a real server: from the training thread to whoever may read them, and never to the log."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import RUN, learner_on, off_loop, serving

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import read_batch
from oven_core.errors import BusError
from oven_core.protocol.completion_messages import CompletionsBatch, CompletionsRequest, StoredGroup
from oven_core.protocol.messages import Observation, RunEnded
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_completions
from oven_core.security.credentials import Credentials
from oven_learner.completions.sample_message import MemberVerdict, Sample
from oven_learner.completions.sampling import SampleNumbers, Sampling, choose_sampling
from oven_learner.link.process_link import ProcessLink
from oven_learner.link.sample_queue import MAX_WAITING

ON = Subjects(RUN)


def sampling(**options: Any) -> Sampling:
    redact = options.pop("redact", None)
    made = choose_sampling(None, {"every": 1, **options}, redact)
    assert made is not None
    return made


def sample(made: Sampling, tick: int, *texts: str) -> Any:
    made.sample_count += 1
    count = len(texts)
    members = [MemberVerdict("exact", 1.0, [None, *[0.5] * (count - 1)][:count])]
    rewards = [float("nan"), *[0.5] * (count - 1)][:count]
    sample = Sample(f"prompt {tick} \ud800\x1b[2J", texts, rewards, members)
    numbers = SampleNumbers(made.sample_count, tick, tick, group=0, groups=1)
    return partial(made.convert, lambda: {"incarnation": 1}, numbers, [0.0] * count, lambda: sample)


async def arrived(bus: Bus, last: int) -> list[StoredGroup]:
    """What is kept, once the learner's sample of this number is."""
    async with asyncio.timeout(60):
        while True:
            batch = await read_batch(bus, RUN, 0, 256)
            if batch.groups and batch.groups[-1].group.number == last:
                return list(batch.groups)
            await asyncio.sleep(0.02)


async def test_samples_reach_readers_and_never_the_log(tmp_path: Path) -> None:
    async with serving(tmp_path, agents=("scout",)) as server, server.bus() as admin:
        link = ProcessLink(server.url, RUN, Credentials.load(server.creds("learner")))
        learner, made = learner_on(link), sampling()
        await off_loop(learner.start)
        assert not (await read_batch(admin, RUN, 0, 10)).has_stream
        learner.show(sample(made, 1, "perhaps lost"))  # nothing keeps it yet, which harms nothing
        assert await streams.create_completions(admin.jetstream, RUN) == ""
        assert await streams.create_completions(admin.jetstream, RUN) == ""  # a second time
        big = "a" * 1_000_000
        for tick in range(2, 5):
            learner.observe(tick, {"loss": 1.0})
            learner.show(sample(made, tick, big, "\x00" * 50_000, *["x"] * 20))
        last = (await arrived(admin, 4))[-1]
        assert [completion.cut for completion in last.group.completions[:2]] == [996_000, 46_000]
        assert (last.group.left_out, len(last.group.completions)) == (6, 16)
        assert last.group.completions[0].reward is None and last.group.completions[0].advantage is None
        assert last.group.prompt.text == "prompt 4 ?\x1b[2J"

        learner.show(sample(made, 5))  # a group without completions
        assert (await arrived(admin, 5))[-1].group.completions == ()

        # Readers ask the mesh's side; an agent may neither ask nor listen until its key says so.
        async with server.bus("history") as history:
            await serve_completions(history, RUN)
            request = CompletionsRequest(limit=2)
            answer = CompletionsBatch.model_validate_json(await admin.request(ON.stored_completions, request.wire()))
            assert [stored_group.group.number for stored_group in answer.groups] == [4, 5] and answer.has_stream
            behind = CompletionsRequest(after=answer.groups[0].seq)
            rest = CompletionsBatch.model_validate_json(await admin.request(ON.stored_completions, behind.wire()))
            assert [stored_group.group.number for stored_group in rest.groups] == [5]
            for refused in (b"", b"{}x", CompletionsRequest(limit=1).wire().replace(b'"limit":1', b'"limit":9999')):
                with pytest.raises(BusError, match="no answer"):
                    await admin.request(ON.stored_completions, refused, 0.3)
            async with server.bus("scout") as scout:
                received: list[bytes] = []
                await scout.subscribe_inline(ON.completions, lambda message: received.append(message.data))
                with pytest.raises(BusError):
                    await scout.request(ON.stored_completions, request.wire(), 0.5)
                learner.show(sample(made, 6, "secret"))
                await arrived(admin, 6)
                await scout.flush()
                assert received == [] and any("completions" in error.lower() for error in scout.errors)

        assert await off_loop(learner.close, "completed")
        bodies = await server.bodies()
        assert [body.tick for body in bodies if isinstance(body, Observation)] == [1, 2, 3]
        assert isinstance(bodies[-1], RunEnded) and bodies[-1].dropped_observations == 0
        assert all("prompt" not in body.wire().decode() for body in bodies)


async def test_an_outage_or_a_hanging_redaction_does_not_block_training(tmp_path: Path) -> None:
    """What waits is bounded, the oldest go, and no message of the log waits for any of it."""
    hangs, free = threading.Event(), threading.Event()

    def redact(text: str) -> str:
        if "hang" in text:
            hangs.set()
            free.wait(60)
        if "raise" in text:
            raise RuntimeError(text)
        return text.replace("secret", "■")

    async with serving(tmp_path) as server:
        async with server.bus() as admin:
            await streams.create_completions(admin.jetstream, RUN)
        link = ProcessLink(server.url, RUN, Credentials.load(server.creds("learner")))
        learner, made = learner_on(link), sampling(redact=redact)
        await off_loop(learner.start)
        learner.show(sample(made, 1, "hang"))
        await off_loop(hangs.wait, 60)
        for tick in range(1, 4):
            learner.observe(tick, {"loss": 1.0})
        await server.logged(lambda event: isinstance(event.body, Observation) and event.body.tick == 3)
        free.set()
        learner.show(sample(made, 2, "raise"))
        learner.show(sample(made, 3, "a secret"))
        async with server.bus() as admin:
            arrivals = await arrived(admin, 3)
        assert [stored_group.group.number for stored_group in arrivals] == [1, 3] and arrivals[-1].group.completions[
            0
        ].text == "a ■"
        assert arrivals[-1].group.redacted

        await server.kill()
        for tick in range(4, 4 + 5 * MAX_WAITING):
            learner.show(sample(made, tick, "away"))
            learner.observe(tick, {"loss": 1.0})
            await asyncio.sleep(0)
        last = 3 + 5 * MAX_WAITING
        await server.start()
        async with server.bus() as admin:
            arrivals = await arrived(admin, last)
        assert len(arrivals) <= 2 + 3 * MAX_WAITING
        await server.logged(lambda event: isinstance(event.body, Observation) and event.body.step == last)
        assert await off_loop(partial(learner.close, timeout_s=30), "completed")
        ticks = [body.tick for body in await server.bodies() if isinstance(body, Observation)]
        assert ticks == list(range(1, last + 1))
