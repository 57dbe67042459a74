"""A stand-in for verl's logger, with the arguments of verl's `Tracking`. It writes to one file, or to TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def _write_line(data: dict[str, Any], step: int) -> None:
    with open(os.environ["TRACKED_FILE"], "a") as out:
        out.write(json.dumps([step, data]) + "\n")


def _tensorboard() -> Callable[[dict[str, Any], int], None]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("tensorboard_log")

    def write(data: dict[str, Any], step: int) -> None:
        for key, value in data.items():
            writer.add_scalar(key, value, step)

    return write


class Tracking:
    """Logs to every backend. This one only has the backends `file` and `tensorboard`."""

    def __init__(
        self, project_name: str, experiment_name: str, default_backend: str | list[str] = "console", config: Any = None
    ) -> None:
        self.logger = {name: _tensorboard() if name == "tensorboard" else _write_line for name in default_backend}

    def log(self, data: dict[str, Any], step: int, backend: str | None = None) -> None:
        for name, write in self.logger.items():
            if backend is None or name in backend:
                write(data, step)
