"""Golden files: what the controller computes, stored before the code is moved about, and compared afterwards.

    python -m tests.golden.make                  everything anew
    python -m tests.golden.make --check          compare everything; exit code 1 if something differs
    python -m tests.golden.make --check logs --only 'run-*'

From the project's folder, on the machine that made the files: losses are compared bit for bit, and another processor,
Python or torch computes others. `runs` starts the stack; `logs` and `protocol` are quick, and
tests/unit/test_golden.py compares these.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tests.golden import protocol, replays, runs
from tests.golden.entry_points import installed
from tests.golden.store import FOLDER, Json, Limits, differences, read, write

AGENTS: Mapping[str, str] = {
    "auxiliary": "auxiliary_loss",
    "calibration": "entropy_collapse",
    "committee": "reward_weights",
    "curriculum": "curriculum",
    "data": "repeated_data",
    "decay": "weight_decay",
    "final": "final_weights",
    "gradients": "grad_clip",
    "hacking": "reward_hacking",
    "late": "lr_cooldown",
    "lr": "learning_rate",
    "relapse": "best_checkpoint",
    "sentinel": "divergence",
    "teacher": "teacher",
    "undo": "rollback_undo",
}
"""An agent's name in the golden files → its entry point in oven.agents today. Whoever renames one edits its line: the
files keep the name that stands in the recorded logs, and so does every part that is computed."""
SHOWN = 20
"""Differences of a file that are printed."""


@dataclass(frozen=True, slots=True)
class Part:
    """`documents` makes files, by their paths under the folder of the data, and what belongs in each; bytes are
    recordings, which are written and never compared. `limited` gives the part of a stored file that is made under
    limits."""

    documents: Callable[[Limits, Path], Iterator[tuple[str, Json]]]
    limited: Callable[[Json, Limits], Json] = lambda document, _: document


PARTS: Mapping[str, Part] = {
    "runs": Part(runs.documents, runs.limited),
    "logs": Part(lambda limits, _: replays.documents(limits, AGENTS), replays.limited),
    "protocol": Part(lambda limits, _: protocol.documents(limits)),
}
"""In this order, since `logs` reads what `runs` records."""


def main(args: list[str]) -> int:
    """Exit code 1: something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.make", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if left out")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of the runs or logs")
    options = parser.parse_args(args)
    limits = Limits(options.only)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not options.check and not limits.whole:
        parser.error("--only goes with --check: what is written is whole")
    torch.set_num_threads(1)  # sums are added up in the same order by one
    same = True
    with installed(AGENTS) as path:
        for name in options.parts or PARTS:
            part, began, lines = PARTS[name], time.monotonic(), list[str]()
            for file, document in part.documents(limits, path):
                lines += _checked(part, file, document, limits) if options.check else _written(file, document)
            same &= not (options.check and lines)
            print(f"{name}: {'' if lines else 'the same, '}{time.monotonic() - began:.0f} s", flush=True)
            for line in lines:
                print(f"  {line}", flush=True)
    return 0 if same else 1


def _written(file: str, document: Json) -> list[str]:
    return [f"{file}: {write(file, document)} bytes"]


def _checked(part: Part, file: str, now: Json, limits: Limits) -> list[str]:
    """What differs, a line each. Recordings never do: their bytes hold fields that later versions add to."""
    if isinstance(now, bytes):
        return []
    if not (FOLDER / file).exists():
        return [f"{file} is not there"]
    stored = part.limited(read(file), limits)
    if isinstance(now, dict) and now.get("numbers") != stored.get("numbers"):
        return [f"{file} was made where Python, torch or the processor compute other numbers; not compared"]
    differing = list(islice(differences(stored, now), SHOWN + 1))
    return [f"{file}: {line}" for line in differing[:SHOWN]] + [f"{file}: and more"] * (len(differing) > SHOWN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
