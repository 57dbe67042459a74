"""Define traces. A trace records an agent's attempt at a task, and is stored as one line of a JSON Lines file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

VERSION: Final = 1
"""Version of the records. Readers reject other versions, because an unknown field may change the meaning."""

Ended: TypeAlias = Literal["submitted", "truncated", "turns", "timeout", "error", "unknown"]
"""Reasons why a trace ended. "truncated": text was truncated or omitted, so the recorded states may be wrong. "turns"
and "timeout": a limit was reached. "error": the environment or the generation failed."""
Real: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Record(BaseModel):
    """Base class of the records. Unknown fields are errors, so formats must convert the fields of other programs."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Record):
    """A tool call as the model wrote it. `arguments` may be invalid JSON."""

    id: str = ""
    name: str
    arguments: str = ""


class Message(Record):
    """A chat message with text only. Formats count the content that they had to drop."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    """The assistant's reasoning, if the source stores it separately from the content."""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Id of the call that a tool message answers."""
    name: str = ""
    """Name of the tool in a tool message."""


class Tool(Record):
    """A tool that the policy could call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}


class Sampled(Record):
    """The sampled tokens of an action."""

    ids: tuple[int, ...]
    logprobs: tuple[Real, ...] | None = None
    """Log-probabilities in nats, one per token, under the sampling policy at its temperature."""
    entropies: tuple[Real, ...] | None = None
    """Entropies in nats, one per token, over the whole vocabulary."""


class Task(Record):
    """The task of a trace. All attempts at one task have the same id."""

    id: str
    prompt: str = ""
    split: str = ""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that fail before a solution and pass after it, as in SWE-bench."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass before and after a solution."""
    data: dict[str, JsonValue] = {}
    """Other fields of the source."""


class Policy(Record):
    """The policy that produced a trace. `step` is the training step of its weights. `vocabulary` names the tokenizer of
    `Sampled.ids`: ids of another tokenizer must not be trained on."""

    model: str = ""
    step: int | None = None
    vocabulary: str = ""


class TraceStep(Record):
    """An action in a state. The state is all earlier messages (`Trace.state`), unless `state` replaces them."""

    state: tuple[Message, ...] | None = None
    """The whole context, if it was rewritten before this step. The states after it extend this one."""
    action: Message
    result: tuple[Message, ...] | None = None
    """The environment's answer, one tool message per call. None if it was not recorded, empty if there was none, as
    after a final message without calls."""
    reward: Real | None = None
    """The reward of this step alone; None if the source has none."""
    sampled: Sampled | None = None
    outcome: str = ""
    """A digest of the environment's state and answer after the action, if available. Actions with equal digests are
    equivalent. The digest includes the answer because otherwise all read-only actions would be equivalent."""


class Trace(Record):
    """One attempt at a task."""

    kind: Literal["trace"] = "trace"
    version: Literal[1] = VERSION
    id: str
    task: Task
    tools: tuple[Tool, ...] = ()
    prompt: tuple[Message, ...] = ()
    """The messages before the first action."""
    steps: tuple[TraceStep, ...] = ()
    reward: Real | None = None
    """The reward of the whole attempt; None if it was not scored."""
    solved: bool | None = None
    """Whether the task was solved; None if the source does not say. It is never derived from the reward."""
    ended: Ended = "unknown"
    policy: Policy = Policy()
    meta: dict[str, JsonValue] = {}

    def states(self) -> Iterator[tuple[Message, ...]]:
        """Yield the state of each step, in order."""
        context: tuple[Message, ...] = self.prompt
        for step in self.steps:
            context = context if step.state is None else step.state
            yield context
            context = (*context, step.action, *(step.result or ()))

    def state(self, number: int) -> tuple[Message, ...]:
        """Return the messages that the policy saw before step `number` (0-based). Raises IndexError."""
        if not 0 <= number < len(self.steps):
            raise IndexError(f"trace {self.id} has {len(self.steps)} steps, so there is no step {number}")
        rewrites = (index for index in range(number, -1, -1) if self.steps[index].state is not None)
        start = next(rewrites, None)
        context = list(self.prompt if start is None else self.steps[start].state or ())
        for step in self.steps[start or 0 : number]:
            context += (step.action, *(step.result or ()))
        return tuple(context)
