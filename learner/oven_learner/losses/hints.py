"""Hinted prompts for self-distillation (Hübotter et al. 2026, arXiv 2601.20802).

The wording and the choice of a sibling match TRL 1.16's `SuccessfulRolloutTeacherContextBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from accelerate.utils import gather_object

from oven_core.errors import ConfigError
from oven_learner.losses.generated import Generated

Template: TypeAlias = str | Callable[[Mapping[str, Any], str], str | None]
"""A text with the row's columns in braces, or a function (row, completion text) → hint or None."""
PROMPT = "{prompt}{hints}\n\nCorrectly solve the original question.\n"
SOLUTION = "\nCorrect solution:\n\n{solution}\n\n"
FEEDBACK = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback}\n\n"


@dataclass(frozen=True, slots=True)
class Hints:
    """The sources of hints for a completion's prompt. Completions without hints are not distilled.

    `sibling`: use the first other completion of the group with a reward of at least `success`. `feedback`: the dataset
    column with the environment's feedback, or the environment's property of that name. `template`: the user's own hint.
    Raises ConfigError if all three are off.
    """

    sibling: bool = True
    success: float = 1.0
    feedback: str | None = "feedback"
    template: Template | None = None

    def __post_init__(self) -> None:
        if not self.sibling and self.feedback is None and self.template is None:
            raise ConfigError("channel.sdpo has no source of hints: set sibling=True, a feedback column, or a template")

    def prompts(self, generated: Generated, decode: Callable[[Sequence[int]], str], rank: int) -> list[Any]:
        """Return each row's hinted prompt, a text or a conversation, or None without hints.

        With `sibling` and several ranks this is a collective, because a group may span two ranks.
        """
        count = len(generated.rows)
        everyones = gather_object([list(ids) for ids in generated.completion_ids]) if self.sibling else []
        hinted_prompts: list[Any] = []
        for row in range(count):
            position = rank * count + row
            parts = [self._sibling(generated, everyones, position, decode), self._feedback(generated, row)]
            hints = "".join([*(part for part in parts if part), self._template(generated, row, decode) or ""])
            hinted_prompts.append(_hinted(generated.prompts[row], hints) if hints else None)
        return hinted_prompts

    def _sibling(
        self, generated: Generated, everyones: Sequence[Sequence[int]], position: int, decode: Callable[..., str]
    ) -> str | None:
        if not self.sibling:
            return None
        first = position // generated.group * generated.group
        rewards = generated.rewards[first : first + generated.group].tolist()
        sibling = next((first + n for n, r in enumerate(rewards) if first + n != position and r >= self.success), None)
        return None if sibling is None else SOLUTION.format(solution=decode(everyones[sibling]))

    def _feedback(self, generated: Generated, row: int) -> str | None:
        if self.feedback is None:
            return None
        feedback = generated.rows[row].get(self.feedback)
        if feedback is None and generated.environments is not None:
            feedback = getattr(generated.environments[row], self.feedback, None)
        if feedback is not None and not isinstance(feedback, str):
            raise ConfigError(
                f"channel.sdpo: {self.feedback!r} is a {type(feedback).__name__}; expected a text, or None"
            )
        return FEEDBACK.format(feedback=feedback) if feedback and feedback.strip() else None

    def _template(self, generated: Generated, row: int, decode: Callable[..., str]) -> str | None:
        if self.template is None:
            return None
        if callable(self.template):
            return self.template(generated.rows[row], decode(generated.completion_ids[row]))
        try:
            return self.template.format_map(generated.rows[row])
        except (KeyError, IndexError) as error:
            raise ConfigError(
                f"channel.sdpo: the template uses {error}, and the row has {', '.join(generated.rows[row])}"
            ) from None


def _hinted(prompt: Any, hints: str) -> Any:
    """Add the hints to a text, or to a conversation's last user message."""
    if isinstance(prompt, str):
        return PROMPT.format(prompt=prompt, hints=hints)
    last = max((index for index, message in enumerate(prompt) if message["role"] == "user"), default=None)
    if last is None:
        return [*prompt, {"role": "user", "content": PROMPT.format(prompt="", hints=hints)}]
    content = prompt[last]["content"]
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content if part.get("type") == "text")
    hinted = {**prompt[last], "content": PROMPT.format(prompt=content, hints=hints)}
    return [*prompt[:last], hinted, *prompt[last + 1 :]]
