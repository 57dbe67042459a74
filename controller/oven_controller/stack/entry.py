"""The entry point of the stack's own processes: `python -m oven_controller.stack.entry NAME ARGS…`

The process ends with the stack that started it. An OvenError becomes one line in its log, without a traceback.
"""

from __future__ import annotations

import gc
import sys

from oven_controller.stack.process_table import process_function
from oven_core.cpu_affinity import lower_priority
from oven_core.errors import OvenError
from oven_runs.process.child import follow_parent

FULL_PRIORITY = ("learner", "monitor")
"""Processes that keep their priority: the training, and the monitor that a person watches."""


def main(argv: list[str]) -> int:
    follow_parent()
    if argv[:1] and argv[0] not in FULL_PRIORITY:
        lower_priority()
    try:
        process = process_function(argv[0])
        gc.freeze()  # else a full collection of the imported modules delays a decision by 40 ms
        return int(process(argv[1:]))
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
