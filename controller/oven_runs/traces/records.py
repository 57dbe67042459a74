"""The records of trace replay: traces and their steps, teachers' replies, preference pairs.

The learner writes traces, agents add replies and pairs, the learner trains on the pairs. Each record is a line of a
JSONL file and carries its kind and version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

VERSION: Final = 1
"""Of the records' form. A reader refuses another one, since a field that it does not know may change the meaning."""

Ended: TypeAlias = Literal["submitted", "truncated", "turns", "timeout", "error", "unknown"]
"""How a trace ended: the policy ended it; a text was cut or dropped (the states may not be what the policy saw); the
limit of turns; the limit of time; the environment or the generation failed; the source does not say."""
Rule: TypeAlias = Literal["teachers_over_student", "student_over_minority"]
"""Which rule made a pair; they are counted apart."""
Real: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Record(BaseModel):
    """Base of all. Unknown fields are errors: a file of ours has none, and other files come through a format."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Record):
    """A call as the model wrote it: `arguments` may be no JSON at all."""

    id: str = ""
    name: str
    arguments: str = ""


class Message(Record):
    """A chat message. A part that is not text has no place here; formats count it as lost."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    """Of an assistant, where the source has it apart from the content."""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: str = ""
    """Of a tool's message: the tool."""


class Tool(Record):
    """A tool that the policy was offered; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}


class Sampled(Record):
    """The tokens of an action as they were sampled."""

    ids: tuple[int, ...]
    logprobs: tuple[Real, ...] | None = None
    """Nats, one a token, of the policy that sampled, at its temperature."""
    entropies: tuple[Real, ...] | None = None
    """Nats, one a token, over the whole vocabulary."""


class Task(Record):
    """What the trace is an attempt at. Attempts at one task have one id."""

    id: str
    prompt: str = ""
    split: str = ""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that a solution turns from failing to passing, as SWE-bench has them."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that a solution leaves passing."""
    data: dict[str, JsonValue] = {}
    """Further fields of the source."""


class Policy(Record):
    """Who acted. `step` is the training step whose weights it had; `vocabulary` names the tokenizer of `Sampled.ids`:
    ids of another one must not be trained on."""

    model: str = ""
    step: int | None = None
    vocabulary: str = ""


class TraceStep(Record):
    """One action at one state. The state is all messages before it (`Trace.state`), unless `state` says otherwise."""

    state: tuple[Message, ...] | None = None
    """Where the context was rewritten before this step: the whole of it; the states after it grow from there."""
    action: Message
    result: tuple[Message, ...] | None = None
    """What the environment answered: a tool message for each call. None: it was not recorded; empty: it said nothing,
    as after a last message without calls."""
    reward: Real | None = None
    """Of this step alone; None: the source has none."""
    sampled: Sampled | None = None
    own: tuple[Message, ...] = ()
    """Further actions that the same policy sampled at this state."""
    outcome: str = ""
    """A digest of the environment after the action and of its answer, where it gives one: equal digests are equivalent
    actions. Without the answer, all actions that only read would be equivalent."""


class Trace(Record):
    """One attempt at a task, from `prompt` to its end."""

    kind: Literal["trace"] = "trace"
    version: Literal[1] = VERSION
    id: str
    task: Task
    tools: tuple[Tool, ...] = ()
    prompt: tuple[Message, ...] = ()
    """The messages before the first action."""
    steps: tuple[TraceStep, ...] = ()
    reward: Real | None = None
    """Of the whole attempt; None: it was not scored."""
    solved: bool | None = None
    """None: the source does not say. It is never derived from the reward."""
    ended: Ended = "unknown"
    policy: Policy = Policy()
    meta: dict[str, JsonValue] = {}

    def states(self) -> Iterator[tuple[Message, ...]]:
        """The state of each step, in their order."""
        context: tuple[Message, ...] = self.prompt
        for step in self.steps:
            context = context if step.state is None else step.state
            yield context
            context = (*context, step.action, *(step.result or ()))

    def state(self, at: int) -> tuple[Message, ...]:
        """The messages that the policy saw before step `at` (0-based). Raises IndexError."""
        if not 0 <= at < len(self.steps):
            raise IndexError(f"trace {self.id} has {len(self.steps)} steps, and no step {at}")
        start = next((one for one in range(at, -1, -1) if self.steps[one].state is not None), None)
        context = list(self.prompt if start is None else self.steps[start].state or ())
        for step in self.steps[start or 0 : at]:
            context += (step.action, *(step.result or ()))
        return tuple(context)

    def digests(self) -> tuple[str, ...]:
        """A digest of each step's state and tools, 16 hexadecimal digits: a reply carries that of the state that was
        asked about, so that it is not taken for an answer to another one of the same number."""
        tools = hashlib.sha256(_canonical([tool.model_dump() for tool in self.tools]))
        context, found = _extended(tools, self.prompt), []
        for step in self.steps:
            context = context if step.state is None else _extended(tools, step.state)
            found.append(context.hexdigest()[:16])
            context = _extended(context, (step.action, *(step.result or ())))
        return tuple(found)


class Reply(Record):
    """One sample of one teacher at one state: an action, or the kind of failure. A failure is never an action."""

    kind: Literal["reply"] = "reply"
    version: Literal[1] = VERSION
    trace: str
    step: int = Field(ge=0)
    state: str
    """The state's digest."""
    teacher: str
    family: str
    """Teachers of one family are counted as one voter: they are trained alike and err alike."""
    model: str = ""
    sample: int = Field(default=0, ge=0)
    action: Message | None = None
    failure: str = ""
    """Its kind, e.g. "timeout"; empty where there is an action."""
    tokens_in: int = Field(default=0, ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    """Of `tokens_in`, those read from the provider's cache."""
    tokens_out: int = Field(default=0, ge=0)
    usd: Real | None = None
    """None: the price is not known."""
    seconds: Real | None = None
    outcome: str = ""
    """As `TraceStep.outcome`, where the action was tried in the environment."""

    def model_post_init(self, _: Any) -> None:
        """Raises ValueError for a reply that is both an answer and a failure, or neither."""
        if (self.action is None) == (not self.failure):
            raise ValueError("a reply has either an action or a failure")


class Pair(Record):
    """At `state`, `chosen` is preferred to `rejected`. Whole by itself: a file of pairs is all that training needs."""

    kind: Literal["pair"] = "pair"
    version: Literal[1] = VERSION
    trace: str
    step: int = Field(ge=0)
    task: str
    state: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    chosen: Message
    rejected: Message
    rule: Rule
    votes: int = Field(ge=1)
    """Families for the preferred action, without the student."""
    voters: int = Field(ge=1)
    """Families that gave an action."""
    share: Real = Field(ge=0, le=1)
    """The mean over families of the share of their samples that is the chosen action."""
    teachers: tuple[str, ...] = ()
    """Those whose action is the chosen one (of the rule `student_over_minority`: the rejected one)."""
    sampled: Sampled | None = None
    """The student's tokens: of `rejected` under `teachers_over_student`, else of `chosen`."""
    policy: Policy = Policy()
    """The student."""


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def _extended(context: Any, messages: Iterable[Message]) -> Any:
    """A copy of a running hash with `messages` added; a line each, so that no two lists of messages run together."""
    longer = context.copy()
    for message in messages:
        longer.update(b"\n" + _canonical(message.model_dump()))
    return longer
