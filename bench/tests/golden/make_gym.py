"""Golden files of the gym: the families' draws and effects, and whole episodes. Both take minutes.

    python bench/tests/golden/make_gym.py --check families --only 'grpo.kl_*' --steps 20

Run it in the project's folder; `tests.golden.make` has the options.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from tests.golden import episodes, families  # noqa: E402
from tests.golden.make import Part, main  # noqa: E402

PARTS = {
    "families": Part(lambda limits, _: families.documents(limits), families.limited),
    "episodes": Part(lambda limits, _: episodes.documents(limits), episodes.limited),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], PARTS))
