"""Runs one of the stack's own processes: `python -m oven_controller.stack.run_process NAME ARGS…`

The process ends with the stack that started it. An OvenError is printed as one line, without a traceback.
"""

from __future__ import annotations

import gc
import sys

from oven_controller.stack.process_table import process_function
from oven_core.cpu_affinity import yield_cpu_to_training
from oven_core.errors import OvenError
from oven_core.protocol.codec import build_models
from oven_runs.process.child_process import follow_parent

FULL_PRIORITY = ("learner", "monitor")
"""Processes that keep their priority: the learner, and the monitor that a user watches."""


def main(argv: list[str]) -> int:
    follow_parent()
    if argv[0] not in FULL_PRIORITY:
        yield_cpu_to_training()
    try:
        process = process_function(argv[0])
        build_models()
        gc.freeze()  # otherwise a full collection of the imported modules delays a decision by 40 ms
        return int(process(argv[1:]))
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
