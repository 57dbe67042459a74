"""Installs what `oven-controller run` asks for by environment variables. Nothing heavy is imported before the script
itself imports it."""

from __future__ import annotations

import os
from functools import partial

from oven_learner.import_hook import after_import

TAP = "OVEN_TAP"
"""Environment variable of `run --tap`."""
AUTO_ATTACH = "OVEN_AUTO_ATTACH"
"""Environment variable of `run --auto-attach`."""
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def install() -> None:
    """Install the hooks of this process. Called once, at its start."""
    if os.environ.get(TAP) == "1":
        from oven_learner.tap.loggers import install as install_tap

        install_tap()
    if os.environ.get(AUTO_ATTACH) == "1":
        after_import("accelerate.accelerator", _attach_loops)
        after_import("accelerate.optimizer", _observe_steps)
        for package in LIGHTNING:
            after_import(f"{package}.trainer.trainer", partial(_add_callback, package))


def register_names() -> None:
    """Make `report_to="oven"` known to transformers and `log_with="oven"` to accelerate, when they are imported."""
    after_import("transformers.integrations.integration_utils", _add_reporter)
    after_import("transformers.trainer", _attach_trainers)
    after_import("accelerate.tracking", _add_tracker)


def _add_reporter(module: object) -> None:
    from oven_learner.integrations import trainers

    trainers.add_reporter(module)


def _attach_trainers(module: object) -> None:
    from oven_learner.integrations import trainers

    trainers.wrap_train(module, attach_all=os.environ.get(AUTO_ATTACH) == "1")


def _add_tracker(module: object) -> None:
    from oven_learner.integrations import tracker

    tracker.register(module)


def _attach_loops(module: object) -> None:
    from oven_learner.integrations import accelerate_loops

    accelerate_loops.wrap_accelerator(module)


def _observe_steps(module: object) -> None:
    from oven_learner.integrations import accelerate_loops

    accelerate_loops.wrap_optimizer(module)


def _add_callback(package: str, module: object) -> None:
    from oven_learner.integrations import lightning

    lightning.wrap_fit(package, module)
