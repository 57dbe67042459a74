"""Golden files of the gym: the families' draws and effects, and whole episodes. Both take minutes.

    python -m bench_testing.make_golden --check families --only 'grpo.kl_*' --steps 20

Run it in the project's folder; `tests.golden.make` has the options.
"""

from __future__ import annotations

import sys

from tests.golden.make import Part, main

from bench_testing import episodes, families

PARTS = {
    "families": Part(lambda limits, _: families.documents(limits), families.limited),
    "episodes": Part(lambda limits, _: episodes.documents(limits), episodes.limited),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], PARTS))
