"""Teachers asked at each of an agent's own states: what would they have done there?

Each teacher has a few lanes; a lane takes a trace and goes through its states one after another, so that what was said
before is still in the provider's cache. Traces of one task follow each other, since they begin alike. Every question is
written to the journal before it is asked, and what it brought when it came; so a replay can be killed and resumed.
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
"""Questions a state where what came back cannot be read: a body that was cut off, a page of HTML. Faults on the way
there are the SDK's, which tries those again by itself."""
UNREADABLE: Final = frozenset(("bad_response", "bad_json"))
SECOND_PASS: Final = 0.1
"""Share of failures up to which the states that failed are asked about once more at the end: few are bad luck, many are
an endpoint that is down."""
REFUSING: Final[frozenset[Kind]] = frozenset(("auth", "not_found", "not_configured"))
"""Kinds of failure that every further question would meet, too."""
REFUSALS: Final = 3
"""Requests in a row that a teacher which has not answered yet turns down as wrong, until it is given up: it takes no
tools, or another setting is not to its liking."""


@dataclass(frozen=True)
class Teacher:
    """A model that is asked, and how."""

    name: str
    settings: TeacherSettings
    model: LanguageModel


@dataclass
class Outcome:
    """What one call of `Replay.run` did. Its counts are of states, each asked of one teacher."""

    asked: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Without any answer, by kind; a state that was asked about again counts again."""
    faults: Counter[str] = field(default_factory=Counter)
    """HTTP attempts that failed on the way, or whose answer could not be read, by kind; also where a later one
    succeeded."""
    stopped: str = ""
    """Why it ended before all states had been asked about; empty: it did not."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Teacher → why it was not asked further."""
    seconds: float = 0.0
    booked_usd: float | None = None
    """US dollars that all calls into the file came to, with what got lost at its greatest cost; None: not known."""


class Replay:
    """One pass over traces with some teachers, into one file."""

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
        self._heard: set[str] = set()
        """Teachers that have answered."""

    def stop(self, why: str) -> None:
        """No further question is asked; those under way are waited for."""
        self.outcome.stopped = self.outcome.stopped or why

    async def run(self) -> Outcome:
        """Raises OSError where a reply cannot be written: what is asked after that would be lost."""
        started = time.monotonic()
        await self._pass()
        if 0 < sum(self.outcome.failed.values()) < SECOND_PASS * self.outcome.asked:
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
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _lane(self, teacher: Teacher, queue: Iterator[Trace]) -> None:
        for trace in queue:
            for step, (state, messages) in enumerate(zip(trace.digests(), trace.states(), strict=True)):
                if self.outcome.stopped or teacher.name in self.outcome.given_up:
                    return
                key = (teacher.name, trace.id, step)
                if self._file.wants(key):
                    await self._state(teacher, trace, key, state, messages)
                    self._progress(self.outcome)

    async def _state(self, teacher: Teacher, trace: Trace, key: Key, state: str, messages: Sequence[Message]) -> None:
        self._file.begin(key)
        started, tally = time.monotonic(), CallTally()
        with tallied(tally):
            answers, failure = await self._asked(teacher, trace.tools, messages)
        self.outcome.faults.update(tally.faults)
        if failure == "budget" and not answers:
            self._file.void(key)
            return
        replies = self._replies(teacher, key, state, answers, failure, time.monotonic() - started)
        self._file.add(key, replies)
        self.outcome.asked += 1
        if any(reply.action is not None for reply in replies):
            self.outcome.answered += 1
            self._heard.add(teacher.name)
        else:
            self.outcome.failed[replies[0].failure] += 1

    async def _asked(
        self, teacher: Teacher, tools: Sequence[Tool], messages: Sequence[Message]
    ) -> tuple[list[ModelReply], str]:
        """What came, and the kind of failure that kept the other samples away, if any."""
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
                came = list(failure.replies) if isinstance(failure, SamplesMissing) else []
                if kind in UNREADABLE:
                    self.outcome.faults[kind] += 1
                if came or kind not in UNREADABLE:
                    return came, kind
            except ValueError:  # a state that no API takes: nothing was sent
                return [], "malformed_request"
        return [], kind

    def _note(self, teacher: Teacher, failure: ModelFailure) -> None:
        """Ends the replay, or gives the teacher up, where further questions would meet the same."""
        if failure.kind == "budget":
            held = "calls under way hold what is left of the budget"  # its deadline came while it waited for room
            self.stop(failure.detail if failure.detail.startswith("budget") else held)
        elif failure.kind in REFUSING:
            self.outcome.given_up.setdefault(teacher.name, str(failure))
        elif failure.kind == "bad_request" and teacher.name not in self._heard:
            self._refusals[teacher.name] += 1
            if self._refusals[teacher.name] >= REFUSALS:
                self.outcome.given_up.setdefault(
                    teacher.name,
                    f"it turned down the first {REFUSALS} requests ({failure}): does the model take tools, the "
                    "temperature and so many tokens?",
                )

    @staticmethod
    def _replies(
        teacher: Teacher, key: Key, state: str, answers: Sequence[ModelReply], failure: str, seconds: float
    ) -> list[Reply]:
        """One for each sample that was wanted."""
        made = []
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
                made.append(Reply.model_validate(common | {"failure": failure or "no_answer"}))
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
            said = {"failure": kind} if kind else {"action": action_of(answer)}
            made.append(Reply.model_validate(common | paid | said))
        return made


def in_prefix_order(traces: Sequence[Trace]) -> list[Trace]:
    """Attempts at one task beside each other, tasks in the order in which they first come."""
    first: dict[str, int] = {}
    for place, trace in enumerate(traces):
        first.setdefault(trace.task.id, place)
    return sorted(traces, key=lambda trace: first[trace.task.id])


def answerable(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with ids at all calls, and results that name theirs. Traces of some sources have none: results come
    in the order of the calls then."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.calls:
            calls = tuple(
                call if call.id else call.model_copy(update={"id": f"call_{number}_{place}"})
                for place, call in enumerate(message.calls)
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
    """Why an answer is not an action; empty: it is one. A text that was cut off may have been any action."""
    if answer.finish == "refusal":
        return "refusal"
    if answer.finish == "length":
        return "truncated"
    return "" if answer.calls or answer.text.strip() else "no_action"


def action_of(answer: ModelReply) -> Message:
    """The assistant's message."""
    return answer.message
