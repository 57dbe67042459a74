"""What an agent with a valid key of its own may try, through nats-py itself or a bare socket, in the middle of a run.

The run is a real one; what learner, mesh and the other agent accept must be what they accept without the attack. An
agent that joins has a vote, and may use it badly: docs/security.md says what that comes to. This one has not joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.support.attack import (
    ALLOWED,
    DECISION,
    FORGED,
    LOG,
    PROTECTED,
    VOTE,
    VOTES,
    Witness,
    attacked,
    plain,
    unchanged,
)
from tests.support.honest_run import HOSTILE, ON, RUN, TICKS, HonestRun, Hostile, Played, running
from tests.support.learner_side import until

from oven_core.bus.streams import MAX_VOTES, VOTE_BYTES, VOTES_AGE_S
from oven_core.protocol.alerts import Alert
from oven_core.protocol.committee_requests import ScoreReply
from oven_core.protocol.graph_requests import DiagnoseRequest, GraphInfoRequest
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest
from oven_core.protocol.messages import AgentStatus, Observation, Vote

# nats-py's micro service asks for utcnow, which Python 3.12 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")

__all__ = ["plain"]  # a fixture


async def test_1_an_acknowledgement_of_its_own_vote_on_a_decisions_subject(tmp_path: Path, plain: Played) -> None:
    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        for subject in ALLOWED:
            for reply in PROTECTED:
                await evil.say(subject, VOTE, reply=reply)
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
        assert played.report.counters["refused.not_joined"] > 0, "its votes did arrive"


ELSEWHERE = [
    f"$JS.API.DIRECT.GET.{VOTES}",  # 2: a stored forgery, read out to a decision's subject
    f"$JS.API.DIRECT.GET.{VOTES}.{ON.vote(HOSTILE)}",
    f"$JS.API.STREAM.MSG.GET.{VOTES}",
    f"$JS.API.STREAM.MSG.GET.{LOG}",
    f"$JS.API.CONSUMER.MSG.NEXT.{LOG}.pull",  # 3
    f"$JS.API.CONSUMER.CREATE.{VOTES}",  # 4
    f"$JS.API.CONSUMER.CREATE.{LOG}.push.{ON.vote(HOSTILE)}",
    f"$JS.API.CONSUMER.DURABLE.CREATE.{LOG}.push",
    f"$JS.API.STREAM.DELETE.{LOG}",
    f"$JS.API.STREAM.PURGE.{LOG}",
    f"$JS.API.STREAM.UPDATE.{LOG}",
    f"$JS.API.STREAM.MSG.DELETE.{LOG}",
    f"$JS.API.STREAM.SNAPSHOT.{LOG}",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.ACCOUNT.PURGE.$G",
    "$JS.ACK.OVEN-r.push.1.1.1.1.1",
    "$JS.FC.OVEN-r.push.x",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.X.RELOAD",
    "$SYS.ACCOUNT.$G.CONNECT",
    "$SRV.PING",
    "$SRV.INFO.oven-kg",
    "_INBOX_.learner.x",
    "_INBOX_.learner.score.x",
    "_INBOX_.steady.x",
    "_R_.x",
    ">",
    "oven.>",
    *PROTECTED,
]


def _refused(evil: Hostile, times: int) -> bool:
    return evil.refusals.total() == times


async def test_2_3_4_an_agent_publishes_only_on_its_own_subjects(tmp_path: Path) -> None:
    """Every body goes with a protected reply subject: wherever it were answered, the answer would be a forgery."""
    witness = Witness()
    request = {"deliver_subject": DECISION, "last_by_subj": ON.vote(HOSTILE), "batch": 1, "name": "MINE"}
    async with running(tmp_path) as run, run.bus() as admin, run.hostile() as evil:
        await admin.subscribe(ON.all, witness.hear)
        await admin.flush()
        await evil.say(ON.vote(HOSTILE), FORGED)  # what a direct get would find
        for subject in ELSEWHERE:
            before = evil.refusals.total()
            for data in (json.dumps(request).encode(), FORGED, b""):
                for reply in (DECISION, "_INBOX_.learner.x", ""):
                    await evil.say(subject, data, reply=reply)
            await evil.settled()
            # The server refuses in order; the client hands the refusals on in tasks of their own.
            await until(partial(_refused, evil, before + 9))
        await admin.flush()
    del witness.received[ON.run]  # the learner's own
    assert not witness.received


async def test_5_history_replies_never_go_to_a_protected_subject(tmp_path: Path, plain: Played) -> None:
    """Nor into the inboxes of the learner's or the mesh's acknowledgements, which every agent sees."""
    seen: list[str] = []

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step == 1:

            async def hear(message: Msg) -> None:
                seen.append(message.reply)

            for subject in (ON.observation, ON.decision("*"), ON.ballot("*"), ON.receipt):
                await evil.client.subscribe(subject, cb=hear)
        for reply in (*PROTECTED, *seen[-4:], *(f"{reply[:-4]}0000" for reply in seen[-4:])):
            await evil.say(ON.history, HistoryRequest(limit=4).wire(), reply=reply)
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
    assert any(reply.startswith("_INBOX_.learner.") for reply in seen), "it saw none, so it tried none"


async def test_history_reaches_its_asker_and_none_of_the_stack(tmp_path: Path) -> None:
    async with running(tmp_path) as run, run.hostile() as evil, run.bus() as admin:
        subjects: list[str] = []

        async def hear(message: Msg) -> None:
            subjects.append(message.subject)

        await admin.subscribe("_INBOX_.>", hear)
        await admin.flush()
        request = HistoryRequest(limit=4).wire()
        for name in ("learner", "mesh", "history"):
            await evil.say(ON.history, request, reply=f"_INBOX_.{name}.x")
            await evil.say(ON.history, request, reply=f"_INBOX_.{name}.x.y")
        # The service answers in order: after this one all others were dealt with.
        answer = await evil.client.request(ON.history, request, timeout=60)
        assert HistoryBatch.model_validate_json(answer.data).events
        await admin.flush()
        own = {f"_INBOX_.{name}.{rest}" for name in ("learner", "mesh", "history") for rest in ("x", "x.y")}
        assert not own.intersection(subjects)


async def test_6_a_micro_service_replies_only_to_inboxes(tmp_path: Path, plain: Played) -> None:
    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        for reply in (*PROTECTED, "_INBOX_.learner.x", "_INBOX_.mesh.x"):
            await evil.say("oven.kg.info", GraphInfoRequest().wire(), reply=reply)
            await evil.say("oven.kg.info", b"no request", reply=reply)
            await evil.say("oven.kg.diagnose", DiagnoseRequest.model_construct(symptoms=()).wire(), reply=reply)
        await evil.settled()
        if step == TICKS:
            answer = await evil.client.request("oven.kg.info", GraphInfoRequest().wire(), timeout=60)
            assert b"GraphInfo" in answer.data, "it answers those who may ask"

    async with attacked(tmp_path, attack, kg=True) as (played, _, _):
        unchanged(played, plain)


async def test_7_no_message_of_anybodys_is_suppressed_by_its_id(tmp_path: Path, plain: Played) -> None:
    """The log takes in the votes with their headers, and remembers the ids in them as its own."""
    seen: list[str] = []

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step == 1:

            async def hear(message: Msg) -> None:
                seen.append((message.headers or {}).get("Nats-Msg-Id", ""))

            await evil.client.subscribe(ON.observation, cb=hear)
        guessed = [f"1-{n}" for n in range(step, step + 4)]
        guessed += [f"{n:012d}-00" for n in range(4 * step, 4 * step + 12)]
        guessed += [f"1-{n}-{seen[-1].rpartition('-')[2]}" for n in range(step, step + 4) if seen]
        guessed += [f"steady-{step}", *seen[-1:]]
        for message_id in filter(None, guessed):
            await evil.say(ON.vote(HOSTILE), VOTE, Nats_Msg_Id=message_id)
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
        ticks = [event.body.tick for event in played.events if isinstance(event.body, Observation)]
        assert ticks == list(range(1, TICKS + 1)), "an observation was taken for a repeat"
    assert any(seen), "it saw no id, so it tried none of them"


async def test_listening_where_it_does_not_belong(tmp_path: Path, plain: Played) -> None:
    subjects: list[str] = []
    wanted = [">", "oven.>", f"{ON.base}.>", ON.vote("*"), ON.vote("steady"), ON.operator("*"), ON.history]
    wanted += ["_INBOX_.>", "_INBOX_.learner.>", "_INBOX_.steady.>", "_INBOX_.*.*", "$SYS.>", "$JS.>", "$SRV.>"]
    wanted += ["oven.reward.*", "oven.kg.*", ON.answer("*"), ON.step("*")]

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step > 1:
            return

        async def hear(message: Msg) -> None:
            subjects.append(message.subject)

        for subject in wanted:
            await evil.client.subscribe(subject, cb=hear)
            await evil.client.subscribe(subject, queue="kg", cb=hear)
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, evil, _):
        unchanged(played, plain)
        await until(lambda: evil.refusals.total() == 2 * len(wanted))
    assert not subjects


HEADERS = [
    {"Nats-Expected-Stream": VOTES},
    {"Nats-Expected-Stream": LOG},
    {"Nats-Expected-Last-Sequence": "0"},
    {"Nats-Expected-Last-Subject-Sequence": "0"},
    {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": DECISION},
    {"Nats-Expected-Last-Msg-Id": "x"},
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-TTL": "never"},
    {"Nats-Marker-Reason": "Purge"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "9999999"},
    {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": DECISION},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": DECISION, "Nats-Schedule-TTL": "1m"},
    {"Nats-Incr": "+1"},
    {"Nats-Trace-Dest": DECISION},
    {"Nats-Trace-Dest": "_INBOX_.learner.x", "Nats-Trace-Only": "true"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"traceparent": "x" * 4000},
    {"Nats-Stream-Source": f"{VOTES} 999999999 > > {DECISION}"},
    {"Nats-Subject": DECISION, "Nats-Sequence": "1", "Nats-Stream": LOG},
    {"Nats-Required-Api-Level": "99"},
    {"Nats-Msg-Id": "x" * 4000},
    {"Status": "503", "Description": "No Responders"},
    {"Nats-Service-Error": "no", "Nats-Service-Error-Code": "500"},
    {"Oven-Signature": "x" * 4000},
    {"big": "x" * (VOTE_BYTES - 1000)},
    {"big": "x" * (VOTE_BYTES + 1000)},
    {"big": "x" * 900_000},
    {f"h{n}": "x" for n in range(1500)},
]


async def test_headers_that_mean_something_to_a_server(tmp_path: Path, plain: Played) -> None:
    """The other agent's votes must not wait behind one that the log cannot take in."""

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        for headers in HEADERS[step - 1 :: TICKS]:
            for subject in ALLOWED:
                for reply in (DECISION, ""):
                    await evil.client.publish(subject, VOTE, reply=reply, headers=dict(headers))
            await evil.client.publish(ON.history, HistoryRequest(limit=1).wire(), headers=dict(headers))
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)


async def test_floods_of_statuses_votes_and_alerts(tmp_path: Path, plain: Played) -> None:
    """Without joining: done, left, cannot fire; thousands of knobs that nobody has; rationales as long as they get; an
    alert of another symptom each time."""

    async def one_of_each(run: HonestRun, evil: Hostile) -> None:
        """Until they are in the log. Of a flood the server keeps some for a second, which may be too short for any."""
        alert = Alert(state="raised", symptom="s", metric="m", value=1.0, expected=0.0, tick=1)
        messages = [
            (ON.vote(HOSTILE), VOTE),
            (ON.agent(HOSTILE), AgentStatus(state="done").wire()),
            (ON.agent(HOSTILE), b"x"),
            (ON.alert(HOSTILE), alert.wire()),
        ]
        async with run.bus() as admin:
            async with contextlib.aclosing(admin.read(RUN, subjects=[ON.run])) as log:
                await asyncio.wait_for(anext(log), 60)  # a vote before the run has begun counts as another thing
            for subject, data in messages:
                await evil.say(subject, data)
            async with contextlib.aclosing(admin.read(RUN, subjects=[*ALLOWED])) as log:
                for _ in messages:
                    await asyncio.wait_for(anext(log), 60)

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        if step == 1:
            await one_of_each(run, evil)
        for n in range(100):
            knob = f"knob.{step}.{n}" + "x" * (n * 20)
            long = Vote(actuator=knob, stance="propose", value=1e300, tick=0, confidence=1, rationale="é" * 2000)
            await evil.say(ON.vote(HOSTILE), long.wire())
            state: Any = ("done", "left", "cannot_fire")[n % 3]
            await evil.say(ON.agent(HOSTILE), AgentStatus(state=state, tick=2**62, seen="~" * 9000).wire())
            await evil.say(ON.vote(HOSTILE), b"x" * 20_000)
            await evil.say(ON.agent(HOSTILE), b"\xff\x00")
            alert: Any = {"symptom": f"s{step}.{n}", "metric": "m", "value": 1.0, "expected": 0.0, "reason": "é" * 500}
            await evil.say(ON.alert(HOSTILE), Alert(state="raised", tick=2**62, **alert).wire())
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, _, _):
        unchanged(played, plain)
        took = played.events[-1].time - played.events[0].time
        most = MAX_VOTES * (took.total_seconds() / VOTES_AGE_S + 2)  # 2: one window before, and the one under way
        let_in = Counter(event.subject for event in played.events)
        for subject in (ON.vote(HOSTILE), ON.agent(HOSTILE), ON.alert(HOSTILE)):
            assert 0 < let_in[subject] <= most, (subject, let_in[subject], most)
        counted = played.report.counters
        wanted = ("refused.not_joined", "agent.not_joined", "malformed.agent")
        assert [name for name in wanted if not counted[name]] == [], counted


async def test_scores_that_were_not_requested_are_refused(tmp_path: Path, plain: Played) -> None:
    reply = ScoreReply(member="judge", group="g", scores={"a": 1.0}).wire()

    async def attack(run: HonestRun, evil: Hostile, step: int) -> None:
        async with run.bus("judge") as member:  # not an agent: a remote judge, who may answer groups and nothing else
            for subject in ("_INBOX_.learner.score.x", "_INBOX_.learner.x", "_INBOX_.learner.x.y", "_INBOX_.mesh.x"):
                await evil.say(subject, reply)
                await member.publish(subject, FORGED)
            await member.publish(DECISION, FORGED)
            await member.publish(ON.vote("judge"), VOTE)
            await member.flush()
        await evil.settled()

    async with attacked(tmp_path, attack) as (played, evil, _):
        unchanged(played, plain)
        await until(lambda: evil.refusals.total() == 4 * TICKS)
