"""Defines prompts with questions for an oracle and their known answers, and reads files with questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from oven_core.errors import ConfigError, reason
from oven_runs.traces import jsonl


class KnownAnswer(NamedTuple):
    """Known answers to a question, in lower case. Answers in `specific` are true and specific, and those in `vague` are
    true but vague. All other answers are wrong, and `wrong` has examples of them."""

    specific: tuple[str, ...]
    vague: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """A question about a prompt. If `answer` is None, the answer is unknown and judges score the oracle's answers."""

    text: str
    answer: KnownAnswer | None = None


@dataclass(frozen=True)
class QuestionedPrompt:
    """A prompt and its questions."""

    prompt: str
    questions: tuple[Question, ...]


FORMAT = (
    "one JSON object per line, with wildchat_question, language (both strings) and oracle_questions (a list of strings)"
)

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Line(BaseModel):
    """One line of the file. Additional fields are ignored."""

    wildchat_question: Text
    language: Text
    oracle_questions: Annotated[list[Text], Field(min_length=1)]


def read_questions(path: Path, tokenizer: Any, limit: int | None = None) -> list[QuestionedPrompt]:
    """Read at most `limit` prompts from a file in the format of `ceselder/wildchat-oracle-questions`, in file order:

    {"wildchat_question": "Hey there! …", "language": "english", "oracle_questions": ["Is the user frustrated?", …]}

    The file has no answers, so judges must score the oracle's answers. A repeated prompt is returned once, with all its
    questions. Raises ConfigError, without quoting the prompt, if the file cannot be read, if a line has another format,
    or if a prompt has fewer than two tokens.
    """
    by_prompt: dict[str, QuestionedPrompt] = {}
    for number, values in jsonl.read_rows(path):
        row = _parse_line(path, number, values)
        existing = by_prompt.get(row.wildchat_question)
        if existing is None and limit is not None and len(by_prompt) >= limit:
            break
        earlier_questions = existing.questions if existing else ()
        distinct_questions = dict.fromkeys((*earlier_questions, *map(Question, row.oracle_questions)))
        if existing is None and len(tokenizer(row.wildchat_question)["input_ids"]) < 2:
            raise ConfigError(
                f"{path}, line {number}: the prompt has only one token, but at least two are needed; remove the line"
            )
        by_prompt[row.wildchat_question] = QuestionedPrompt(row.wildchat_question, tuple(distinct_questions))
    if not by_prompt:
        raise ConfigError(f"{path} is empty; expected {FORMAT}")
    return list(by_prompt.values())


def _parse_line(path: Path, number: int, values: dict[str, Any] | jsonl.BadLine) -> _Line:
    try:
        return _Line.model_validate(values)
    except ValidationError as error:
        problem = values.detail if isinstance(values, jsonl.BadLine) else reason(error)
        raise ConfigError(f"{path}, line {number}: {problem}; expected {FORMAT}") from None
