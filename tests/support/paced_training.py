"""A training for tests of whole stacks. It trains as far as the file `allowed` in its folder says, and up to `limit`.

When it ends, for any reason, rank 0 saves its step in the file `step` and continues from there at the next start. With
WORLD_SIZE above 1, the ranks talk over gloo. The folder is the only argument.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import oven_learner as oven


def allow(folder: Path, step: int) -> None:
    """Let the training in `folder` continue to this step."""
    new = folder / "allowed.new"
    new.write_text(str(step))
    new.replace(folder / "allowed")


def main(folder: Path) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from torch import distributed

        distributed.init_process_group("gloo")
    is_first = os.environ.get("RANK", "0") == "0"
    limit = int((folder / "limit").read_text())
    saved = folder / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    with oven.connect(max_steps=limit, step=step) as client:
        terminated = threading.Event()

        def end(*_: object) -> None:
            terminated.set()
            client.request_stop("SIGTERM")

        signal.signal(signal.SIGTERM, end)
        while step < limit and not client.stopping:
            step += 1
            client.observe(step, {"loss": 1 / step})
            client.poll()
            if is_first:
                (folder / "reached").write_text(str(step))
            while is_first and step >= int((folder / "allowed").read_text()) and not terminated.is_set():
                time.sleep(0.005)
    if is_first:
        saved.write_text(str(step))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
