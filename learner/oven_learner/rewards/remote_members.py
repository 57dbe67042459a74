"""Remote members: each group is asked for over the bus, and every wait ends at the deadline.

Its own thread with an asyncio loop and a connection apart from the log's. Each request has its own inbox
that no one can guess, and that the server closes after one message: a member can neither answer for another nor flood.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import OvenError, reason
from oven_core.protocol import names
from oven_core.protocol.committee_requests import JudgeHealth, ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.permissions import score_inbox
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.rewards import scores
from oven_learner.rewards.live_judges import Named
from oven_learner.rewards.scores import Abstention, Cost, Verdict, checked, own_kind

log = logging.getLogger("oven.learner")

IN_FLIGHT = 64
"""Requests that one member has at a time."""
RECONNECT_S = 2.0
"""How long a lost connection is waited for before the members abstain: a server that restarts takes less."""
ABSENT_S = 10.0
"""How long a member that no one answers for is waited for, once: one that is started again takes less. Until it has
answered it is not waited for again."""
JOIN_S = 30.0
"""How long the process of a member that is added is waited for: it imports an SDK on a machine that trains."""
LOOK_S = 0.25
"""Between two questions to a member that no one answers for."""
GRACE_S = 2.0
"""Beyond the deadline, for a loop that does not come back at all."""
RETRIED = (scores.MALFORMED, scores.WRONG_IDS, scores.OUT_OF_RANGE)
"""An answer that cannot be used is asked for once more; a member's own failure is not, since it tried already."""


class RemoteMembers:
    """The members that listen on `oven.reward.<member>`. Connects when it is first asked."""

    def __init__(
        self,
        members: Sequence[str],
        url: str,
        credentials: Credentials | None,
        *,
        deadline_s: float = 20.0,
        absent_s: float = ABSENT_S,
        judges: Mapping[str, JudgeSpec] | None = None,
    ) -> None:
        """`judges`: member → the model that it was configured with, where that is known."""
        self.members = tuple(members)
        self.judges = dict(judges or {})
        self.deadline_s = deadline_s
        self._absent_s = absent_s
        self._subjects = {member: names.reward(member) for member in members}
        self._url, self._credentials = url, credentials
        self._inbox = score_inbox(credentials.name if credentials else "learner")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bus: Bus | None = None
        self._losses = 0
        self._lost = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._absent: set[str] = set()
        self.faults: Counter[str] = Counter()
        """Kind → answers that could not be used, those included that a second one made good."""
        self.health: dict[str, JudgeHealth] = {}
        """Member → what it last said of its judge."""
        self._reasons: dict[tuple[str, str], dict[str, str]] = {}
        self._cost = Cost()
        self._counting = threading.Lock()

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> dict[str, list[Verdict]]:
        """The verdict of each of `members`, by the model that is named, on every request, with the scores in the order
        of its completions.

        All at once, and back by `deadline_s`. Never raises: what went wrong is an abstention. Several threads may ask
        at a time.
        """
        limit = time.monotonic() + self.deadline_s
        found = {member: [Abstention(scores.DEADLINE)] * len(requests) for member in members}
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(requests, members, limit, found), self._running())
        try:
            asking.result(timeout=self.deadline_s + GRACE_S)
        except Exception as error:
            asking.cancel()
            log.warning("asking the committee's remote members failed: %s", reason(error))
        return {member: [*given] for member, given in found.items()}

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Begin to ask a model a question, in the member's process, within `deadline_s`: empty if it gave a verdict,
        else why not. Requests for scores continue meanwhile. A process that `joins` is waited for
        first, for JOIN_S."""
        return asyncio.run_coroutine_threadsafe(self._probe(member, model, joins), self._running())

    def join(self, member: str) -> None:
        """Have another member."""
        self._subjects[member] = names.reward(member)
        self.members = (*self.members, member)

    def leave(self, member: str) -> None:
        """Let a member go."""
        self.members = tuple(name for name in self.members if name != member)

    def take_reasons(self, member: str, group: str) -> dict[str, str]:
        """Completion id → why the member scored it so; told once. Empty where it gave none."""
        return self._reasons.pop((member, group), {})

    def take_cost(self) -> Cost:
        """What the answers cost that came since this was called last, abstentions among them."""
        with self._counting:
            cost, self._cost = self._cost, Cost()
        return cost

    def close(self) -> None:
        """Let the connection and the thread go. The next `ask` makes new ones."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(timeout=3)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=3)
        if not thread.is_alive():
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            return self._loop or self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        # An event that was awaited on another loop raises at once, which reads as a lost connection.
        self._lost, self._connecting = asyncio.Event(), asyncio.Lock()
        self._thread = threading.Thread(target=loop.run_forever, name="oven-rewards", daemon=True)
        self._thread.start()
        return loop

    async def _disconnect(self) -> None:
        if self._bus is not None:
            bus, self._bus = self._bus, None
            await bus.close()

    async def _probe(self, member: str, model: JudgeSpec, joins: bool) -> str:
        bus = await self._connected(time.monotonic() + RECONNECT_S)
        if bus is None:
            return "there is no connection to the bus"
        patience = time.monotonic() + JOIN_S
        while joins and time.monotonic() < patience and not await bus.has_listener(names.reward(member)):
            await asyncio.sleep(LOOK_S)
        left = self.deadline_s
        question = ProbeRequest(judge=model, deadline_s=left)
        message = await self._answer(bus, names.probe(member), question.wire(), left)
        if message is None:
            return "the connection to the bus was lost meanwhile"
        if isinstance(message, Abstention):
            return f"no answer from the process of {member} within {self.deadline_s:g} s"
        if (message.headers or {}).get("Status") == "503":
            return f"the process of {member} does not listen; `oven-controller status` shows whether it runs"
        try:
            reply = ProbeReply.model_validate_json(message.data, strict=True)
        except ValidationError:
            return f"the process of {member} gave an answer that is not a ProbeReply"
        if (reply.member, reply.judge) != (member, model.identity):
            return f"the process of {member} answered for {reply.member} and {reply.judge}"
        if reply.failure:
            return f"{model.identity} gave no verdict: {reply.failure}{f', {reply.detail}' if reply.detail else ''}"
        return ""

    async def _ask_all(
        self,
        requests: Sequence[ScoreRequest],
        named: Mapping[str, Named],
        limit: float,
        found: dict[str, list[Abstention]],
    ) -> None:
        bus = await self._connected(min(limit, time.monotonic() + RECONNECT_S))
        into: dict[str, list[Verdict]] = found  # type: ignore[assignment]
        if bus is None:
            for member in into:
                into[member][:] = [Abstention(scores.BUS_DOWN)] * len(requests)
            self.faults[scores.BUS_DOWN] += len(into) * len(requests)
            return
        room = {member: asyncio.Semaphore(IN_FLIGHT) for member in into}
        asked = {
            member: [one.model_copy(update={"judge": of.judge, "swap": of.swap}) for one in requests]
            for member, of in named.items()
        }

        async def put(member: str, index: int) -> None:
            try:
                async with room[member]:
                    into[member][index] = await self._verdict(bus, member, asked[member][index], limit)
            except asyncio.CancelledError:
                self.faults[scores.DEADLINE] += 1
                raise

        tasks = [asyncio.create_task(put(member, i)) for i in range(len(requests)) for member in into]
        await asyncio.wait(tasks, timeout=max(0.0, limit - time.monotonic()))
        await end(*tasks)

    def _changed(self) -> None:
        """Something happened to the connection. Who waits for an answer has to know when it was lost."""
        if self._bus is not None and self._bus.losses != self._losses:
            self._losses = self._bus.losses
            self._lost.set()
            self._lost = asyncio.Event()

    async def _connected(self, limit: float) -> Bus | None:
        async with self._connecting:  # a probe and the committee's requests may come at the same time
            return await self._connection(limit)

    async def _connection(self, limit: float) -> Bus | None:
        while self._bus is None or not self._bus.client.is_connected:
            left = limit - time.monotonic()
            if left <= 0:
                return None
            if self._bus is None or self._bus.client.is_closed:
                with contextlib.suppress(OvenError, OSError):
                    self._bus = await Bus.open(
                        self._url, self._credentials, name="learner", timeout_s=left, changed=self._changed
                    )
                    self._losses = self._bus.losses
                    continue
            await asyncio.sleep(min(0.05, left))
        return self._bus

    async def _verdict(self, bus: Bus, member: str, request: ScoreRequest, limit: float) -> Verdict:
        verdict: Verdict = Abstention(scores.DEADLINE)
        for _ in range(2):
            verdict = await self._present(bus, member, request, limit)
            if not isinstance(verdict, Abstention):
                return verdict
            self.faults[verdict.kind] += 1
            if verdict.kind not in RETRIED:
                return verdict
        return verdict

    async def _present(self, bus: Bus, member: str, request: ScoreRequest, limit: float) -> Verdict:
        """Asks until somebody listens, within the member's grace; and again if the connection was lost meanwhile, since
        the question or the answer was lost with it."""
        patience = min(limit, time.monotonic() + self._absent_s)
        while (left := limit - time.monotonic()) > 0:
            verdict = await self._one(bus, member, request.model_copy(update={"deadline_s": left}), left)
            if verdict is None:
                back = await self._connected(min(limit, time.monotonic() + RECONNECT_S))
                if back is None:
                    return Abstention(scores.BUS_DOWN)
                bus = back
                continue
            if verdict != Abstention(scores.NO_RESPONDER):
                self._absent.discard(member)
                return verdict
            if member in self._absent or time.monotonic() + LOOK_S > patience:
                self._absent.add(member)
                return verdict
            await asyncio.sleep(LOOK_S)
        return Abstention(scores.DEADLINE)

    async def _one(self, bus: Bus, member: str, request: ScoreRequest, left: float) -> Verdict | None:
        """None: the connection was lost before an answer came."""
        with tracing.span("score", attributes={"oven.member": member}, kind="client") as span:
            headers = tracing.headers(span.traceparent)
            message = await self._answer(bus, self._subjects[member], request.wire(), left, headers)
        if message is None or isinstance(message, Abstention):
            return message
        if (message.headers or {}).get("Status") == "503":
            return Abstention(scores.NO_RESPONDER)
        reasons: dict[str, str] = {}
        verdict, cost = read_reply(message.data, member, request, self.health, reasons)
        if reasons:
            self._reasons[member, request.group] = reasons
        with self._counting:  # groups may be with the judges while a step asks what the last ones cost
            self._cost += cost
        return verdict

    async def _answer(
        self, bus: Bus, subject: str, body: bytes, left: float, headers: dict[str, str] | None = None
    ) -> Msg | Abstention | None:
        """None: the connection was lost before an answer came."""
        inbox = f"{self._inbox}.{secrets.token_hex(16)}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        lost = asyncio.ensure_future(self._lost.wait())
        subscription = None
        try:
            subscription = await bus.client.subscribe(inbox, future=answer, max_msgs=1)
            await subscription.unsubscribe(limit=1)
            await bus.client.publish(subject, body, reply=inbox, headers=headers)
            await asyncio.wait((answer, lost), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return None if lost.done() else Abstention(scores.DEADLINE)
            return answer.result()
        except MaxPayloadError:
            return Abstention(scores.TOO_LARGE)
        except (NatsError, OSError):
            return Abstention(scores.BUS_DOWN)
        finally:
            lost.cancel()
            if subscription is not None and not answer.done():
                with contextlib.suppress(NatsError, OSError):
                    await subscription.unsubscribe()


def read_reply(
    data: bytes,
    member: str,
    request: ScoreRequest,
    health: dict[str, JudgeHealth] | None = None,
    reasons: dict[str, str] | None = None,
) -> tuple[Verdict, Cost]:
    """The verdict in a member's answer, and what it says that this cost. What it says of its judge is entered into
    `health`, and why it scored which completion so into `reasons`."""
    try:
        reply = ScoreReply.model_validate_json(data, strict=True)
    except ValidationError:
        return Abstention(scores.MALFORMED), Cost()
    if reply.member != member:
        return Abstention(scores.MALFORMED), Cost()
    cost = Cost(reply.input_tokens + reply.output_tokens, reply.cost_usd)
    if reply.judge != (request.judge.identity if request.judge is not None else ""):
        return Abstention(scores.OTHER_JUDGE), cost
    if reply.health is not None and health is not None:
        health[member] = reply.health
    verdict = _verdict(reply, request)
    if reasons is not None and not isinstance(verdict, Abstention):
        reasons.update(reply.reasons)
    return verdict, cost


def _verdict(reply: ScoreReply, request: ScoreRequest) -> Verdict:
    """Scores for exactly the ids that were asked for, as numbers and not as text."""
    if reply.failure:
        return Abstention(own_kind(reply.failure))
    if reply.scores is None:
        return Abstention(scores.NOT_APPLICABLE)
    if reply.group != request.group or set(reply.scores) != {completion.id for completion in request.completions}:
        return Abstention(scores.WRONG_IDS)
    return checked(reply.scores[completion.id] for completion in request.completions)
