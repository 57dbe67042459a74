"""Helpers that report the progress of work before a run, such as a warm-up, and continue it after an interruption."""

from __future__ import annotations

import hashlib
import io
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from oven_core.errors import reason
from oven_core.files import write_atomic
from oven_runs.home.run_folder import PREPARING

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")
INTERVAL_S: Final = 2.0
"""Minimum time in seconds between two reports, and between two saves."""
MAX_SAVING_SHARE: Final = 0.02
"""Maximum share of the working time that saving may take."""


class Progress:
    """Reports the progress of one stage to the learner's log, where `up` and the monitor read it. The first report is
    logged immediately, and later ones at most every 2 s."""

    def __init__(self, stage: str, total: int, unit: str = "step") -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._next_report = 0.0

    def report(self, done: int, detail: str = "") -> None:
        """Report that `done` units are complete. `detail` is appended."""
        if (now := time.monotonic()) >= self._next_report:
            self._next_report = now + INTERVAL_S
            log.info("%s%s: %s %d of %d%s", PREPARING, self._stage, self._unit, done, self._total, detail)


def resumable_steps(
    stage: str, batches: Iterable[Batch], steps: int, trained: Sequence[Any], file: Path | None
) -> Iterator[tuple[int, Batch]]:
    """Yield each step's number, counted from 0, and its batch. Report the progress, and save it to `file`.

    If `file` contains the progress of an interrupted process, continue from there. This restores the states of
    `trained` (the model, optimizers and schedules) and of torch's global generator, and skips the batches of earlier
    steps. The result is bit-identical to that of an uninterrupted process if all other randomness is in `batches`. A
    damaged file, or one from another version of torch, is ignored."""
    progress, batch_iterator = Progress(stage, steps), iter(batches)
    saved = _load(file)
    first: int = saved["step"] if saved else 0
    for _ in islice(batch_iterator, first):  # skip batches, and meanwhile repeat the report
        progress.report(first)
    if saved:
        for part, state in zip(trained, saved["trained"], strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(saved["random"])
    next_save = time.monotonic() + INTERVAL_S
    for step in range(first, steps):
        progress.report(step)
        if file is not None and (save_start := time.monotonic()) >= next_save:
            states = [part.state_dict() for part in trained]
            save(file, {"step": step, "trained": states, "random": torch.get_rng_state()})
            save_duration = time.monotonic() - save_start
            next_save = time.monotonic() + max(INTERVAL_S, save_duration / MAX_SAVING_SHARE)
        yield step, next(batch_iterator)


def save(file: Path, progress: dict[str, Any]) -> None:
    """Write a digest and the progress to the file. If that fails, log a warning."""
    buffer = io.BytesIO()
    torch.save({**progress, "torch": str(torch.__version__)}, buffer)
    data = buffer.getvalue()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, hashlib.sha256(data).digest() + data)
    except OSError as error:  # for example a full disk, which must not stop the work
        log.warning("the progress could not be saved to %s: %s", file, reason(error))


def _load(file: Path | None) -> dict[str, Any] | None:
    """Return the saved progress, or None if it is missing, damaged, or from another version of torch."""
    try:
        data = file.read_bytes() if file is not None else b""
    except OSError:
        return None
    digest, content = data[:32], data[32:]
    if hashlib.sha256(content).digest() != digest:
        return None
    progress: dict[str, Any] = torch.load(io.BytesIO(content))
    return progress if progress["torch"] == torch.__version__ else None
