"""One step is one trace, over the real server; and the log holds the same bytes whether anybody traces or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.learner_side import RUN, Server, polled, serving, until
from tests.support.link_on_loop import LinkOnLoop

from oven_agents import Agent, Window
from oven_agents.runtime.agent_host import host
from oven_agents.sdk.agent_session import Session
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    MetricSpec,
    Vote,
)
from oven_core.protocol.names import log_stream
from oven_core.protocol.rules import Rules
from oven_core.replica.replica_process import serve, serve_history
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient

CANARY = "sk-canary-3141592653"


class Proposer(Agent):
    """Says once that the rate should double."""

    needs = ("loss",)
    moves = ("rate",)

    def vote(self, window: Window) -> Vote | None:
        if window.tick != 1:
            return None
        return window.propose("rate", 2.0, confidence=0.9, why=f"because {CANARY}", target="loss")


class Answerer(Agent):
    needs = ("loss",)
    moves = ("rate",)

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> Vote:
        return window.answer(ballot, "for", confidence=0.6, why=CANARY)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, agents=("proposer", "answerer")) as server:
        yield server


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    exporter = InMemorySpanExporter()
    tracing.start("test", RUN, exporter)
    yield exporter
    tracing.shutdown()


def is_on(subject: str, event: Event) -> bool:
    return event.subject == subject


@contextlib.asynccontextmanager
async def mesh_and_agents(nats: Server, agents: Sequence[Agent]) -> AsyncIterator[None]:
    async with nats.bus("mesh") as mesh, nats.bus("history") as history:
        await serve_history(history, RUN)
        sessions = [Session(agent, type(agent).__name__.lower()) for agent in agents]
        tasks = [asyncio.create_task(serve(mesh, RUN))]
        for session in sessions:
            key = Credentials.load(nats.creds(session.name))
            tasks.append(asyncio.create_task(host([session], nats.url, RUN, key)))
        try:
            for session in sessions:
                await nats.logged(partial(is_on, f"oven.{RUN}.agent.{session.name}"))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def one_decision(nats: Server, *agents: Agent) -> None:
    """A run of one tick, after which the rate is doubled."""
    rate = [1.0]
    actuators = Actuators()
    actuators.scalar("rate", lambda: rate[0], lambda value: rate.__setitem__(0, value), low=0.1, high=10)
    link = LinkOnLoop(nats.url, RUN, Credentials.load(nats.creds("learner")))
    rules = Rules(autonomy="auto", newcomers="full", evidence_kinds=1)
    learner = OvenClient(link, actuators, max_steps=1000, rules=rules, metrics=(MetricSpec(name="loss"),))
    async with mesh_and_agents(nats, agents):
        await asyncio.to_thread(learner.start)
        async with asyncio.timeout(60), nats.bus() as bus:
            joined = 0
            async for event in bus.read(RUN):  # before the run began, and after
                joined += isinstance(event.body, AgentStatus) and event.body.state == "joined"
                if joined == 2 * len(agents):
                    break
        learner.observe(1, {"loss": 1.0})
        await nats.logged(lambda event: isinstance(event.body, Decision))
        await until(lambda: polled(learner) and rate[0] == 2.0)
        assert await asyncio.to_thread(learner.close, "completed")


def named(spans: list[ReadableSpan], name: str, **attributes: object) -> ReadableSpan:
    wanted = {f"oven.{key}": value for key, value in attributes.items()}
    matching_spans = [s for s in spans if s.name == name and wanted.items() <= dict(s.attributes or {}).items()]
    assert len(matching_spans) == 1, (name, wanted, [(s.name, s.attributes) for s in spans])
    return matching_spans[0]


async def test_one_step_is_one_trace(nats: Server, spans: InMemorySpanExporter) -> None:
    await one_decision(nats, Proposer(), Answerer())
    tracing.flush(limit_s=60)
    made = list(spans.get_finished_spans())
    (decision,) = [body for body in await nats.bodies() if isinstance(body, Decision)]
    assert decision.verdict == "adopted"

    observe = named(made, "observe", tick=1)
    proposal = named(made, "vote", agent="proposer", stance="propose", tick=1, actuator="rate")
    answer = named(made, "vote", agent="answerer", stance="for", actuator="rate")
    tally = named(made, "tally", decision_id=decision.id, verdict="adopted", actuator="rate", ballot_id=decision.ballot)
    apply = named(made, "apply", decision_id=decision.id, verdict="adopted", actuator="rate", status="applied")

    trace = observe.context.trace_id
    assert {span.context.trace_id for span in made} == {trace}, "everything that was spoken of is this one step"
    assert observe.parent is None
    for span, parent in ((proposal, observe), (answer, proposal), (tally, proposal), (apply, tally)):
        assert span.parent is not None and span.parent.span_id == parent.context.span_id, span.name
    began = [span.start_time or 0 for span in (observe, proposal, tally, apply)]
    assert began == sorted(began) and all((span.end_time or 0) >= (span.start_time or 0) > 0 for span in made)
    assert not [span.name for span in made if CANARY in span.to_json()], "what agents say stays in the log"

    # And the log's own headers show it, the votes' too, which came through another stream.
    headers: dict[str, str] = {}
    async with nats.bus() as bus:
        for seq in range(1, await bus.head(RUN) + 1):
            message = await bus.jetstream.get_msg(log_stream(RUN), seq)
            if context := (message.headers or {}).get("traceparent"):
                headers[str(message.subject)] = context
    carried = {subject: context.split("-")[1:3] for subject, context in headers.items()}

    def its(span: ReadableSpan) -> list[str]:
        return [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]

    assert carried == {
        f"oven.{RUN}.observation": its(observe),
        f"oven.{RUN}.vote.proposer": its(proposal),
        f"oven.{RUN}.ballot.{decision.ballot}": its(proposal),
        f"oven.{RUN}.vote.answerer": its(answer),
        f"oven.{RUN}.decision.{decision.id}": its(tally),
        f"oven.{RUN}.receipt": its(apply),
    }


def messages_of(events: list[Event]) -> list[tuple[str, bytes]]:
    """All but signs of life, whose number and place are a matter of timing."""
    return sorted((event.subject, event.data) for event in events if not isinstance(event.body, AgentStatus))


async def test_the_log_holds_the_same_bytes_with_traces_and_without(
    nats: Server, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    await one_decision(nats, Proposer())
    traced = messages_of(await nats.events())
    tracing.flush(limit_s=60)
    assert spans.get_finished_spans()
    tracing.shutdown()
    (tmp_path / "other").mkdir()
    async with serving(tmp_path / "other", agents=("proposer", "answerer")) as again:
        await one_decision(again, Proposer())
        untraced = messages_of(await again.events())
        async with again.bus() as bus:
            for seq in range(1, await bus.head(RUN) + 1):
                message = await bus.jetstream.get_msg(log_stream(RUN), seq)
                assert "traceparent" not in (message.headers or {})
    assert traced == untraced
    assert [subject.split(".")[2] for subject, _ in traced] == [
        "ballot", "decision", "observation", "receipt", "run", "run", "vote"
    ]  # fmt: skip
