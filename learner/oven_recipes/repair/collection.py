"""Record rollouts as traces without training, by TRL's evaluation in the environment `repair`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, set_seed

from oven_core.errors import ProcessError
from oven_recipes.environments.instance import Instance
from oven_recipes.environments.openenv_client import served
from oven_recipes.environments.repositories import Repositories
from oven_recipes.environments.sandboxed_tests import SandboxedTests
from oven_recipes.repair.job import local, repair_trainer, rows_of
from oven_recipes.repair.settings import RepairSettings, parse_start
from oven_runs.traces.records import Trace


def collected(
    settings: RepairSettings,
    instances: Sequence[Instance],
    seed: int,
    cache: Path,
    *,
    policy_seed: int | None = None,
    repositories: Path | None = None,
    openenv: bool = False,
) -> list[Trace]:
    """Return the traces of `group_size` attempts at each instance, by the warm policy of `policy_seed` (None: of
    `seed`).

    It seeds torch's global generator: the same arguments give the same traces, whether calls run here or behind
    OpenEnv. Raises ConfigError for an instance whose repository is missing, and ProcessError if an attempt was not
    recorded.
    """
    traces: list[Trace] = []
    tests = SandboxedTests()
    different = list({instance.instance_id: instance for instance in instances}.values())
    with contextlib.ExitStack() as exits:
        environment: Callable[[], Any] = local(different, tests, Repositories(repositories))
        if openenv:
            environment = exits.enter_context(served(different, repositories))
        work = exits.enter_context(tempfile.TemporaryDirectory(prefix="oven-collect-"))
        trainer = repair_trainer(
            settings,
            parse_start("tuned", seed, settings),
            seed,
            Path(work),
            cache,
            tests=tests,
            policy_seed=policy_seed,
            instances=different,
            environment=environment,
            sink=traces.append,
            split="collected",
            per_device_eval_batch_size=settings.prompts_per_step * settings.group_size,
        )
        trainer.remove_callback(PrinterCallback)
        set_seed(seed)
        trainer.evaluate(eval_dataset=rows_of(instances))
    if len(traces) != (wanted := len(instances) * settings.group_size):
        raise ProcessError(f"{len(traces)} of {wanted} attempts were recorded; the warning above says why")
    return traces
