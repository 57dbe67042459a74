"""`oven-controller traces collect`: rollouts of the recipe's policy by TRL, in the environment `repair`, as traces."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from oven_controller.errors import ConfigError
from oven_controller.terminal_text import say
from oven_controller.traces import jsonl
from oven_controller.traces.records import Trace
from oven_learner.environments.instance import Instance, read_instances
from oven_learner.environments.small_functions import tasks
from oven_learner.recipes.repair.settings import RepairSettings, parse_start

UNSEEN = "collected"
"""The seed of the tasks that are attempted where none are named: neither training's nor those of evaluations."""


def main(
    out: Path,
    *,
    rollouts: int,
    instances: Path | None,
    repositories: Path | None,
    openenv: bool,
    seed: int,
    options: dict[str, Any],
    cache: Path,
    as_json: bool,
) -> int:
    """Entry point of oven.commands. Raises ConfigError for what is wrong with instances, repositories and settings."""
    settings = RepairSettings.model_validate(options)
    if out.exists():
        raise ConfigError(f"{out} is there already; name another file, or remove it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {out.absolute().parent}; make it, or name another file")
    attempts = settings.group_size
    wanted = -(-rollouts // attempts)
    chosen = (
        list(read_instances(instances))
        if instances is not None
        else tasks(f"{UNSEEN} {seed}", wanted, evaluation=True, shapes=settings.shapes)
    )
    began, cpu = time.monotonic(), time.process_time()
    traces = collected(settings, [chosen[at % len(chosen)] for at in range(wanted)], seed, cache, repositories, openenv)
    kept = traces[:rollouts]
    jsonl.write(out, kept)
    report = summary(kept) | {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    if as_json:
        print(json.dumps({"file": str(out), **report}))
    else:
        say(*lines(out, report))
    return 0


def collected(
    settings: RepairSettings,
    instances: Sequence[Instance],
    seed: int,
    cache: Path,
    repositories: Path | None = None,
    openenv: bool = False,
) -> list[Trace]:
    """The traces of `group_size` attempts at each instance, by TRL's evaluation: nothing is trained."""
    from transformers import PrinterCallback

    from oven_learner.environments.repositories import Repositories
    from oven_learner.environments.sandboxed_tests import SandboxedTests
    from oven_learner.recipes.repair.job import local, repair_trainer, rows_of

    found: list[Trace] = []
    tests = SandboxedTests()
    different = list({one.instance_id: one for one in instances}.values())
    with contextlib.ExitStack() as exits:
        environment: Callable[[], Any]
        if openenv:
            from oven_learner.environments.openenv_client import served

            environment = exits.enter_context(served(different, repositories))
        else:
            environment = local(different, tests, Repositories(repositories))
        work = exits.enter_context(tempfile.TemporaryDirectory(prefix="oven-collect-"))
        trainer = repair_trainer(
            settings,
            parse_start("tuned"),
            seed,
            Path(work),
            cache,
            tests=tests,
            instances=different,
            environment=environment,
            sink=found.append,
            per_device_eval_batch_size=settings.prompts_per_step * settings.group_size,
        )
        trainer.remove_callback(PrinterCallback)
        with _seeded(seed):
            trainer.evaluate(eval_dataset=rows_of(instances))
    return found


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def summary(traces: Sequence[Trace]) -> dict[str, Any]:
    """Counts for the report."""
    calls = [len(step.action.calls) for trace in traces for step in trace.steps]
    return {
        "traces": len(traces),
        "tasks": len({trace.task.id for trace in traces}),
        "steps": len(calls),
        "calls": sum(calls),
        "solved": sum(bool(trace.solved) for trace in traces),
        "ended": dict(Counter(trace.ended for trace in traces)),
    }


def lines(out: Path, report: dict[str, Any]) -> list[str]:
    """For people."""
    ended = ", ".join(f"{kind} {count}" for kind, count in report["ended"].items())
    return [
        f"{out}: {report['traces']} traces, {report['tasks']} tasks, {report['steps']} steps, {report['calls']} calls",
        f"  solved: {report['solved']} ({report['solved'] / max(1, report['traces']):.2f}); ended: {ended}",
        f"  {report['seconds']:.1f} s, {report['cpu_seconds']:.1f} s of CPU in this process, the warm-up included",
    ]
