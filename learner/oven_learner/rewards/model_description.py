"""The description of the model in training that remote judges read."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class ModelDescription(BaseModel):
    """A description of the model in training. Requests contain it as `ScoreRequest.policy`. It is never logged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    parameters: int = Field(default=0, ge=0, description="number of all parameters, or 0 if unknown")
    architecture: str = Field(default="model", min_length=1, description="the model's class, or a description of it")
    vocabulary: int = Field(default=0, ge=0, description="number of tokens, or 0 if unknown")
    description: str = Field(min_length=1, description="the purpose of its training, in one or two sentences")
    modality: str = Field(default="text", min_length=1, description="the modality of its answers: text, motion, …")
    domain: str = Field(default="", description="the field of its tasks")
    output_format: str = Field(default="", description="the required format of an answer")
    scoring_guidance: str = Field(default="", description="the qualities of a good answer, and what to penalise")
    use_verifier: bool = Field(
        default=False, description="a program also checks the answers, so judges only score what it cannot check"
    )
    example_input: str = ""
    example_output: str = Field(default="", description="a good answer to the example input")

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any = None, *, description: str, **fields: Any) -> Self:
        """Build a description from a model (anything with `parameters()`) and further fields. Raises ValueError for an
        unknown field, or an empty description."""
        config = getattr(model, "config", None)
        path, architecture = getattr(config, "name_or_path", None) or "", type(model).__name__
        return cls(
            name=fields.pop("name", "") or path.rsplit("/", 1)[-1] or architecture,
            parameters=sum(int(parameter.numel()) for parameter in model.parameters()),
            architecture=fields.pop("architecture", "") or architecture,
            vocabulary=len(tokenizer) if tokenizer is not None else int(getattr(config, "vocab_size", 0) or 0),
            description=description,
            **fields,
        )

    def to_agent_prompt(self) -> str:
        """Return the description as plain text, with one fact per line and without unknown values."""
        sizes = [f"{_format_count(self.parameters)} parameters"] if self.parameters else []
        sizes += [f"a vocabulary of {self.vocabulary:,} tokens"] if self.vocabulary else []
        size_text = f" with {' and '.join(sizes)}" if sizes else ""
        lines = [
            f"Model in training: {self.name}, a {self.architecture}{size_text}.",
            f"Description: {self.description}",
            f"Modality: {self.modality}",
        ]
        details = {"Domain": self.domain, "Output format": self.output_format, "Scoring": self.scoring_guidance}
        lines += [f"{name}: {value}" for name, value in details.items() if value]
        if self.use_verifier:
            lines.append("Verifier: a program checks the answers, too; score what it cannot see.")
        if self.example_input:
            lines.append(f"Example input: {self.example_input!r}")
        if self.example_output:
            lines.append(f"Good answer to the example: {self.example_output!r}")
        return "\n".join(lines)


def _format_count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
