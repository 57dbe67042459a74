"""`bench healthy`: how often does the swarm meddle with a run that needs nothing?

Hard negatives, each from the tuned start: a warm-up, the user's own decay, a run that continues long after it has
flattened, and one whose reward sits at its ceiling. Under the real stack, as `up` starts it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from oven_bench.training.episode import Episode
from oven_bench.training.starts import with_progress

CASES: dict[str, tuple[int, tuple[tuple[str, object], ...]]] = {
    "warm-up": (150, (("lr_warmup_steps", 60),)),
    "decay": (150, (("schedule", "cosine"),)),
    "plateau": (400, ()),
    "ceiling": (300, (("lengths", "[3]"),)),
}
"""Case → (gradient steps, the recipe's settings)."""


class Healthy:
    """The bench behind the entry point `healthy`."""

    summary = "interventions per 1,000 steps on warm-up, decay, plateau and ceiling"

    def run(self, args: list[str]) -> int:
        parser = argparse.ArgumentParser(
            prog="oven-controller bench healthy",
            description=self.summary,
            epilog="example: oven-controller bench healthy --seeds 3 --json",
        )
        parser.add_argument("--seeds", type=int, default=3, help="runs of each case (3; about 2 min each on one core)")
        parser.add_argument("--first-seed", type=int, default=1)
        parser.add_argument("--case", choices=list(CASES), action="append", help="only this one; repeat it for more")
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--home", help="keep runs and warm-up cache here; a temporary folder otherwise")
        options = parser.parse_args(args)
        with tempfile.TemporaryDirectory() as scratch:
            home = str(Path(options.home or scratch).absolute())
            episodes = [
                Episode("swarm", "tuned", seed, steps, home, label=case, options=extra)
                for seed in range(options.first_seed, options.first_seed + options.seeds)
                for case, (steps, extra) in CASES.items()
                if case in (options.case or CASES)
            ]
            results = with_progress(episodes, options.jobs)
        found: dict[str, object] = {}
        for case in options.case or CASES:
            of_case = [result for result in results if result.episode.label == case]
            steps = sum(result.episode.steps for result in of_case)
            meddled = sum(result.interventions for result in of_case)
            found[f"{case}_steps"], found[f"{case}_interventions"] = steps, meddled
            found[f"{case}_per_1000"] = round(1000 * meddled / steps, 3)
        if options.json:
            print(json.dumps(found))
        else:
            Console().print_json(json.dumps(found))
        return 0


BENCH = Healthy()
