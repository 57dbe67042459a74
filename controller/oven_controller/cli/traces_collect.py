"""The `traces collect` command: record rollouts of the `repair` recipe's warmed-up policy."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from oven_controller.cli.options import PATH, argument, json_option
from oven_core.errors import NO_SPACE, ConfigError, reason
from oven_core.terminal_text import say
from oven_recipes.environments.repair_instance import read_instances
from oven_recipes.repair.settings import RepairSettings
from oven_runs.home.run_folder import Home
from oven_runs.settings.layers import layer_from_set, merge, validate
from oven_runs.traces import jsonl
from oven_runs.traces.trace_records import Trace

TASK_SEED_PREFIX: Final = "collected"
"""Prefix of the tasks' random seed, so that these tasks differ from those for training and evaluation."""


@click.command()
@argument("out", type=PATH, metavar="FILE", help="File of traces to write.")
@click.option("--rollouts", "-n", type=click.IntRange(min=1), default=100, help="Number of traces to collect.")
@click.option(
    "--instances",
    type=PATH,
    metavar="FILE",
    show_default="newly generated tasks",
    help="Tasks with SWE-bench's fields, .json or .jsonl.",
)
@click.option(
    "--repositories", type=PATH, metavar="DIR", help="Checkouts of the instances' repositories, as owner__name."
)
@click.option("--openenv", is_flag=True, help="Run the policy's calls on an OpenEnv server.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Random seed of the tasks and the rollouts.")
@click.option(
    "--policy-seed",
    type=click.IntRange(min=0),
    show_default="the same as --seed",
    help="Random seed of the warmed-up policy.",
)
@click.option("--set", "set_", multiple=True, metavar="A=B", help="A setting of the `repair` recipe; repeatable.")
@json_option
def collect(
    out: Path,
    rollouts: int,
    instances: Path | None,
    repositories: Path | None,
    openenv: bool,
    seed: int,
    policy_seed: int | None,
    set_: Sequence[str],
    as_json: bool,
) -> int:
    """Record traces of the `repair` recipe's policy on tasks that it has not seen. The same command continues after an
    interruption.

    Example: oven-controller traces collect traces.jsonl --rollouts 100
    """
    settings = _parse_settings(set_)
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another file, or remove it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {out.absolute().parent}; create it, or choose another file")
    attempts = math.ceil(rollouts / settings.group_size)  # each attempt at a task is a group of rollouts
    if instances is not None:
        tasks = list(read_instances(instances))
    else:
        tasks = settings.generate_tasks(f"{TASK_SEED_PREFIX} {seed}", attempts, evaluation=True)
    from oven_recipes.quiet_libraries import quiet_libraries

    quiet_libraries()  # before the libraries are imported
    logging.basicConfig(format="%(message)s")
    logging.getLogger("oven_recipes").setLevel(logging.INFO)  # the warm-up takes minutes: show its progress
    from oven_recipes.repair.training_job import collect_traces

    start_time, start_cpu = time.monotonic(), time.process_time()
    attempted_tasks = [tasks[number % len(tasks)] for number in range(attempts)]
    inputs = [settings.model_dump(), attempted_tasks, seed, policy_seed, repositories]
    inputs_hash = hashlib.sha256(repr(inputs).encode()).hexdigest()[:8]
    partial = out.with_name(f"{out.name}.{inputs_hash}.partial")  # a call with other inputs must not continue it
    traces = list(jsonl.read(partial)) if partial.exists() else []
    details: Any = {"policy_seed": policy_seed, "repositories": repositories, "openenv": openenv}
    try:
        for batch in collect_traces(settings, attempted_tasks, seed, Home().cache, finished=len(traces), **details):
            traces += batch
            jsonl.write(partial, traces)
        traces = traces[:rollouts]
        jsonl.write(out, traces)
        partial.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise ConfigError(f"cannot write {out}: {reason(error)}") from error
    duration, cpu_time = time.monotonic() - start_time, time.process_time() - start_cpu
    report = summarize(traces) | {"seconds": duration, "cpu_seconds": cpu_time}
    if as_json:
        print(json.dumps({"file": str(out), **report}))
    else:
        say(*report_lines(out, report))
    return 0


def _parse_settings(assignments: Sequence[str]) -> RepairSettings:
    """Parse NAME=VALUE strings into settings. Raises ConfigError with the invalid setting."""
    layers = [layer_from_set(assignment) for assignment in assignments]
    values: dict[str, Any] = {}
    for layer in layers:
        merge(values, layer.values)
    return validate(RepairSettings, values, "", layers, None)


def summarize(traces: Sequence[Trace]) -> dict[str, Any]:
    """Count the traces, tasks, steps, calls and endings for the report."""
    calls = [len(step.action.calls) for trace in traces for step in trace.steps]
    return {
        "traces": len(traces),
        "tasks": len({trace.task.id for trace in traces}),
        "steps": len(calls),
        "calls": sum(calls),
        "solved": sum(bool(trace.solved) for trace in traces),
        "ended": dict(Counter(trace.ended for trace in traces)),
    }


def report_lines(out: Path, report: dict[str, Any]) -> list[str]:
    """Format the report for people."""
    endings = ", ".join(f"{kind} {count}" for kind, count in report["ended"].items())
    return [
        f"{out}: traces {report['traces']}, tasks {report['tasks']}, steps {report['steps']}, calls {report['calls']}",
        f"  solved: {report['solved']} ({report['solved'] / max(1, report['traces']):.2f}); ended: {endings}",
        f"  {report['seconds']:.1f} s, {report['cpu_seconds']:.1f} s of CPU in this process, including the warm-up",
    ]
