"""The `supervise diagnose` command: diagnose a run from its log, and optionally have a model look further."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from oven_agents.diagnosis.engine import find_findings
from oven_agents.diagnosis.finding import Finding
from oven_agents.runtime.kg_client import answer_requests
from oven_controller.cli.options import PATH, json_option, print_result, run_argument
from oven_controller.finding_report import finding_lines
from oven_controller.importing.open_log import open_log
from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.mesh.actuator_values import show
from oven_core.protocol.messages import Observation
from oven_core.terminal_text import wrapped
from oven_kg.service.endpoints import load_prior_service
from oven_llm.diagnosis.graph_diagnosis import ask_graph
from oven_llm.diagnosis.log_context import LogContext, shown_settings
from oven_llm.diagnosis.model_answer import Diagnosis
from oven_llm.diagnosis.model_diagnosis import MAX_ITERATIONS, DiagnosisResult, diagnose
from oven_llm.providers.budget import Budget
from oven_llm.supervisor.model_handlers import MAX_TOKENS, configured_model


@click.command()
@run_argument(help_="A run, its folder, its log.jsonl, or logs to import.")
@click.option("--model", default="", show_default=False, help="Model that writes programs to analyse the log.")
@click.option("--worker-model", default="", show_default="the same", help="Model that the programs may call.")
@click.option(
    "--base-url",
    default="",
    show_default=False,
    metavar="URL",
    help="Chat completions endpoint of both models, including /v1.",
)
@click.option("--key-env", show_default="the provider's", help="Variable with the key.")
@click.option("--until", type=click.IntRange(min=1), metavar="TICK", help="Read the log up to this tick.")
@click.option(
    "--knob",
    multiple=True,
    metavar="NAME",
    show_default="all settings",
    help="Knob that the model may propose; repeatable.",
)
@click.option(
    "--max-iterations", type=click.IntRange(min=1), default=MAX_ITERATIONS, help="Maximum turns of the model."
)
@click.option("--usd", type=float, show_default="none", help="Limit in US dollars.")
@click.option("--tokens", type=int, show_default="none", help="Limit on tokens.")
@click.option("--log-dir", type=PATH, metavar="DIR", help="Write the conversation to this folder.")
@json_option
def diagnose_run(
    run: str | None,
    model: str,
    worker_model: str,
    base_url: str,
    key_env: str | None,
    until: int | None,
    knob: Sequence[str],
    max_iterations: int,
    usd: float | None,
    tokens: int | None,
    log_dir: Path | None,
    as_json: bool,
) -> int:
    """Diagnose what went wrong in a run, when it began, and why. The findings come from the metrics, the agents' votes,
    and the results of decisions. With --model, a model also writes programs to analyse the log, and every figure in its
    answer is recomputed.

    Exit code 1 if the model gave no valid diagnosis.

    Example: oven-controller supervise diagnose grpo-1121-0231 --model qwen3 --base-url http://127.0.0.1:8000/v1
    """
    if bool(model) != bool(base_url):
        raise ConfigError("--model and --base-url must be used together, e.g. --base-url http://127.0.0.1:8000/v1")
    if run is None:
        raise ConfigError("no run is named; `oven-controller runs` lists the runs")
    log, config = _read_log(run, until)
    findings = find_findings(log)
    result: DiagnosisResult | None = None
    if model:
        graph_view = answer_requests(ask_graph(log.alarms, log.started), load_prior_service())
        budget = Budget.with_caps(usd, tokens)  # not closed, because abandoned calls may still use it
        options: Any = {"temperature": None, "max_tokens": MAX_TOKENS, "budget": budget}
        with (
            configured_model("supervisor", model, base_url, key_env, **options) as supervisor,
            configured_model("worker", worker_model or model, base_url, key_env, **options) as worker,
        ):
            limits: Any = {"knobs": knob or None, "max_iterations": max_iterations, "log_dir": log_dir}
            result = asyncio.run(diagnose(log, graph_view, supervisor, worker, config=config, **limits))
    lines = (line for text in _report_lines(run, log, findings, result) for line in wrapped(text))
    print_result(as_json, _report_fields(run, log, findings, result), lines)
    return int(result is not None and result.diagnosis is None)


def _read_log(source: str, until: int | None) -> tuple[LogContext, dict[str, Any]]:
    """Return the log, and the run's settings if its folder has them. Raises ConfigError without observations."""
    with open_log(source) as opened_log:
        log = LogContext(columns=opened_log.columns)
        for event in opened_log.events():
            if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                break
            log.add(event)
    if not log.ticks:
        limit = f" up to tick {until}" if until else ""
        raise ConfigError(
            f"there is nothing to diagnose: the log of {opened_log.run} has no observations{limit}; wait for the run's "
            "first steps, or name another run"
        )
    config: dict[str, Any] = {}
    folder = opened_log.folder
    if folder is not None and (folder / "config.json").is_file():
        with contextlib.suppress(ValueError, RecursionError):
            config = shown_settings(json.loads(read_file(folder / "config.json", "the run's settings", 1 << 22)))
    return log, config


def _report_fields(
    run: str, log: LogContext, findings: Sequence[Finding], result: DiagnosisResult | None
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "run": run,
        "observations": log.observation_count,
        "ticks": [log.ticks[0], log.ticks[-1]],
        "findings": [finding.model_dump() for finding in findings],
        "model": None,
    }
    if result is not None:
        report["model"] = {
            "diagnosis": result.diagnosis.as_json() if result.diagnosis else None,
            "failure": result.failure_kind or None,
            "reason": result.failure_reason,
            "calls": result.conversation.calls,
            "cost_usd": result.conversation.cost_usd,
            "seconds": round(result.conversation.elapsed, 3),
        }
    return report


def _report_lines(
    run: str, log: LogContext, findings: Sequence[Finding], result: DiagnosisResult | None
) -> Iterator[str]:
    yield f"{run}: {log.observation_count} observations, ticks {log.ticks[0]} to {log.ticks[-1]}"
    yield from finding_lines(findings, log)
    if result is None:
        yield "no model was used; add --model NAME --base-url URL to have a model analyse the log"
    elif result.diagnosis is None:
        yield f"the model gave no valid answer ({result.failure_kind}): {result.failure_reason}"
    else:
        yield f"diagnosis from the model: {_diagnosis_text(result.diagnosis)}"
    if result is not None:
        cost_usd = result.conversation.cost_usd
        cost = "at an unknown price" if cost_usd is None else f"for {cost_usd:.4f} USD"
        yield f"{result.conversation.calls} calls in {result.conversation.elapsed:.1f} s, {cost}"


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    if not diagnosis.evidence:
        return diagnosis.cause
    figures = "; ".join(
        f"{item.metric} {show(item.value)} at ticks {item.from_} to {item.to}" for item in diagnosis.evidence
    )
    change = f"; set {diagnosis.knob} to {show(diagnosis.value)}" if diagnosis.knob else ""
    revert = f", and revert if {diagnosis.revert_if.describe()}" if diagnosis.revert_if else ""
    onset = f"{diagnosis.cause} since tick {diagnosis.onset}"
    return f"{onset} ({figures}){change}{revert}, confidence {diagnosis.confidence:.2f}"
