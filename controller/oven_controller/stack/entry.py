"""Entry of the project's own processes: `python -m oven_controller.stack.entry NAME ARGS…`

It ends when the stack that started it does, and what goes wrong on purpose is one line in its log, not a traceback.
"""

from __future__ import annotations

import gc
import sys

from oven_controller.stack.process_table import process_function
from oven_core.cpu_affinity import lower_priority
from oven_core.errors import OvenError
from oven_runs.process.child import follow_parent

OWNED = ("learner", "monitor")
"""What trains, and what somebody looks at. The others make way for them."""


def main(argv: list[str]) -> int:
    follow_parent()
    if argv[:1] and argv[0] not in OWNED:
        lower_priority()
    try:
        process = process_function(argv[0])
        gc.freeze()  # what was imported stays: a full collection delayed a decision by 40 ms
        return int(process(argv[1:]))
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
