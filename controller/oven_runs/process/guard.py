"""Guard of a command that cannot watch a pipe: `… process.guard FD [restricted] [whole] -- COMMAND…`

When the pipe behind FD closes (its writer ended, even by kill -9), the command's whole process group gets SIGTERM and,
after a grace, SIGKILL. Signals are passed on to the group; SIGUSR1 kills it. Imports nothing but the standard library:
it stands beside every foreign process. `restricted`: the command keeps off the trainer's cores. `whole`: nothing that
it started outlives it, what left its group included (Linux: orphans become this process's children).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

from oven_core.cpu_affinity import follow, restrict_affinity

GRACE_S = 10.0
PR_SET_CHILD_SUBREAPER = 36
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""How compiled code ends that got no memory and cannot say so."""
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main() -> int:
    at = sys.argv.index("--")
    fd, command = int(sys.argv[1]), sys.argv[at + 1 :]
    whole = "whole" in sys.argv[2:at] and _adopts_orphans()
    split = restrict_affinity() if "restricted" in sys.argv[2:at] else None
    early: list[int] = []
    for number in HANDLED:
        signal.signal(number, lambda number, _frame: early.append(number))
    try:
        # A group of its own, but this session: whoever has to end it without this guard finds it there.
        child = subprocess.Popen(command, process_group=0)
    except OSError as error:
        print(f"error: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    ended = threading.Event()

    def end_group() -> None:
        _signal_group(child.pid, signal.SIGTERM)
        if not ended.wait(GRACE_S):  # its end is for `_end_of` to take: taken here, that would wait for ever
            _signal_group(child.pid, signal.SIGKILL)

    def watch() -> None:
        while os.read(fd, 64):
            pass
        end_group()

    def forward(number: int, _frame: types.FrameType | None) -> None:
        _signal_group(child.pid, signal.SIGKILL if number == signal.SIGUSR1 else number)

    for number in HANDLED:
        signal.signal(number, forward)
    for missed in early:  # came while the command was being started
        forward(missed, None)
    with _for_this_thread_alone():
        if split:
            follow(child.pid, split)
        threading.Thread(target=watch, daemon=True).start()
    code = _end_of(child.pid)
    ended.set()
    _signal_group(child.pid, signal.SIGKILL)  # what the command left behind in its group
    if whole:
        _end_descendants()
    _explain(code)
    return code if code >= 0 else 128 - code


def _end_of(pid: int) -> int:
    """Its code, once it has ended; orphans that end before are let go."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _adopts_orphans() -> bool:
    """Whether what loses its parent below this process becomes its child."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _end_descendants() -> None:
    """SIGKILL to all that lives below this process, until nothing does: what one that is killed started comes here."""
    left: set[int] = set()  # of another user: nobody here may end them
    while children := set(_children(os.getpid())) - left:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:
                left.add(pid)
            except (ProcessLookupError, ChildProcessError):
                continue


def _explain(code: int) -> None:
    """Say so where what crashed may have met its limit of memory."""
    most = int(os.environ.get("OVEN_AGENTS_MEMORY_MB") or 0)
    if not most or -code not in CRASHES:
        return
    held = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 // 1_000_000
    if held > most // 2:
        print(
            f"error: it held {held} MB, and a process of agents may take {most} MB (agents_memory_mb); mend what its "
            f"agents hoard, or allow more with --set agents_memory_mb={2 * most}",
            file=sys.stderr,
        )


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(ValueError, OSError, IndexError):
            pid = int(entry)
            with open(f"/proc/{pid}/stat", "rb") as stat:
                if int(stat.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(pid)
    return found


@contextlib.contextmanager
def _for_this_thread_alone() -> Iterator[None]:
    """Threads started within never get a signal. The second of two that come together would go to such a thread, while
    this one, which alone runs handlers, may be back in waiting for the command already and never hear of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
