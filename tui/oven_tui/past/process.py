"""The process that reads a long log: `python -m oven_tui.past.process FOLDER [--growing] [--checkpoints N]`.

Its own process, at a low priority, so that neither the monitor's keys nor a training on the same cores wait for
it. It writes frames to its standard output and ends when no one reads them.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import sys
import time
import zlib
from pathlib import Path
from typing import BinaryIO

from oven_core.errors import OvenError, reason
from oven_runs.home.run_folder import RunFolder
from oven_tui.past import cache
from oven_tui.past.fold import Fold, Folding
from oven_tui.past.frames import Checkpoint, Failed, Preview, Progress, Whole, write
from oven_tui.past.preview import preview

PROGRESS_S = 0.25
NICENESS = 10


def main(argv: list[str]) -> int:
    path, growing = Path(argv[0]), "--growing" in argv
    checkpoints = int(argv[argv.index("--checkpoints") + 1]) if "--checkpoints" in argv else 0
    os.nice(NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is not a frame
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        Reading(RunFolder(path), out, growing, checkpoints).run()
    return 0


class Reading:
    """One log, from its cache or its beginning to its end."""

    def __init__(self, folder: RunFolder, out: BinaryIO, growing: bool, checkpoints: int) -> None:
        self._folder, self._out = folder, out
        self._growing, self._checkpoints = growing, checkpoints
        self._told = time.monotonic()
        self._size = 1

    def run(self) -> None:
        """Raises BrokenPipeError when no one reads any more."""
        try:
            self._size = max(1, self._folder.export.stat().st_size)
            kept = None if self._checkpoints else cache.load(self._folder)
            if kept is None:
                write(self._out, Preview(preview(self._folder)))
            begin, digest = kept or (None, hashlib.blake2b())
            whole = begin is not None and begin.offset == self._size
            folding = Folding(self._folder, begin, growing=self._growing, digest=digest)
            fold = self._folded(folding)
            write(self._out, Whole(fold, whole, tuple(folding.decided)))
            if not whole and not self._checkpoints:
                cache.save(self._folder, fold, folding.digest)
        except BrokenPipeError:
            raise
        except (OvenError, OSError, ValueError) as error:
            write(self._out, Failed(reason(error)))

    def _folded(self, folding: Folding) -> Fold:
        """To the end, or to the line that is none: then it is shown as far as it went, and the fault is raised."""
        fold, furthest, every = folding.begin, 0, self._size // max(1, self._checkpoints)
        due = 0
        try:
            for fold in folding:
                run = fold.view.run
                furthest = max(furthest, run.step)
                if self._checkpoints and fold.offset >= due:
                    due = fold.offset + every
                    packed = zlib.compress(pickle.dumps(fold, 5), 1)
                    write(self._out, Checkpoint(fold.seq, run.tick, furthest, tuple(folding.decided), packed))
                    folding.decided.clear()
                if time.monotonic() - self._told > PROGRESS_S:
                    self._told = time.monotonic()
                    write(self._out, Progress(min(1.0, fold.offset / self._size)))
        except OvenError:
            if folding.begin is not None and folding.begin.seq:
                write(self._out, Whole(folding.begin, False, tuple(folding.decided)))
            raise
        assert fold is not None
        return fold


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
