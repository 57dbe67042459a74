"""The `supervise run` command: answer a question about a long text, a list or an object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from oven_controller.cli.options import PATH, argument, json_option, print_result
from oven_core.errors import ConfigError, reason
from oven_core.terminal_text import wrapped
from oven_llm.providers.budget import Budget
from oven_llm.supervisor.model_handlers import configured_model
from oven_llm.supervisor.orchestrator import DEFAULT_CONCURRENCY, DEFAULT_CONTEXT_K, DEFAULT_ITERATIONS, RunResult, run
from oven_llm.supervisor.repl import Context
from oven_runs.home.model_spend import SPEND_FILE

USUAL_VARIABLE: Final = "the provider's usual variable"
DEFAULT_CALLS: Final = 5000
"""Default limit on calls, which stops a program with an endless loop. A context of 64 MB needs about 2,700 calls if the
worker's window has 8,000 tokens."""
MAX_OUTPUT_LINES: Final = 3
"""Maximum number of output lines per program that `--trajectory` prints. The log in `--log-dir` has all of them."""


@click.command()
@argument("question", help="The question.")
@argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE…",
    help="The context: a text file, a .json or .jsonl file (a list of its lines), or - for standard input. Several "
    "files become a dict with their names as keys.",
)
@click.option("--supervisor-model", show_default="$SUPERVISOR_MODEL", help="Model that writes the programs.")
@click.option("--worker-model", show_default="$WORKER_MODEL", help="Model that reads the parts.")
@click.option("--base-url", show_default="$BASE_URL, else https://api.together.xyz/v1", help="Endpoint of both models.")
@click.option("--worker-base-url", show_default="--base-url", help="Endpoint of the worker.")
@click.option("--key-env", show_default=USUAL_VARIABLE, help="Variable with the API key.")
@click.option("--worker-key-env", show_default=USUAL_VARIABLE, help="Variable with the API key for --worker-base-url.")
@click.option("--max-iterations", type=int, default=DEFAULT_ITERATIONS, help="Maximum turns of the supervisor.")
@click.option(
    "--worker-ctx-k", type=int, default=DEFAULT_CONTEXT_K, help="Worker's context window, in thousands of tokens."
)
@click.option("--concurrency", type=int, default=DEFAULT_CONCURRENCY, help="Concurrent worker calls.")
@click.option("--max-usd", type=float, help="Limit in US dollars, which no call may exceed.")
@click.option("--max-tokens", type=int, help="Limit on tokens, which no call may exceed.")
@click.option("--max-calls", type=int, default=DEFAULT_CALLS, help="Limit on calls.")
@click.option("--max-seconds", type=float, help="Make no more calls after this many seconds.")
@click.option(
    "--log-dir", type=PATH, metavar="DIR", help="Write supervisor.jsonl, worker.jsonl and repl.jsonl to this folder."
)
@click.option("--resume", is_flag=True, help="Continue the run in --log-dir without repeating its answered calls.")
@click.option("--trajectory", is_flag=True, help="Also print each program and its output.")
@json_option
def run_question(
    question: str,
    files: Sequence[str],
    supervisor_model: str | None,
    worker_model: str | None,
    base_url: str | None,
    worker_base_url: str | None,
    key_env: str | None,
    worker_key_env: str | None,
    max_iterations: int,
    worker_ctx_k: int,
    concurrency: int,
    max_usd: float | None,
    max_tokens: int | None,
    max_calls: int,
    max_seconds: float | None,
    log_dir: Path | None,
    resume: bool,
    trajectory: bool,
    as_json: bool,
) -> int:
    """Answer a question about a long text: a model writes programs over it, and a cheaper model reads the parts.

    Exit code 1 if there is no answer, 3 if the first model could not be called.

    Example: oven-controller supervise run "Which runs diverged?" log.jsonl --base-url http://127.0.0.1:8000/v1
    """
    if resume and log_dir is None:
        raise ConfigError("--resume needs --log-dir with the folder of the interrupted run")
    if worker_key_env and not worker_base_url:
        raise ConfigError(
            "--worker-key-env needs --worker-base-url, because it is the key for that endpoint; --key-env is for "
            "both models"
        )
    context = read_context(files)
    spend_file = log_dir / SPEND_FILE if log_dir is not None else None
    budget = Budget.with_caps(max_usd, max_tokens, max_calls, spend_file)  # not closed: abandoned calls may use it
    worker_endpoint = (worker_base_url, worker_key_env) if worker_base_url else (base_url, key_env)
    with (
        configured_model("supervisor", supervisor_model, base_url, key_env, budget=budget) as supervisor,
        configured_model("worker", worker_model, *worker_endpoint, budget=budget) as worker,
    ):
        result = run(
            question,
            context,
            supervisor,
            worker,
            max_iterations=max_iterations,
            log_dir=log_dir,
            worker_ctx_k=worker_ctx_k,
            seconds=max_seconds,
            resume=resume,
            concurrency=concurrency,
        )
    print_result(as_json, result, [*(trajectory_lines(result) if trajectory else ()), *result_lines(result)])
    if result.answered:
        return 0
    return 3 if result.ended == "failed" else 1


def trajectory_lines(result: RunResult) -> list[str]:
    """Return each program and the first lines of its output, as lines to print."""
    lines: list[str] = []
    for step in result.steps:
        lines.append(f"turn {step.turn} ({step.ended}):")
        lines += [f"  {line}" for line in step.code.splitlines()]
        output = step.output.splitlines()
        lines += [f"  > {line}" for line in output[:MAX_OUTPUT_LINES]]
        if len(output) > MAX_OUTPUT_LINES:
            lines.append(f"  > … {len(output) - MAX_OUTPUT_LINES} more lines")
    return [*lines, ""]


def result_lines(result: RunResult) -> list[str]:
    """Return the answer, or why there is none, and the cost of the run, as lines to print."""
    if result.answered:
        answer = result.answer if isinstance(result.answer, str) else json.dumps(result.answer, indent=1)
        outcome = answer.splitlines() or ["(empty string)"]
    else:
        outcome = wrapped(f"no answer ({result.ended}): {result.reason}")
    supervisor, worker = result.supervisor_usage, result.worker_usage
    cost = "price unknown" if result.cost_usd is None else f"{result.cost_usd:.4f} USD"
    unmetered = f", plus the tokens of {result.unmetered} calls without a usage report" if result.unmetered else ""
    usage = (
        f"{result.iterations} turns ({result.failed} failed), {result.calls} calls in {result.elapsed:.1f} s; input "
        f"and output tokens: supervisor {supervisor.input_tokens:,} and {supervisor.output_tokens:,}, worker "
        f"{worker.input_tokens:,} and {worker.output_tokens:,}{unmetered}; {cost}"
    )
    failures = ", ".join(f"{kind} {count}" for kind, count in result.failures.items())
    return [*outcome, "", *wrapped(usage), *wrapped(f"failed calls: {failures}" if failures else "")]


def read_context(paths: Sequence[str]) -> Context:
    """Return the content of one file, or a dict of several files' contents by name.

    A .json file is read as its value, a .jsonl file as a list of its lines' values, and any other file as text. `-` is
    standard input, as text. Raises ConfigError for a file that cannot be read, is not UTF-8 or has invalid JSON, and
    for a .json file with a value other than a string, list or object.
    """
    return _read_file(paths[0]) if len(paths) == 1 else {path: _read_file(path) for path in paths}


def _read_file(path: str) -> Context:
    try:
        text = (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the context {path} cannot be read: {error.strerror or reason(error)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); convert it, or choose a text file") from None
    suffix = Path(path).suffix.lower()
    if suffix == ".jsonl":
        lines = enumerate(text.split("\n"), 1)
        return [_parse_json(line, f"{path}, line {number},") for number, line in lines if line.strip()]
    if suffix != ".json":
        return text
    value = _parse_json(text, path)
    if not isinstance(value, str | list | dict):
        raise ConfigError(f"{path} contains {text.strip()[:40]}; the context must be a string, a list or an object")
    return value


def _parse_json(text: str, location: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{location} is not valid JSON ({reason(error)}); it may be truncated") from None
