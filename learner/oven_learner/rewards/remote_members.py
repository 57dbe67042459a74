"""The client that asks a committee's remote members for their scores, over the bus. Every wait has a deadline. The
client runs an asyncio loop in its own thread, and its connection is separate from the log's. Each request has its own
unguessable inbox, which the server closes after one message. So a member can neither answer for another member nor send
more than one answer."""

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

from pydantic import ValidationError

from oven_core.bus import MaxPayloadError, Msg, NatsError
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import OvenError, reason
from oven_core.protocol import names
from oven_core.protocol.committee_requests import JudgeHealth, ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.names import score_inbox
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.rewards import verdicts
from oven_learner.rewards.member_models import Answers, RequestedModel
from oven_learner.rewards.verdicts import Abstention, Cost, Verdict, to_kind, to_verdict

log = logging.getLogger("oven.learner")

MAX_IN_FLIGHT = 64
"""Maximum number of concurrent requests per member."""
RECONNECT_TIMEOUT_S = 2.0
"""Seconds to wait for a lost connection before the members abstain. A server restart takes less time."""
ABSENCE_TIMEOUT_S = 10.0
"""Seconds to wait for a member that does not listen, which is longer than a restart. After such a wait, each later
request is tried only once, until the member answers again."""
JOIN_TIMEOUT_S = 30.0
"""Seconds to wait for an added member's process. It must import a provider's SDK on a machine that is busy training."""
RETRY_INTERVAL_S = 0.25
"""Seconds between requests to a member that does not listen."""
GRACE_S = 2.0
"""Extra seconds after the deadline, after which the caller stops waiting for the loop."""
NO_RESPONDERS = "503"
"""NATS status of the reply to a request on a subject without a listener."""
RETRIED_KINDS = (verdicts.MALFORMED, verdicts.WRONG_IDS, verdicts.OUT_OF_RANGE)
"""Failures that are retried once. Failures that a member reports are not, because the member has already retried."""


class RemoteMembers:
    """A client of the members that listen on `oven.reward.<member>`. It connects on first use. `judges` contains the
    members' configured models, as far as known."""

    def __init__(
        self,
        members: Sequence[str],
        url: str,
        credentials: Credentials | None,
        *,
        deadline_s: float = 20.0,
        absence_timeout_s: float = ABSENCE_TIMEOUT_S,
        judges: Mapping[str, JudgeSpec] | None = None,
    ) -> None:
        self.members = tuple(members)
        self.judges = dict(judges or {})
        self.deadline_s = deadline_s
        self._absence_timeout_s = absence_timeout_s
        self._url, self._credentials = url, credentials
        self._inbox = score_inbox(credentials.name if credentials else "learner")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bus: Bus | None = None
        self._handled_disconnects = 0
        self._connection_lost = asyncio.Event()
        self._connect_lock = asyncio.Lock()
        self._absent_names: set[str] = set()
        self.faults: Counter[str] = Counter()
        """Number of unusable answers of each kind, including those that a retry replaced."""
        self.health: dict[str, JudgeHealth] = {}
        """Each member's latest report on its judge."""
        self._reasons: dict[tuple[str, str], dict[str, str]] = {}
        self._cost = Cost()
        self._cost_lock = threading.Lock()

    def ask(self, requests: Sequence[ScoreRequest], models: Mapping[str, RequestedModel]) -> Answers:
        """Return each member's verdict on every request by the given model, with scores in the order of completions.
        Members are asked concurrently, and the method returns within `deadline_s`. It never raises, because failures
        become abstentions. It is thread-safe."""
        deadline = time.monotonic() + self.deadline_s
        answers: Answers = {member: [Abstention(verdicts.DEADLINE)] * len(requests) for member in models}
        coroutine = self._ask_all(requests, models, deadline, answers)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._ensure_loop())
        try:
            future.result(timeout=self.deadline_s + GRACE_S)
        except Exception as error:
            future.cancel()
            log.warning("the requests to the committee's remote members failed: %s", reason(error))
        return {member: [*values] for member, values in answers.items()}

    def probe(self, member: str, model: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        """Send a model a test question in the member's process, within `deadline_s`. The result is an empty string if
        it returned a verdict, otherwise the reason for the failure. With `is_new`, first wait up to JOIN_TIMEOUT_S."""
        return asyncio.run_coroutine_threadsafe(self._probe(member, model, is_new), self._ensure_loop())

    def join(self, member: str) -> None:
        """Add a member."""
        self.members = (*self.members, member)

    def leave(self, member: str) -> None:
        """Remove a member."""
        self.members = tuple(name for name in self.members if name != member)

    def take_reasons(self, member: str, group: str) -> dict[str, str]:
        """Return the member's reasons by completion id, or {} without reasons, and forget them."""
        return self._reasons.pop((member, group), {})

    def take_cost(self) -> Cost:
        """Return the cost of all answers since the last call, including abstentions."""
        with self._cost_lock:
            cost, self._cost = self._cost, Cost()
        return cost

    def close(self) -> None:
        """Close the connection and the thread. The next `ask` opens new ones."""
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

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._start_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # Waiting for an event of another loop would raise at once, which would look like a lost connection.
                self._connection_lost, self._connect_lock = asyncio.Event(), asyncio.Lock()
                self._thread = threading.Thread(target=self._loop.run_forever, name="oven-rewards", daemon=True)
                self._thread.start()
            return self._loop

    async def _disconnect(self) -> None:
        if self._bus is not None:
            bus, self._bus = self._bus, None
            await bus.close()

    async def _probe(self, member: str, model: JudgeSpec, is_new: bool) -> str:
        bus = await self._connect(time.monotonic() + RECONNECT_TIMEOUT_S)
        if bus is None:
            return "the learner has no connection to the bus"
        wait_until = time.monotonic() + JOIN_TIMEOUT_S
        while is_new and time.monotonic() < wait_until and not await bus.has_listener(names.reward(member)):
            await asyncio.sleep(RETRY_INTERVAL_S)
        question = ProbeRequest(judge=model, deadline_s=self.deadline_s)
        message = await self._request(bus, names.probe(member), question.wire(), self.deadline_s)
        if message is None:
            return "the connection to the bus was lost during the probe"
        if isinstance(message, Abstention):
            return f"the process of {member} did not answer within {self.deadline_s:g} s"
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            return f"the process of {member} does not listen; check with `oven-controller status` whether it is running"
        try:
            reply = ProbeReply.model_validate_json(message.data, strict=True)
        except ValidationError:
            return f"the answer from the process of {member} is not a ProbeReply"
        if (reply.member, reply.judge) != (member, model.identity):
            return f"the process of {member} answered as {reply.member} with the model {reply.judge}"
        if reply.failure:
            detail = f", {reply.detail}" if reply.detail else ""
            return f"{model.identity} returned no verdict: {reply.failure}{detail}"
        return ""

    async def _ask_all(
        self, requests: Sequence[ScoreRequest], models: Mapping[str, RequestedModel], deadline: float, answers: Answers
    ) -> None:
        """Send all requests to all members, and write the answers to `answers`."""
        bus = await self._connect(min(deadline, time.monotonic() + RECONNECT_TIMEOUT_S))
        if bus is None:
            for member in answers:
                answers[member][:] = [Abstention(verdicts.BUS_DOWN)] * len(requests)
            self.faults[verdicts.BUS_DOWN] += len(answers) * len(requests)
            return
        slots = {member: asyncio.Semaphore(MAX_IN_FLIGHT) for member in answers}
        member_requests = {
            member: [request.model_copy(update={"judge": model.judge, "swap": model.swap}) for request in requests]
            for member, model in models.items()
        }

        async def ask_member(member: str, index: int) -> None:
            try:
                async with slots[member]:
                    answers[member][index] = await self._request_verdict(
                        bus, member, member_requests[member][index], deadline
                    )
            except asyncio.CancelledError:
                self.faults[verdicts.DEADLINE] += 1
                raise

        tasks = [asyncio.create_task(ask_member(member, i)) for i in range(len(requests)) for member in answers]
        await asyncio.wait(tasks, timeout=max(0.0, deadline - time.monotonic()))
        await end(*tasks)

    def _on_connection_change(self) -> None:
        """Notify the pending requests if the connection was lost."""
        if self._bus is not None and self._bus.disconnects != self._handled_disconnects:
            self._handled_disconnects = self._bus.disconnects
            self._connection_lost.set()
            self._connection_lost = asyncio.Event()

    async def _connect(self, deadline: float) -> Bus | None:
        """Connect if needed, and return the connection, or None if it cannot be opened by `deadline`."""
        async with self._connect_lock:  # a probe and the committee's requests may run concurrently
            while self._bus is None or not self._bus.client.is_connected:
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    return None
                if self._bus is None or self._bus.client.is_closed:
                    with contextlib.suppress(OvenError, OSError):
                        self._bus = await Bus.open(
                            self._url,
                            self._credentials,
                            name="learner",
                            timeout_s=seconds_left,
                            on_change=self._on_connection_change,
                        )
                        self._handled_disconnects = self._bus.disconnects
                        continue
                await asyncio.sleep(min(0.05, seconds_left))
            return self._bus

    async def _request_verdict(
        self, bus: Bus, member: str, request: ScoreRequest, deadline: float, retries: int = 1
    ) -> Verdict:
        verdict = await self._ask_until_present(bus, member, request, deadline)
        if isinstance(verdict, Abstention):
            self.faults[verdict.kind] += 1
            if retries and verdict.kind in RETRIED_KINDS:
                return await self._request_verdict(bus, member, request, deadline, retries - 1)
        return verdict

    async def _ask_until_present(self, bus: Bus, member: str, request: ScoreRequest, deadline: float) -> Verdict:
        """Ask until the member listens or its absence timeout has passed. After a lost connection, ask again, because
        the request or the answer may be lost."""
        wait_until = min(deadline, time.monotonic() + self._absence_timeout_s)
        while (seconds_left := deadline - time.monotonic()) > 0:
            verdict = await self._ask_once(bus, member, request.model_copy(update={"deadline_s": seconds_left}))
            if verdict is None:
                new_bus = await self._connect(min(deadline, time.monotonic() + RECONNECT_TIMEOUT_S))
                if new_bus is None:
                    return Abstention(verdicts.BUS_DOWN)
                bus = new_bus
                continue
            if verdict != Abstention(verdicts.NO_RESPONDER):
                self._absent_names.discard(member)
                return verdict
            if member in self._absent_names or time.monotonic() + RETRY_INTERVAL_S > wait_until:
                self._absent_names.add(member)
                return verdict
            await asyncio.sleep(RETRY_INTERVAL_S)
        return Abstention(verdicts.DEADLINE)

    async def _ask_once(self, bus: Bus, member: str, request: ScoreRequest) -> Verdict | None:
        """Ask once, within the request's deadline. Return None if the connection was lost before the answer."""
        with tracing.span("score", attributes={"oven.member": member}, kind="client") as span:
            headers = tracing.headers(span.traceparent)
            message = await self._request(bus, names.reward(member), request.wire(), request.deadline_s, headers)
        if message is None or isinstance(message, Abstention):
            return message
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            return Abstention(verdicts.NO_RESPONDER)
        verdict, cost, reply = read_reply(message.data, member, request)
        if reply is not None and reply.health is not None:
            self.health[member] = reply.health
        if reply is not None and reply.reasons and not isinstance(verdict, Abstention):
            self._reasons[member, request.group] = dict(reply.reasons)
        with self._cost_lock:  # a step may read the cost while judges are answering
            self._cost += cost
        return verdict

    async def _request(
        self, bus: Bus, subject: str, body: bytes, seconds_left: float, headers: dict[str, str] | None = None
    ) -> Msg | Abstention | None:
        """Send a message and wait for its answer. Return None if the connection was lost first."""
        inbox = f"{self._inbox}.{secrets.token_hex(16)}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        connection_loss = asyncio.ensure_future(self._connection_lost.wait())
        subscription = None
        try:
            subscription = await bus.client.subscribe(inbox, future=answer, max_msgs=1)
            await subscription.unsubscribe(limit=1)
            await bus.client.publish(subject, body, reply=inbox, headers=headers)
            await asyncio.wait((answer, connection_loss), timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return None if connection_loss.done() else Abstention(verdicts.DEADLINE)
            return answer.result()
        except MaxPayloadError:
            return Abstention(verdicts.TOO_LARGE)
        except (NatsError, OSError):
            return Abstention(verdicts.BUS_DOWN)
        finally:
            connection_loss.cancel()
            if subscription is not None and not answer.done():
                with contextlib.suppress(NatsError, OSError):
                    await subscription.unsubscribe()


def read_reply(data: bytes, member: str, request: ScoreRequest) -> tuple[Verdict, Cost, ScoreReply | None]:
    """Return the verdict and cost of an answer, and the answer itself if it comes from the correct member and model."""
    try:
        reply = ScoreReply.model_validate_json(data, strict=True)
    except ValidationError:
        return Abstention(verdicts.MALFORMED), Cost(), None
    if reply.member != member:
        return Abstention(verdicts.MALFORMED), Cost(), None
    cost = Cost(reply.input_tokens + reply.output_tokens, reply.cost_usd)
    if reply.judge != (request.judge.identity if request.judge is not None else ""):
        return Abstention(verdicts.OTHER_JUDGE), cost, None
    if reply.failure:
        return Abstention(to_kind(reply.failure)), cost, reply
    if reply.scores is None:
        return Abstention(verdicts.NOT_APPLICABLE), cost, reply
    if reply.group != request.group or set(reply.scores) != {completion.id for completion in request.completions}:
        return Abstention(verdicts.WRONG_IDS), cost, reply
    return to_verdict(reply.scores[completion.id] for completion in request.completions), cost, reply
