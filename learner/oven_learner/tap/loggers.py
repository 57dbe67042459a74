"""The loggers that the tap observes: for each, the one method that gets the scalars.

The logger's own method runs first and unchanged. A logger that calls another one, as verl's Tracking does, is observed
once. The methods are those of classes, because scripts call them in many ways: `wandb.log`, `run.log`, or a trainer's
callback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from oven_learner.import_hook import after_import
from oven_learner.tap.tap import Logged, Tap


class LoggingMethod(NamedTuple):
    """A method that a script or a framework calls to log scalars."""

    logger: str
    module: str
    owner: str
    """The class."""
    method: str
    read: Callable[..., Logged]
    """Gets the arguments of the method, and returns what was logged."""


def _read_data(_run: Any, data: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Logged:
    return [(data, step)]


def _read_metrics(_run: Any, metrics: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Logged:
    return [(metrics, step)]


def _read_scalar(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> Logged:
    return [({_folder(writer) + tag: scalar_value}, global_step)]


def _read_scalars(
    writer: Any, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *_: Any, **__: Any
) -> Logged:
    return [({f"{_folder(writer)}{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)]


HELD_OUT_FOLDERS = ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
"""Names of a SummaryWriter's folder that mean that all its tags are held out."""


def _folder(writer: Any) -> str:
    """Return the prefix that tells the tags of a second writer for validation from those of the first."""
    path = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)  # torch's writer, tensorboardX's writer
    folder = os.path.basename(str(path))
    return f"{folder}/" if folder in HELD_OUT_FOLDERS else ""


def _read_metric(
    _client: Any, _run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None, **_: Any
) -> Logged:
    return [({key: value}, step or None)]  # MLflow's default is 0


def _read_batch(_client: Any, run_id: str, metrics: Iterable[Any] = (), *_: Any, **__: Any) -> Logged:
    return [({metric.key: metric.value}, metric.step or None) for metric in metrics]


METHODS = (
    LoggingMethod("wandb", "wandb.sdk.wandb_run", "Run", "log", _read_data),
    LoggingMethod("TensorBoard", "torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar", _read_scalar),
    LoggingMethod("TensorBoard", "torch.utils.tensorboard.writer", "SummaryWriter", "add_scalars", _read_scalars),
    LoggingMethod("tensorboardX", "tensorboardX.writer", "SummaryWriter", "add_scalar", _read_scalar),
    LoggingMethod("tensorboardX", "tensorboardX.writer", "SummaryWriter", "add_scalars", _read_scalars),
    LoggingMethod("SwanLab", "swanlab.sdk.internal.run", "Run", "log", _read_data),
    LoggingMethod("SwanLab", "swanlab.data.run.main", "SwanLabRun", "log", _read_data),
    LoggingMethod("trackio", "trackio.run", "Run", "log", _read_metrics),
    LoggingMethod("MLflow", "mlflow.tracking.client", "MlflowClient", "log_metric", _read_metric),
    LoggingMethod("MLflow", "mlflow.tracking.client", "MlflowClient", "log_batch", _read_batch),
    LoggingMethod("verl", "verl.utils.tracking", "Tracking", "log", _read_data),
)


def install() -> None:
    """Wrap the methods of the loggers that the process imports."""
    tap = Tap()
    for method in METHODS:
        after_import(method.module, functools.partial(_wrap, method, tap))


def _wrap(method: LoggingMethod, tap: Tap, module: Any) -> None:
    owner = getattr(module, method.owner)
    setattr(owner, method.method, tap.wrap(method.logger, getattr(owner, method.method), method.read))
