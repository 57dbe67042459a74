"""`supervise ask`: one question about a long text, a list or an object."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from oven_core.errors import ConfigError, reason
from oven_core.plugged_command import PluggedCommand
from oven_core.terminal_text import say, wrapped
from oven_llm.supervisor.caps import Caps
from oven_llm.supervisor.configured_models import NO_WORKER_URL, configured_model
from oven_llm.supervisor.context_files import read_context
from oven_llm.supervisor.loop import MAX_ERRORS, MAX_ITERATIONS
from oven_llm.supervisor.orchestrator import CONCURRENCY, WORKER_CTX_K, RunResult, run
from oven_llm.supervisor.repl import OUTPUT_LIMIT

MOST_CALLS: Final = 5000
"""A program that asks in a loop would otherwise ask 10,000 times in each block; 64 MB in pieces for a window of 8,000
tokens are 2,700."""


def ask(
    question: Annotated[str, Argument(metavar="QUESTION", help="What is to be found out.")],
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE…",
            help="The context: text, .json, .jsonl (a list of its lines), - for standard input. Several become a dict "
            "by their names.",
        ),
    ],
    supervisor_model: Annotated[
        str | None, Option(metavar="NAME", help="Writes the programs.", show_default="$SUPERVISOR_MODEL")
    ] = None,
    worker_model: Annotated[
        str | None, Option(metavar="NAME", help="Reads the parts.", show_default="$WORKER_MODEL")
    ] = None,
    base_url: Annotated[
        str | None,
        Option(metavar="URL", help="Endpoint of both.", show_default="$BASE_URL, else https://api.together.xyz/v1"),
    ] = None,
    worker_base_url: Annotated[
        str | None, Option(metavar="URL", help="Endpoint of the worker.", show_default="that of both")
    ] = None,
    key_env: Annotated[
        str | None,
        Option(metavar="NAME", help="Environment variable with the key of --base-url.", show_default="by its address"),
    ] = None,
    worker_key_env: Annotated[
        str | None, Option(metavar="NAME", help="That of --worker-base-url.", show_default="by its address")
    ] = None,
    max_iterations: Annotated[int, Option(help="Turns of the supervisor.")] = MAX_ITERATIONS,
    output_limit: Annotated[int, Option(help="Characters of a block's output that it is shown.")] = OUTPUT_LIMIT,
    worker_ctx_k: Annotated[int, Option(help="Thousands of tokens of the worker's window.")] = WORKER_CTX_K,
    concurrency: Annotated[int, Option(help="Worker calls at a time.")] = CONCURRENCY,
    prompt: Annotated[
        Path | None, Option(metavar="FILE", help="Append this text to the supervisor's system prompt.")
    ] = None,
    max_usd: Annotated[float | None, Option(help="Ask no more after so many US dollars.")] = None,
    max_tokens: Annotated[int | None, Option(help="Ask no more after so many tokens.")] = None,
    max_calls: Annotated[int, Option(help="Ask no more after so many calls.")] = MOST_CALLS,
    max_seconds: Annotated[float | None, Option(help="Ask no more after so many seconds.")] = None,
    max_errors: Annotated[int, Option(help="Turns in a row that may fail.")] = MAX_ERRORS,
    log_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Keep supervisor.jsonl, worker.jsonl and repl.jsonl there.")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Continue the run in --log-dir: what it has paid for is not asked again.")
    ] = False,
    backend: Annotated[
        str | None, Option(metavar="NAME", help="Backend of the sandbox.", show_default="the strongest")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """The exit code: 0 answered, 1 not answered, 3 the supervisor could not be asked. Raises ConfigError."""
    if resume and log_dir is None:
        raise ConfigError("--resume needs --log-dir, the folder of the run that was interrupted")
    if worker_key_env and not worker_base_url:
        raise ConfigError(NO_WORKER_URL)
    caps = Caps(max_usd, max_tokens, max_calls, max_seconds, max_errors)
    context = read_context(files)
    more = "" if prompt is None else _text(prompt)
    other = (worker_base_url, worker_key_env) if worker_base_url else (base_url, key_env)
    with (
        configured_model("supervisor", supervisor_model, base_url, key_env) as supervisor,
        configured_model("worker", worker_model, *other) as worker,
    ):
        result = run(
            question,
            context,
            supervisor,
            worker,
            max_iterations,
            log_dir,
            output_limit,
            worker_ctx_k,
            caps=caps,
            prompt=more,
            resume=resume,
            concurrency=concurrency,
            backend=backend,
        )
    if as_json:
        print(json.dumps(dataclasses.asdict(result)))
    else:
        say(*lines(result))
    if result.answered:
        return 0
    return 3 if result.ended == "failed" else 1  # the models could not be asked; there is no answer


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt {path} cannot be read: {reason(error)}") from None


def lines(result: RunResult) -> list[str]:
    """The answer, or why there is none, and what it took, as printed."""
    if result.answered:
        answer = result.answer if isinstance(result.answer, str) else json.dumps(result.answer, indent=1)
        found = answer.splitlines() or ["(an empty text)"]
    else:
        found = wrapped(f"no answer ({result.ended}): {result.why}")
    supervisor, worker = result.supervisor_usage, result.worker_usage
    cost = "its price is not known" if result.cost_usd is None else f"{result.cost_usd:.4f} USD"
    spent = (
        f"{result.iterations} turns ({result.failed} failed), {result.calls} calls in {result.elapsed:.1f} s; tokens "
        f"in and out: supervisor {supervisor.input_tokens:,} and {supervisor.output_tokens:,}, worker "
        f"{worker.input_tokens:,} and {worker.output_tokens:,}"
        f"{f', and those of {result.unmetered} calls that did not say' if result.unmetered else ''}; {cost}"
    )
    failures = ", ".join(f"{kind} {count}" for kind, count in result.failures.items())
    return [*found, "", *wrapped(spent), *wrapped(f"failed calls: {failures}" if failures else "")]


ASK = PluggedCommand(
    "supervise",
    "ask",
    "Answer one question about a long text: a model writes programs over it, a cheaper one reads the parts.",
    '"Which runs diverged, and when?" log.jsonl --base-url http://127.0.0.1:8000/v1 --log-dir logs/ask',
    ask,
)
