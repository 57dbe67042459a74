"""`oven-controller oracle evaluate | ask`: test an oracle on the nine benchmarks, or ask it about a text."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from oven_core.errors import ConfigError, reason
from oven_core.terminal_text import say
from oven_learner.rewards.calibrated import parse_oracle_output
from oven_recipes.activations.capture import capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.model_blocks import layer_at
from oven_recipes.oracle.benchmarks import BENCHMARKS, FALSE
from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items, check_text
from oven_recipes.oracle.evaluation_report import EvaluationReport
from oven_recipes.oracle.generated_answers import generated_answers
from oven_recipes.quiet_libraries import quiet_libraries

REPORT, DIAGRAM = "evaluation.json", "reliability.png"


def evaluate(
    path: Path,
    *,
    benchmarks: Path | None,
    items: int,
    percents: Sequence[float] | None,
    temperature: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the evaluation and print it. Raises ConfigError for faults in the oracle, the files or `out`."""
    _writable(out)
    chosen = benchmark_items(benchmarks, items)
    quiet_libraries()
    from oven_recipes.oracle.saved_oracle import load_oracle

    oracle = load_oracle(path)
    evaluation = OracleEvaluation(
        oracle.model,
        oracle.tokenizer,
        ActivationInjection(oracle.model, oracle.tokenizer),
        chosen,
        percents=percents or oracle.trained.layer_percents,
        tokens=oracle.trained.most_activations,
        max_new_tokens=oracle.trained.max_completion_length,
        temperature=temperature,
    )
    report = EvaluationReport.measure(evaluation, str(oracle.path))
    if out is not None:
        report.write(out / REPORT, out / DIAGRAM)
    if as_json:
        print(json.dumps(report.plain()))
        return 0
    say(*report.lines())
    if out is not None:
        say(f"{out / REPORT} and {out / DIAGRAM} have the same")
    return 0


def _writable(out: Path | None) -> None:
    """Check that `out` is writable, so that ConfigError is raised before the work starts."""
    if out is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--out draws a diagram with matplotlib: `pip install "oven-controller[oracle]"`')
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {reason(error)}; name another folder") from error


ABOUT_PAIRS = "snli"
"""Benchmarks about pairs of sentences, whose question does not suit a single text."""


def ask(
    path: Path,
    text: str,
    question: str | None,
    *,
    percents: Sequence[float] | None,
    temperature: float,
    as_json: bool,
) -> int:
    """Print the answers. Raises ConfigError for faults in the oracle, the text or the question."""
    if not text.strip():
        raise ConfigError("the text is empty: there are no activations to ask about")
    if question is not None and not question.strip():
        raise ConfigError("the question is empty; ask something, or leave it out for the benchmarks' questions")
    quiet_libraries()
    from oven_recipes.oracle.saved_oracle import load_oracle

    oracle = load_oracle(path)
    check_text(oracle.model, oracle.tokenizer, text.strip(), "the text")
    depths = tuple(percents or oracle.trained.layer_percents)
    questions = [question] if question is not None else standard_questions()
    layers = {percent: layer_at(oracle.model, percent) for percent in depths}
    captured = capture(
        oracle.model,
        oracle.tokenizer,
        [text.strip()],
        list(dict.fromkeys(layers.values())),
        oracle.trained.most_activations,
    )
    by_layer = {activation.layer: activation for activation in captured}
    pairs = [(question, percent) for question in questions for percent in depths]
    outputs = generated_answers(
        oracle.model,
        oracle.tokenizer,
        ActivationInjection(oracle.model, oracle.tokenizer),
        [by_layer[layers[percent]] for _, percent in pairs],
        [question for question, _ in pairs],
        max_new_tokens=oracle.trained.max_completion_length,
        temperature=temperature,
    )
    answers = [_answer(question, percent, output) for (question, percent), output in zip(pairs, outputs, strict=True)]
    if as_json:
        print(json.dumps({"oracle": str(oracle.path), "answers": answers}))
        return 0
    for question in questions:
        say(question)
        say(*(_line(answer) for answer in answers if answer["question"] == question))
    return 0


def standard_questions() -> list[str]:
    """Return the benchmarks' questions that suit any text."""
    return [
        question
        for name, benchmark in BENCHMARKS.items()
        if name != ABOUT_PAIRS
        for question, _ in benchmark.questions(FALSE)
    ]


def _answer(question: str, percent: float, output: str) -> dict[str, str | float | None]:
    parsed = parse_oracle_output(output)
    return {
        "question": question,
        "depth": percent,
        "confidence": None if parsed is None else parsed.confidence,
        "answer": None if parsed is None else parsed.text,
        "output": output,
    }


def _line(answer: dict[str, str | float | None]) -> str:
    depth, confidence = answer["depth"], answer["confidence"]
    if confidence is None:
        return f"  at {depth:g} %: not in its format: {answer['output']}"
    return f"  at {depth:g} %: {answer['answer']}  (confidence {confidence:.0%})"
