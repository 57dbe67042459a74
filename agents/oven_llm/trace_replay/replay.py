"""Asks teachers what they would have done at each of an agent's own states.

Each teacher has a few lanes. A lane goes through the states of a trace in order, so that the provider's cache still has
the earlier messages. Traces of one task follow each other, because they begin alike. Every question is written to the
journal before it is asked, and its replies when they come, so a killed replay can be resumed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from oven_llm.providers.conversation import Conversation, LanguageModel, ModelReply, SamplesMissing
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.usage import CallTally, tallied
from oven_llm.trace_replay.replies_file import Key, RepliesFile
from oven_llm.trace_replay.teachers_file import TeacherSettings
from oven_runs.traces.records import Message, Reply, Tool, Trace

TRIES: Final = 3
"""Attempts per state if the response cannot be read: a truncated body, an HTML page. The SDK itself retries failed
connections."""
UNREADABLE: Final = frozenset(("bad_response", "bad_json"))
SECOND_PASS: Final = 0.1
"""Maximum share of failures for asking about the failed states once more at the end. Few failures are bad luck, many
are an endpoint that is down."""
REFUSING: Final[frozenset[Kind]] = frozenset(("auth", "not_found", "not_configured"))
"""Kinds of failure that every further question would have too."""
REFUSALS: Final = 3
"""Rejected requests until a teacher that has not answered yet is given up. It may not support tools or another
setting."""


@dataclass(frozen=True)
class Teacher:
    """A model to ask, and its settings."""

    name: str
    settings: TeacherSettings
    model: LanguageModel


@dataclass
class Outcome:
    """The result of one call of `Replay.run`. It counts states, once for each teacher."""

    states: int = 0
    """States that were asked about."""
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """States without any answer, by kind. A state that was asked about again counts again."""
    faults: Counter[str] = field(default_factory=Counter)
    """Failed HTTP attempts and unreadable answers by kind, also if a later attempt succeeded."""
    stopped: str = ""
    """The reason if it ended before all states had been asked about."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Teacher → the reason why it was not asked further."""
    seconds: float = 0.0
    booked_usd: float | None = None
    """US dollars of all calls into the file, with lost calls at their maximum cost; None if unknown."""


class Replay:
    """A replay of traces with some teachers into one file."""

    def __init__(
        self,
        traces: Sequence[Trace],
        teachers: Sequence[Teacher],
        file: RepliesFile,
        progress: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self.outcome = Outcome()
        self._traces = in_prefix_order(traces)
        self._teachers, self._file, self._progress = teachers, file, progress
        self._refusals: Counter[str] = Counter()
        self._answering: set[str] = set()
        """Teachers that have answered."""

    def stop(self, reason: str) -> None:
        """Ask no further question. Questions in flight are waited for."""
        self.outcome.stopped = self.outcome.stopped or reason

    async def run(self) -> Outcome:
        """Ask about all states that the file wants. Raises OSError if a reply cannot be written, because later replies
        would be lost too."""
        started = time.monotonic()
        await self._pass()
        if 0 < sum(self.outcome.failed.values()) < SECOND_PASS * self.outcome.states:
            await self._pass()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    async def _pass(self) -> None:
        lanes = []
        for teacher in self._teachers:
            queue = iter(self._traces)
            lanes += [self._lane(teacher, queue) for _ in range(teacher.settings.lanes)]
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane)
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _lane(self, teacher: Teacher, queue: Iterator[Trace]) -> None:
        for trace in queue:
            for step, (state, messages) in enumerate(zip(trace.digests(), trace.states(), strict=True)):
                if self.outcome.stopped or teacher.name in self.outcome.given_up:
                    return
                key = (teacher.name, trace.id, step)
                if self._file.wants(key):
                    await self._ask_about(teacher, trace, key, state, messages)
                    self._progress(self.outcome)

    async def _ask_about(
        self, teacher: Teacher, trace: Trace, key: Key, state: str, messages: Sequence[Message]
    ) -> None:
        self._file.begin(key)
        started, tally = time.monotonic(), CallTally()
        with tallied(tally):
            answers, failure = await self._ask(teacher, trace.tools, messages)
        self.outcome.faults.update(tally.faults)
        if failure == "budget" and not answers:
            self._file.void(key)
            return
        replies = self._replies(teacher, key, state, answers, failure, time.monotonic() - started)
        self._file.add(key, replies)
        self.outcome.states += 1
        if any(reply.action is not None for reply in replies):
            self.outcome.answered += 1
            self._answering.add(teacher.name)
        else:
            self.outcome.failed[replies[0].failure] += 1

    async def _ask(
        self, teacher: Teacher, tools: Sequence[Tool], messages: Sequence[Message]
    ) -> tuple[list[ModelReply], str]:
        """Return the answers, and the kind of failure that prevented the other samples."""
        settings = teacher.settings
        kind = ""
        for _ in range(TRIES):
            try:
                conversation = Conversation(
                    tuple(answerable(messages)),
                    settings.max_tokens,
                    tools=tuple(tools),
                    temperature=settings.temperature,
                )
                return await teacher.model.ask(conversation, settings.deadline_s, settings.samples), ""
            except ModelFailure as failure:
                self._note(teacher, failure)
                kind = failure.kind
                partial = list(failure.replies) if isinstance(failure, SamplesMissing) else []
                if kind in UNREADABLE:
                    self.outcome.faults[kind] += 1
                if partial or kind not in UNREADABLE:
                    return partial, kind
            except ValueError:  # a state that no API accepts: nothing was sent
                return [], "malformed_request"
        return [], kind

    def _note(self, teacher: Teacher, failure: ModelFailure) -> None:
        """Stop the replay, or give up the teacher, if further questions would fail the same way."""
        if failure.kind == "budget":
            reserved = "calls in flight reserve the rest of the budget"  # its deadline passed while it waited
            self.stop(failure.detail if failure.detail.startswith("budget") else reserved)
        elif failure.kind in REFUSING:
            self.outcome.given_up.setdefault(teacher.name, str(failure))
        elif failure.kind == "bad_request" and teacher.name not in self._answering:
            self._refusals[teacher.name] += 1
            if self._refusals[teacher.name] >= REFUSALS:
                self.outcome.given_up.setdefault(
                    teacher.name,
                    f"it rejected the first {REFUSALS} requests ({failure}): does the model support tools, the "
                    "temperature and max_tokens?",
                )

    @staticmethod
    def _replies(
        teacher: Teacher, key: Key, state: str, answers: Sequence[ModelReply], failure: str, seconds: float
    ) -> list[Reply]:
        """Return a reply for each requested sample."""
        replies = []
        for sample in range(max(teacher.settings.samples, len(answers))):
            common = {
                "trace": key[1],
                "step": key[2],
                "state": state,
                "teacher": teacher.name,
                "family": teacher.settings.family,
                "sample": sample,
                "seconds": round(seconds, 4),
            }
            if sample >= len(answers):
                replies.append(Reply.model_validate(common | {"failure": failure or "no_answer"}))
                continue
            answer = answers[sample]
            paid = {
                "model": answer.model,
                "tokens_in": answer.usage.input_tokens,
                "tokens_cached": answer.usage.cached_tokens,
                "tokens_out": answer.usage.output_tokens,
                "usd": answer.cost_usd,
            }
            kind = unusable(answer)
            outcome = {"failure": kind} if kind else {"action": answer.message}
            replies.append(Reply.model_validate(common | paid | outcome))
        return replies


def in_prefix_order(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces with attempts at one task next to each other, tasks in the order of their first attempt."""
    first: dict[str, int] = {}
    for index, trace in enumerate(traces):
        first.setdefault(trace.task.id, index)
    return sorted(traces, key=lambda trace: first[trace.task.id])


def answerable(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with an id for each call, and with the call's id in each result. Some sources have no ids;
    their results come in the order of the calls."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.calls:
            calls = tuple(
                call if call.id else call.model_copy(update={"id": f"call_{number}_{index}"})
                for index, call in enumerate(message.calls)
            )
            waiting = [call.id for call in calls]
            yield message.model_copy(update={"calls": calls})
        elif message.role == "tool" and not message.call_id and waiting:
            yield message.model_copy(update={"call_id": waiting.pop(0)})
        else:
            if message.call_id in waiting:
                waiting.remove(message.call_id)
            yield message


def unusable(answer: ModelReply) -> str:
    """Return the reason why an answer is not an action, empty if it is one. A truncated text could be any action."""
    if answer.finish == "refusal":
        return "refusal"
    if answer.finish == "length":
        return "truncated"
    return "" if answer.calls or answer.text.strip() else "no_action"
