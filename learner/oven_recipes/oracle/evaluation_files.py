"""The whole evaluation at the start and at the end of a run, as JSON and a reliability diagram in the run's folder."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from oven_core.errors import OvenError
from oven_core.files import write_atomic
from oven_learner.random_state import undisturbed
from oven_recipes.oracle.evaluation import OracleEvaluation
from oven_recipes.oracle.evaluation_report import EvaluationReport
from oven_recipes.oracle.reliability_diagram import write_diagram

log = logging.getLogger("oven.learner")


class EvaluationFiles(TrainerCallback):
    """Writes `evaluation-start.json`, `evaluation-end.json` and a PNG beside each. Measuring changes no bit of the
    training, and a failure of it does not end one: the process log says why the files are missing. As a callback it
    evaluates at the start; at the end the weights that the run ends with are chosen after callbacks were called."""

    def __init__(self, evaluation: OracleEvaluation, policy: Any, folder: Path, *, at_start: bool) -> None:
        self._evaluation, self._policy, self._folder, self._at_start = evaluation, policy, folder, at_start

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._at_start and state.global_step == 0 and state.is_world_process_zero:
            self.write("start", 0)

    def write(self, when: str, step: int) -> None:
        """Evaluates now."""
        began, cpu = time.monotonic(), time.process_time()
        try:
            with undisturbed(self._policy):
                evaluated = self._evaluation.run()
            report = EvaluationReport(
                oracle=f"at the {when}, step {step}",
                benchmarks=self._evaluation.benchmarks,
                percents=self._evaluation.percents,
                unknown_share=self._evaluation.unknown_share,
                evaluated=evaluated,
                seconds=time.monotonic() - began,
                cpu_seconds=time.process_time() - cpu,
            )
            file = self._folder / f"evaluation-{when}.json"
            write_atomic(file, json.dumps(report.plain()))
            write_diagram(file.with_suffix(".png"), f"step {step}", evaluated.overall)
        except (OvenError, OSError) as error:
            log.warning("the evaluation at the %s could not be written: %s", when, error)
            return
        log.info("evaluation at the %s: %s", when, file)
        for line in report.lines():
            log.info("%s", line)
