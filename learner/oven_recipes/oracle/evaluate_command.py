"""`oven-controller oracle evaluate`: an oracle on the nine benchmarks, printed, as JSON, and as files."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_core.terminal_text import say
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items
from oven_recipes.oracle.evaluation_report import EvaluationReport
from oven_recipes.oracle.reliability_diagram import write_diagram
from oven_recipes.quiet_libraries import quiet_libraries

REPORT, DIAGRAM = "evaluation.json", "reliability.png"


def main(
    path: Path,
    *,
    benchmarks: Path | None,
    items: int,
    percents: Sequence[float] | None,
    temperature: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluate and print. Raises ConfigError for faults of the oracle, the files or `out`."""
    _writable(out)
    started, used = time.perf_counter(), time.process_time()
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
    evaluated = evaluation.run()
    report = EvaluationReport(
        oracle=str(oracle.path),
        benchmarks=chosen,
        percents=evaluation.percents,
        unknown_share=evaluation.unknown_share,
        evaluated=evaluated,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - used,
    )
    text = json.dumps(report.plain())
    if out is not None:
        _write(out, text, report)
    if as_json:
        print(text)
        return 0
    say(*report.lines())
    if out is not None:
        say(f"{out / REPORT} and {out / DIAGRAM} have the same")
    return 0


def _writable(out: Path | None) -> None:
    """Raises ConfigError before the work starts, not after it."""
    if out is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--out draws a diagram with matplotlib: `pip install "oven-controller[oracle]"`')
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {reason(error)}; name another folder") from error


def _write(out: Path, text: str, report: EvaluationReport) -> None:
    sources = {benchmark.source for benchmark in report.benchmarks}
    titled = sources.pop() if len(sources) == 1 else "published files and templates"
    try:
        write_atomic(out / REPORT, text + "\n")
    except OSError as error:
        raise ConfigError(f"{out / REPORT} cannot be written: {reason(error)}") from error
    write_diagram(out / DIAGRAM, f"nine benchmarks, {titled}", report.evaluated.overall)
