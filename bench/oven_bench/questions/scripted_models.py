"""A supervisor, a worker and a judge that answer by a script, so that their score is known beforehand. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from oven_bench.questions.scripted_programs import FIND, program_for
from oven_llm.tasks import official_score
from oven_llm.tasks.example import Example, Prediction

Plan = Literal["right", "repaired", "prose", "wrong"]
"""Two turns; after a syntax error; after an answer without a program; an answer that is wrong."""
SHARES: Final[tuple[tuple[Plan, float], ...]] = (("right", 0.55), ("repaired", 0.15), ("prose", 0.1), ("wrong", 0.2))
WRONG: Final = "something else"
SUPERVISOR, WORKER, JUDGE = "script-supervisor", "script-worker", "script-judge"
_QUESTION: Final = re.compile(r"About the document “[^”]*”: (.*)")

Messages = Sequence[Mapping[str, Any]]


def plan(question: str) -> Plan:
    """What the supervisor does about this question."""
    draw = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") / 2**64
    for name, share in SHARES:
        draw -= share
        if draw < 0:
            return name
    return SHARES[-1][0]


def own_prediction(example: Example) -> Prediction:
    """What the script comes to."""
    if plan(example.question) == "wrong":
        return Prediction(WRONG)
    return Prediction(example.references[0].answer, example.references[0].evidence)


def own_scores(examples: Sequence[Example]) -> official_score.Scores:
    """What an experiment has to measure of this supervisor."""
    predicted = {one.id: own_prediction(one) for one in examples}
    return official_score.scores(predicted, {one.id: one.references for one in examples})


def reply(model: str, messages: Messages) -> str:
    """A model's answer to a conversation. Raises LookupError for one that none of the three is meant for."""
    last = str(messages[-1]["content"])
    match model:
        case "script-supervisor":
            return _program(messages)
        case "script-worker":
            return _read(last)
        case "script-judge":
            return _verdict(last)
    raise LookupError(f"no script for {model!r}")


def _program(messages: Messages) -> str:
    asked = next(found for one in messages if (found := _QUESTION.search(str(one["content"]))))
    question, turn = str(asked[1]), len([one for one in messages if one["role"] == "assistant"])
    answer = f'FINAL({{"answer": "{WRONG}"}})\n' if plan(question) == "wrong" else program_for(question)
    turns: list[str] = [_fenced(FIND), _fenced(answer)]
    match plan(question):
        case "repaired":
            turns.insert(1, _fenced("found = [\nprint(found)\n"))
        case "prose":
            turns.insert(0, "I would look for the definition first.")
    return turns[min(turn, len(turns) - 1)]


def _fenced(code: str) -> str:
    return f"```repl\n{code}```"


def _read(prompt: str) -> str:
    """The worker: whether a text defines a name, and to a baseline's question the same answer always."""
    asked = re.match(r"Does this text define `([\w.]+)`\? Answer yes or no\.\n\n", prompt)
    if asked is None:
        return json.dumps({"answer": "Yes", "evidence": [1]})
    name = re.escape(asked[1].rpartition(".")[2])
    return "yes" if re.search(rf"\b(?:def|class) {name}\b", prompt[asked.end() :]) else "no"


def _verdict(prompt: str) -> str:
    data = json.loads(prompt)
    given = official_score.normalized(data["answer"])
    correct = any(given == official_score.normalized(one) for one in data["annotators"])
    return json.dumps({"reason": "the same words, or not", "correct": correct})
