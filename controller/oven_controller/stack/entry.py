"""`python -m oven_controller.stack.entry NAME ARGS…`: one of our own processes, by its entry point in `oven.processes`.

It ends when the stack that started it does, and what goes wrong on purpose is one line in its log, not a traceback.
"""

from __future__ import annotations

import sys

from oven_controller.errors import OvenError
from oven_controller.stack import plugins
from oven_controller.stack.process import follow_parent


def main(argv: list[str]) -> int:
    follow_parent()
    try:
        process = plugins.load("processes", "process", argv[0])
        return int(process(argv[1:]))
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
