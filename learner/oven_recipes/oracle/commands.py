"""The commands `oven-controller oracle evaluate` and `oven-controller oracle ask`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from oven_core.errors import ConfigError, reason
from oven_core.terminal_text import say
from oven_learner.rewards.calibrated_reward import parse_oracle_output
from oven_recipes.activations.capture import capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.model_blocks import layer_at
from oven_recipes.oracle.benchmarks import BENCHMARKS, FALSE
from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items, check_text
from oven_recipes.oracle.evaluation_report import EvaluationReport
from oven_recipes.oracle.generated_answers import generate_answers
from oven_recipes.quiet_libraries import quiet_libraries

REPORT_FILE, DIAGRAM_FILE = "evaluation.json", "reliability.png"


def evaluate(
    path: Path,
    *,
    benchmarks: Path | None,
    items: int,
    depths: Sequence[float] | None,
    temperature: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluate an oracle on the nine benchmarks and print the report. Raises ConfigError if the oracle, the benchmark
    files or `out` cannot be used."""
    _create_output_folder(out)
    chosen_items = benchmark_items(benchmarks, items)
    quiet_libraries()
    from oven_recipes.oracle.saved_oracle import load_oracle

    oracle = load_oracle(path)
    evaluation = OracleEvaluation(
        oracle.model,
        oracle.tokenizer,
        ActivationInjection(oracle.model, oracle.tokenizer),
        chosen_items,
        depths=depths or oracle.record.layer_percents,
        tokens=oracle.record.most_activations,
        max_new_tokens=oracle.record.max_completion_length,
        temperature=temperature,
    )
    report = EvaluationReport.measure(evaluation, str(oracle.path))
    if out is not None:
        report.write(out / REPORT_FILE, out / DIAGRAM_FILE)
    if as_json:
        print(json.dumps(report.as_json()))
        return 0
    say(*report.lines())
    if out is not None:
        say(f"wrote this report to {out / REPORT_FILE} and {out / DIAGRAM_FILE}")
    return 0


def _create_output_folder(out: Path | None) -> None:
    """Create the folder `out` before the evaluation starts. Raises ConfigError if the folder cannot be used."""
    if out is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--out requires matplotlib for its diagram: `pip install "oven-controller[oracle]"`')
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"could not create --out {out}: {reason(error)}; choose another folder") from error


PAIR_BENCHMARK = "snli"
"""The benchmark about pairs of sentences. Its question makes no sense for a single text."""


def ask(
    path: Path, text: str, question: str | None, *, depths: Sequence[float] | None, temperature: float, as_json: bool
) -> int:
    """Ask an oracle about a text and print the answers. Raises ConfigError if the oracle, the text or the question
    cannot be used."""
    if not text.strip():
        raise ConfigError("the text is empty; expected text with at least two tokens")
    if question is not None and not question.strip():
        raise ConfigError("the question is empty; enter a question, or omit it to ask the benchmarks' questions")
    quiet_libraries()
    from oven_recipes.oracle.saved_oracle import load_oracle

    oracle = load_oracle(path)
    check_text(oracle.model, oracle.tokenizer, text.strip(), "the text")
    questions = [question] if question is not None else standard_questions()
    layer_by_depth = {depth: layer_at(oracle.model, depth) for depth in depths or oracle.record.layer_percents}
    layers = list(dict.fromkeys(layer_by_depth.values()))
    activations = capture(oracle.model, oracle.tokenizer, [text.strip()], layers, oracle.record.most_activations)
    activation_by_layer = {activation.layer: activation for activation in activations}
    requests = [(question, depth) for question in questions for depth in layer_by_depth]
    outputs = generate_answers(
        oracle.model,
        oracle.tokenizer,
        ActivationInjection(oracle.model, oracle.tokenizer),
        [activation_by_layer[layer_by_depth[depth]] for _, depth in requests],
        [question for question, _ in requests],
        max_new_tokens=oracle.record.max_completion_length,
        temperature=temperature,
    )
    answers = [_parse_answer(*request, output) for request, output in zip(requests, outputs, strict=True)]
    if as_json:
        print(json.dumps({"oracle": str(oracle.path), "answers": answers}))
        return 0
    for question in questions:
        say(question)
        say(*(_answer_line(answer) for answer in answers if answer["question"] == question))
    return 0


def standard_questions() -> list[str]:
    """Return the benchmarks' questions that can be asked about any text."""
    return [
        question
        for name, benchmark in BENCHMARKS.items()
        if name != PAIR_BENCHMARK
        for question, _ in benchmark.questions(FALSE)
    ]


def _parse_answer(question: str, depth: float, output: str) -> dict[str, str | float | None]:
    parsed = parse_oracle_output(output)
    return {
        "question": question,
        "depth": depth,
        "confidence": None if parsed is None else parsed.confidence,
        "answer": None if parsed is None else parsed.text,
        "output": output,
    }


def _answer_line(answer: dict[str, str | float | None]) -> str:
    depth, confidence = answer["depth"], answer["confidence"]
    if confidence is None:
        return f"  at {depth:g} %: could not parse: {answer['output']}"
    return f"  at {depth:g} %: {answer['answer']}  (confidence {confidence:.0%})"
