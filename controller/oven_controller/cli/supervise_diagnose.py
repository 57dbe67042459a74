"""`supervise diagnose RUN`: what is wrong with a run, by its log: by statistics and the graph, and by a model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli.options import Json
from oven_controller.importing.log_source import opened
from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.mesh.actuator_values import show
from oven_core.protocol.messages import Observation
from oven_core.terminal_text import say, wrapped
from oven_kg.service.endpoints import answers
from oven_llm.diagnosis.diagnosing import MAX_ITERATIONS, DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import GraphView, by_detectors, view
from oven_llm.diagnosis.log_context import LogContext, shown_settings
from oven_llm.diagnosis.model_answer import Diagnosis
from oven_llm.supervisor.caps import Caps
from oven_llm.supervisor.configured_models import configured_model
from oven_llm.supervisor.log import Role
from oven_llm.supervisor.models import MAX_TOKENS, ModelHandler

SHOWN = 12
"""Alarms that are printed; --json has all."""


def diagnose_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, its folder or log.jsonl, or what `import` reads.")],
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Have this model write programs over the log.")
    ] = "",
    worker_model: Annotated[
        str, typer.Option(metavar="NAME", help="Which its programs may ask.", show_default="the same")
    ] = "",
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="Of the server that has them, with /v1; it speaks chat completions.")
    ] = "",
    key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the key.", show_default="that of the server"),
    ] = None,
    until: Annotated[int | None, typer.Option(metavar="TICK", min=1, help="Read no further than this tick.")] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A knob that it may propose for; repeatable.", show_default="all settings"),
    ] = None,
    max_iterations: Annotated[int, typer.Option(min=1, help="Turns of the model at most.")] = MAX_ITERATIONS,
    usd: Annotated[float | None, typer.Option(help="Stop at so many US dollars.", show_default="no cap")] = None,
    tokens: Annotated[int | None, typer.Option(help="Stop at so many tokens.", show_default="no cap")] = None,
    log_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the conversation there.")] = None,
    as_json: Json = False,
) -> int:
    """Say what is wrong with a run, since when and why. Statistics and the knowledge graph answer first; with --model,
    a model also writes programs over the log, and every figure that it states is computed again.

    Exit code 1 if the model gave no valid diagnosis.

    Example: oven-controller supervise diagnose grpo-1121-0231 --model qwen3 --base-url http://127.0.0.1:8000/v1
    """
    if bool(model) != bool(base_url):
        raise ConfigError("a model needs both --model NAME and --base-url URL, e.g. http://127.0.0.1:8000/v1")
    log, config = _read(run, until)
    ask = answers()
    seen = view(log.alarms, log.started, ask)
    plain = by_detectors(log, seen)
    found: DiagnosisResult | None = None
    if model:
        caps = Caps(usd=usd, tokens=tokens)
        named = model, worker_model or model
        found = asyncio.run(_asked(log, seen, named, base_url, key_env, caps, config, knob, max_iterations, log_dir))
    if as_json:
        print(json.dumps(_object(run, log, seen, plain, found)))
    else:
        say(*(line for text in _lines(run, log, seen, plain, found) for line in wrapped(text)))
    return int(found is not None and found.diagnosis is None)


def _read(run: str, until: int | None) -> tuple[LogContext, dict[str, Any]]:
    """The log, and the run's settings where its folder has them. Raises ConfigError for a log without observations."""
    log = LogContext()
    with opened(run) as (name, events, folder):
        for event in events():
            if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                break
            log.take(event)
    if not log.ticks:
        raise ConfigError(
            f"the log of {name} holds no observation{f' up to tick {until}' if until else ''}, so there is nothing to "
            "diagnose; let the run make its first steps, or give a log with measurements"
        )
    config: dict[str, Any] = {}
    if folder is not None and (folder / "config.json").is_file():
        with contextlib.suppress(ValueError, RecursionError):
            config = shown_settings(json.loads(read_file(folder / "config.json", "the run's settings", 1 << 22)))
    return log, config


async def _asked(
    log: LogContext,
    seen: GraphView,
    models: tuple[str, str],
    base_url: str,
    key_env: str | None,
    caps: Caps,
    config: dict[str, Any],
    knobs: Sequence[str] | None,
    max_iterations: int,
    log_dir: Path | None,
) -> DiagnosisResult:
    def handler(role: Role, name: str) -> ModelHandler:
        return configured_model(role, name, base_url, key_env, temperature=None, max_tokens=MAX_TOKENS)

    with handler("supervisor", models[0]) as supervisor, handler("worker", models[1]) as worker:
        return await diagnose(
            log, seen, supervisor, worker,
            caps=caps, config=config, knobs=knobs, max_iterations=max_iterations, log_dir=log_dir,
        )  # fmt: skip


def _object(
    run: str, log: LogContext, seen: GraphView, plain: Diagnosis, found: DiagnosisResult | None
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "run": run,
        "observations": len(log.ticks),
        "ticks": [log.ticks[0], log.ticks[-1]],
        "alarms": [alarm.plain() for alarm in log.alarms],
        "graph": seen.plain(),
        "by_detectors": plain.plain(),
        "model": None,
    }
    if found is not None:
        told["model"] = {
            "diagnosis": found.diagnosis.plain() if found.diagnosis else None,
            "failure": found.kind or None,
            "why": found.why,
            "calls": found.result.calls,
            "cost_usd": found.cost_usd,
            "seconds": round(found.result.elapsed, 3),
        }
    return told


def _lines(run: str, log: LogContext, seen: GraphView, plain: Diagnosis, found: DiagnosisResult | None) -> list[str]:
    lines = [f"{run}: {len(log.ticks)} observations, ticks {log.ticks[0]} to {log.ticks[-1]}"]
    shown = sorted(log.alarms, key=lambda alarm: -alarm.size)[:SHOWN]
    lines += [
        f"  {alarm.symptom}: {alarm.metric} {alarm.before:.4g} → {alarm.after:.4g} since tick {alarm.onset} "
        f"({alarm.detector}, {alarm.size:.0f} standard deviations)"
        for alarm in sorted(shown, key=lambda alarm: alarm.onset)
    ]
    if len(log.alarms) > SHOWN:
        lines.append(f"  and {len(log.alarms) - SHOWN} weaker ones")
    if not log.alarms:
        lines.append("  no alarm: no metric that is watched changed for good")
    if seen.ranked:
        ranked = ", ".join(f"{cause} ({p:.2f})" for cause, p in seen.ranked[:5])
        lines.append(f"most likely causes by the knowledge graph (ranks, not probabilities): {ranked}")
    lines.append(f"by statistics and the graph alone: {_said(plain)}")
    if found is None:
        lines.append("no model was asked; --model NAME --base-url URL has one write programs over the log")
    elif found.diagnosis is None:
        lines.append(f"the model gave no answer that holds ({found.kind}): {found.why}")
    else:
        lines.append(f"by the model: {_said(found.diagnosis)}")
    if found is not None:
        cost = "at a price that is not known" if found.cost_usd is None else f"for {found.cost_usd:.4f} USD"
        lines.append(f"{found.result.calls} calls in {found.result.elapsed:.1f} s, {cost}")
    return lines


def _said(found: Diagnosis) -> str:
    if not found.evidence:
        return found.cause
    figures = "; ".join(f"{one.metric} {show(one.value)} at ticks {one.from_} to {one.to}" for one in found.evidence)
    change = f"; set {found.knob} to {show(found.value)}" if found.knob else ""
    back = f", and back if {found.revert_if.text()}" if found.revert_if else ""
    return f"{found.cause} since tick {found.onset} ({figures}){change}{back}, confidence {found.confidence:.2f}"
