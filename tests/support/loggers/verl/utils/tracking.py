"""A stand-in for verl's logger, with the arguments of verl's `Tracking`. It writes to one file, or to TensorBoard."""

from __future__ import annotations

import json
import os
from typing import Any


class _File:
    def add_scalar(self, _: str, data: Any, step: int) -> None:
        with open(os.environ["TRACKED_FILE"], "a") as out:
            out.write(json.dumps([step, data]) + "\n")


def _writer() -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(os.environ.get("TENSORBOARD_DIR", "tensorboard_log"))


class Tracking:
    """Logs to every backend. This one only has the backends `file` and `tensorboard`."""

    def __init__(
        self, project_name: str, experiment_name: str, default_backend: str | list[str] = "console", config: Any = None
    ) -> None:
        self.logger = {name: _writer() if name == "tensorboard" else _File() for name in default_backend}

    def log(self, data: dict[str, Any], step: int, backend: str | None = None) -> None:
        for name, logger in self.logger.items():
            if backend is None or name in backend:
                for key, value in data.items() if name == "tensorboard" else [("", data)]:
                    logger.add_scalar(key, value, step)
