"""Hinted prompts: what the policy is told when it teaches itself (Hübotter et al. 2026, arXiv 2601.20802).

The words and the choice of a sibling are those of TRL 1.16's `SuccessfulRolloutTeacherContextBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from accelerate.utils import gather_object

from oven_core.errors import ConfigError
from oven_learner.losses.generated import Generated

Template: TypeAlias = str | Callable[[Mapping[str, Any], str], str | None]
"""A text with the row's columns in braces, or a function of the row and the completion's text that returns a hint or
None."""
PROMPT = "{prompt}{hints}\n\nCorrectly solve the original question.\n"
SOLUTION = "\nCorrect solution:\n\n{solution}\n\n"
FEEDBACK = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback}\n\n"


@dataclass(frozen=True, slots=True)
class Hints:
    """Which hints a completion's prompt gets. A completion without any is not distilled.

    `sibling`: the first other completion of its group whose reward is at least `success`. `feedback`: the dataset's
    column with what the environment said, or a property of that name of the row's environment. `template`: a hint of
    the user's. Raises ConfigError where all three are off.
    """

    sibling: bool = True
    success: float = 1.0
    feedback: str | None = "feedback"
    template: Template | None = None

    def __post_init__(self) -> None:
        if not self.sibling and self.feedback is None and self.template is None:
            raise ConfigError(
                "channel.sdpo has no source of hints: give sibling=True, a column of feedback, or a template"
            )

    def prompts(self, generated: Generated, decode: Callable[[Sequence[int]], str], rank: int) -> list[Any]:
        """Each row's prompt with its hints, a text or a conversation, or None. With `sibling` a collective where there
        are several ranks: a group may lie on two."""
        count = len(generated.rows)
        everyones = gather_object([list(ids) for ids in generated.completion_ids]) if self.sibling else []
        found: list[Any] = []
        for row in range(count):
            place = rank * count + row
            parts = [self._sibling(generated, everyones, place, decode), self._feedback(generated, row)]
            told = "".join([*(part for part in parts if part), self._template(generated, row, decode) or ""])
            found.append(_hinted(generated.prompts[row], told) if told else None)
        return found

    def _sibling(
        self, generated: Generated, everyones: Sequence[Sequence[int]], place: int, decode: Callable[..., str]
    ) -> str | None:
        if not self.sibling:
            return None
        first = place // generated.group * generated.group
        rewards = generated.rewards[first : first + generated.group].tolist()
        other = next((first + n for n, r in enumerate(rewards) if first + n != place and r >= self.success), None)
        return None if other is None else SOLUTION.format(solution=decode(everyones[other]))

    def _feedback(self, generated: Generated, row: int) -> str | None:
        if self.feedback is None:
            return None
        said = generated.rows[row].get(self.feedback)
        if said is None and generated.environments is not None:
            said = getattr(generated.environments[row], self.feedback, None)
        if said is not None and not isinstance(said, str):
            raise ConfigError(
                f"channel.sdpo: {self.feedback!r} holds a {type(said).__name__}; give a text, or None where there is "
                "no feedback"
            )
        return FEEDBACK.format(feedback=said) if said and said.strip() else None

    def _template(self, generated: Generated, row: int, decode: Callable[..., str]) -> str | None:
        if self.template is None:
            return None
        if callable(self.template):
            return self.template(generated.rows[row], decode(generated.completion_ids[row]))
        try:
            return self.template.format_map(generated.rows[row])
        except (KeyError, IndexError) as error:
            raise ConfigError(
                f"channel.sdpo: the template asks for {error}, and a row has {', '.join(generated.rows[row])}"
            ) from None


def _hinted(prompt: Any, hints: str) -> Any:
    """A text, or the conversation with its last message of the user rewritten."""
    if isinstance(prompt, str):
        return PROMPT.format(prompt=prompt, hints=hints)
    last = max((at for at, message in enumerate(prompt) if message["role"] == "user"), default=None)
    if last is None:
        return [*prompt, {"role": "user", "content": PROMPT.format(prompt="", hints=hints)}]
    said = prompt[last]["content"]
    if isinstance(said, list):
        said = " ".join(part.get("text", "") for part in said if part.get("type") == "text")
    hinted = {**prompt[last], "content": PROMPT.format(prompt=said, hints=hints)}
    return [*prompt[:last], hinted, *prompt[last + 1 :]]
