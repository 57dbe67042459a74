"""What a test's processes do first, however they start.

aiohttp is hidden, as in the base install: nats-py imports it for websockets if it can, which is a third of the time in
which a process starts. OVEN_TEST_PROCESSES, JSON, replaces functions of the stack's processes (name to
`module:function`), and a process without a function counts as not installed.
"""

from __future__ import annotations

import json
import os
import sys

sys.modules["aiohttp"] = None  # type: ignore[assignment]

if replaced := os.environ.get("OVEN_TEST_PROCESSES"):
    from oven_controller.stack.process_table import PROCESSES, StackProcess

    for name, function in json.loads(replaced).items():
        PROCESSES[name] = StackProcess(function, package="" if function else "absent_in_this_test")  # type: ignore[index]
