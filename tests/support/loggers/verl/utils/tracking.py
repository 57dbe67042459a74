"""A stand-in for verl's logger, with the arguments of verl's `Tracking`. It writes to one file."""

from __future__ import annotations

import json
import os
from typing import Any


class Tracking:
    """Logs to every backend. This one only has the backend `file`."""

    def __init__(
        self, project_name: str, experiment_name: str, default_backend: str | list[str] = "console", config: Any = None
    ) -> None:
        self.logger = {name: os.environ["TRACKED_FILE"] for name in default_backend}

    def log(self, data: dict[str, Any], step: int, backend: str | None = None) -> None:
        for name, file in self.logger.items():
            if backend is None or name in backend:
                with open(file, "a") as out:
                    out.write(json.dumps([step, data]) + "\n")
