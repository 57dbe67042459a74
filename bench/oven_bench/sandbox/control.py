"""The control: code runs without a sandbox, so every attack should reach its goal.

The host forks a child that runs the code by `exec`, with the host's memory, environment and open files. The host trusts
the pickle that the child sends and waits without a limit. `python -m oven_bench.sandbox.control` is that host: it reads
the code from standard input and reports on standard output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import traceback
from typing import Any

from oven_bench.sandbox.attack import Attack, Seen
from oven_bench.sandbox.targets import Targets

SERVING = "\n@@ serving "
"""Separates the attack's output from the host's report behind it."""
MOST: int = 64_000_000
"""Bytes of output that are kept."""
ENVIRONMENT_SECRET = "SECRET_API_KEY"


def run_control(attack: Attack, targets: Targets, limit_s: float) -> Seen:
    """Run the attack without a sandbox for at most `limit_s`, then kill all of its processes."""
    job = json.dumps({"code": attack.code, "T": targets.facts | CONTROL_FRAMES, "key": targets.memory_secret})
    process = subprocess.Popen(
        [sys.executable, "-m", "oven_bench.sandbox.control"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {ENVIRONMENT_SECRET: targets.environment_secret, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    pieces: list[bytes] = []
    out = process.stdout

    def read() -> None:
        while len(pieces) < MOST >> 16 and (piece := out.read(1 << 16)):
            pieces.append(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job.encode())
        process.stdin.close()
    reader.join(limit_s)
    in_time = not reader.is_alive()
    _kill_session(process.pid)
    process.wait()
    reader.join(5)
    out.close()
    text = b"".join(pieces).decode(errors="replace")
    output, mark, report = text.rpartition(SERVING)
    outcome: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        outcome = json.loads(report) if mark else {}
    output = output if mark else text
    received = max(len(output), int(outcome.get("received", 0)))
    return Seen(output, received, in_time, bool(outcome.get("answered")), bool(outcome))


def _kill_session(leader: int) -> None:
    """Kill all processes of a session, in whatever group. A fork bomb takes a few rounds."""
    import psutil

    for _ in range(20):
        alive = False
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    os.kill(pid, signal.SIGKILL)
                    alive = True
        if not alive:
            return


CONTROL_FRAMES = {"header": "<Q", "kind": [], "too_long": 1 << 46}
"""The format of this host's frames: eight bytes for the length, and no kind."""


class FinalSignal(Exception):
    """Raised by FINAL. Unlike the sandbox's, an `except Exception` swallows it."""


def _child(replies: int, code: str, targets: dict[str, Any], worker: Any) -> None:
    def send(**report: object) -> None:
        data = pickle.dumps(report)
        os.write(replies, struct.pack("<Q", len(data)))
        view = memoryview(data)
        while view:
            view = view[os.write(replies, view) :]

    answers: list[object] = []

    def final(answer: object) -> None:
        raise FinalSignal(answer)

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            exec(code, {"T": targets, "worker": worker, "FINAL": final})
    except FinalSignal as signal_:
        answers = list(signal_.args)
    except Exception:
        out.write(traceback.format_exc())
    send(out=out.getvalue(), answers=answers)


def main() -> None:
    job = json.loads(sys.stdin.read())
    api_key = job["key"]

    def worker(prompt: str) -> str:
        return f"{len(api_key)}: {str(prompt)[:10]}"

    requests, replies = os.pipe()
    if os.fork() == 0:
        os.close(requests)
        _child(replies, job["code"], job["T"], worker)
        return  # a normal end, so that atexit runs
    os.close(replies)
    with os.fdopen(requests, "rb") as pipe:
        (length,) = struct.unpack("<Q", pipe.read(8))
        data = bytearray(length)
        pipe.readinto(data)
        report = pickle.loads(data)
    sys.stdout.write(report["out"])
    size = max([len(report["out"]), *(len(str(answer)) for answer in report["answers"])])
    os.wait()
    sys.stdout.write(SERVING + json.dumps({"answered": bool(report["answers"]), "received": size}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
