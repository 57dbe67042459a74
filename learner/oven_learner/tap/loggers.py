"""The loggers that the tap observes: for each, the one method that gets the scalars.

The methods are those of classes, because scripts call them in many ways: `wandb.log`, `run.log`, or a trainer's
callback.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

from oven_learner.import_hook import after_import
from oven_learner.tap.tap import Arguments, Logged, Reader, Tap


class LoggingMethod(NamedTuple):
    """A method that a script or a framework calls to log scalars."""

    logger: str
    module: str
    owner: str
    """The class."""
    method: str
    parameter: str
    """Name of the parameter for the values."""
    read: Reader


def _read_mapping(values: Any, arguments: Arguments) -> Logged:
    return [(values, arguments.get("step"))]


def _read_scalar(value: Any, arguments: Arguments) -> Logged:
    return [({_folder(arguments["self"]) + arguments["tag"]: value}, arguments.get("global_step"))]


def _read_scalars(values: Any, arguments: Arguments) -> Logged:
    prefix = f"{_folder(arguments['self'])}{arguments['main_tag']}/"
    return [({prefix + tag: value for tag, value in values.items()}, arguments.get("global_step"))]


HELD_OUT_FOLDERS = ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
"""Names of a SummaryWriter's folder that mean that all its tags are held out."""


def _folder(writer: Any) -> str:
    """Return the prefix that tells the tags of a second writer for validation from those of the first."""
    path = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)  # torch's writer, tensorboardX's writer
    folder = os.path.basename(str(path))
    return f"{folder}/" if folder in HELD_OUT_FOLDERS else ""


def _read_metric(value: Any, arguments: Arguments) -> Logged:
    return [({arguments["key"]: value}, arguments.get("step") or None)]  # MLflow's default is 0


def _read_batch(metrics: Any, _: Arguments) -> Logged:
    return [({metric.key: metric.value}, metric.step or None) for metric in metrics]


TORCH_WRITER = ("TensorBoard", "torch.utils.tensorboard.writer", "SummaryWriter")
OTHER_WRITER = ("tensorboardX", "tensorboardX.writer", "SummaryWriter")
MLFLOW_CLIENT = ("MLflow", "mlflow.tracking.client", "MlflowClient")

METHODS = (
    LoggingMethod("wandb", "wandb.sdk.wandb_run", "Run", "log", "data", _read_mapping),
    LoggingMethod(*TORCH_WRITER, "add_scalar", "scalar_value", _read_scalar),
    LoggingMethod(*TORCH_WRITER, "add_scalars", "tag_scalar_dict", _read_scalars),
    LoggingMethod(*OTHER_WRITER, "add_scalar", "scalar_value", _read_scalar),
    LoggingMethod(*OTHER_WRITER, "add_scalars", "tag_scalar_dict", _read_scalars),
    LoggingMethod("SwanLab", "swanlab.sdk.internal.run", "Run", "log", "data", _read_mapping),
    LoggingMethod("SwanLab", "swanlab.data.run.main", "SwanLabRun", "log", "data", _read_mapping),
    LoggingMethod("trackio", "trackio.run", "Run", "log", "metrics", _read_mapping),
    LoggingMethod(*MLFLOW_CLIENT, "log_metric", "value", _read_metric),
    LoggingMethod(*MLFLOW_CLIENT, "log_batch", "metrics", _read_batch),
    LoggingMethod("verl", "verl.utils.tracking", "Tracking", "log", "data", _read_mapping),
)


def install() -> None:
    """Wrap the methods of the loggers that the process imports."""
    tap = Tap()
    for method in METHODS:
        after_import(method.module, functools.partial(_wrap, method, tap))


def _wrap(method: LoggingMethod, tap: Tap, module: Any) -> None:
    owner = getattr(module, method.owner)
    wrapped = tap.wrap(method.logger, getattr(owner, method.method), method.parameter, method.read)
    setattr(owner, method.method, wrapped)
