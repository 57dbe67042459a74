"""The model in training, in words: what a remote judge is told about whose answers it scores."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class ModelDescription(BaseModel):
    """Goes to remote members as `ScoreRequest.policy`; never into a log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    parameters: int = Field(ge=0, description="trainable and frozen")
    architecture: str = Field(description="the model's class")
    vocabulary: int = Field(ge=0, description="tokens; 0: not known")
    task: str = Field(min_length=1, description="what it is trained to do, one or two sentences")
    good_answer: str = Field(default="", description="what a good answer looks like")
    example_input: str = ""
    example_output: str = Field(default="", description="a good answer to the example input")

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any = None, *, task: str, **said: str) -> Self:
        """What can be read off a model (anything with `parameters()`), with what only its owner knows."""
        config = getattr(model, "config", None)
        architecture = type(model).__name__
        return cls(
            name=said.pop("name", "") or getattr(config, "name_or_path", "").rsplit("/", 1)[-1] or architecture,
            parameters=sum(int(parameter.numel()) for parameter in model.parameters()),
            architecture=architecture,
            vocabulary=len(tokenizer) if tokenizer is not None else int(getattr(config, "vocab_size", 0) or 0),
            task=task,
            **said,
        )

    def to_agent_prompt(self) -> str:
        """Plain text, one fact a line; what is not known is left out."""
        lines = [
            f"Model in training: {self.name}, a {self.architecture} with {_count(self.parameters)} parameters"
            + (f" and a vocabulary of {self.vocabulary:,} tokens." if self.vocabulary else "."),
            f"Task: {self.task}",
        ]
        if self.good_answer:
            lines.append(f"A good answer: {self.good_answer}")
        if self.example_input:
            lines.append(f"Example input: {self.example_input!r}")
        if self.example_output:
            lines.append(f"Good answer to the example: {self.example_output!r}")
        return "\n".join(lines)


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
