"""`oven-controller ARGS…` whose stdin is its controlling terminal (`python begun_as.py terminal ARGS…`), or which
ignores SIGHUP (`nohup`). It is a script, and no `-c` before an exec, so that the tests can fork it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

COMMAND = [sys.executable, str(Path(__file__))]

if __name__ == "__main__":
    how = sys.argv.pop(1)
    if how == "terminal":
        os.login_tty(0)
    else:
        assert how == "nohup", how
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (forked := sys.modules.get("tests.support.forked")) is not None:
        forked.copied().serve_this_process()  # what it starts is to be in its session
    sys.modules.pop("oven_controller.cli.main", None)
    runpy.run_module("oven_controller.cli.main", run_name="__main__", alter_sys=True)
