"""Run a command and end it when a pipe closes: `… process.command_guard FD [restricted] [kill-descendants] -- COMMAND…`

The pipe behind FD closes when its writer ends, even by kill -9. The command's process group then gets SIGTERM and,
after a grace period, SIGKILL. The guard forwards signals to the group, and kills the group on SIGUSR1. It imports
little beyond the standard library, because every foreign program has its own guard.

With `restricted`, the command does not use the trainer's cores. With `kill-descendants`, the guard kills every process
that the command started, even outside its group. That works on Linux, where orphans become children of the guard.
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

from oven_core.cpu_affinity import follow_trainer_load, restrict_affinity

GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2): orphaned descendants become children of this process."""
CRASH_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals that end compiled code when it runs out of memory, without an error message."""
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main() -> int:
    """Run the command. Return its exit code, or 128 plus the number of the signal that stopped it."""
    separator = sys.argv.index("--")
    fd, options, command = int(sys.argv[1]), sys.argv[2:separator], sys.argv[separator + 1 :]
    kill_descendants = "kill-descendants" in options and _adopt_orphans()
    core_split = restrict_affinity() if "restricted" in options else None
    early_signals: list[signal.Signals] = []  # signals that arrive while the command is being started
    for number in HANDLED_SIGNALS:
        signal.signal(number, lambda received, _frame: early_signals.append(signal.Signals(received)))
    try:
        # The command gets its own group but stays in this session, where it can be found if this guard is killed.
        child = subprocess.Popen(command, process_group=0)
    except OSError as error:
        print(f"error: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    has_ended = threading.Event()

    def end_group() -> None:
        _signal_group(child.pid, signal.SIGTERM)
        # Wait for the event rather than the process: only `_wait_for` may collect the exit status.
        if not has_ended.wait(GRACE_S):
            _signal_group(child.pid, signal.SIGKILL)

    def watch() -> None:
        while os.read(fd, 64):
            pass
        end_group()

    def forward(number: int, _frame: types.FrameType | None) -> None:
        _signal_group(child.pid, signal.SIGKILL if number == signal.SIGUSR1 else number)

    for number in HANDLED_SIGNALS:
        signal.signal(number, forward)
    for number in early_signals:
        forward(number, None)
    with _signals_only_in_this_thread():
        if core_split:
            follow_trainer_load(child.pid, core_split)
        threading.Thread(target=watch, daemon=True).start()
    code = _wait_for(child.pid)
    has_ended.set()
    _signal_group(child.pid, signal.SIGKILL)  # processes that the command left behind in its group
    if kill_descendants:
        _kill_children()
    _print_memory_error(code)
    return code if code >= 0 else 128 - code


def _wait_for(pid: int) -> int:
    """Wait for the process and return its exit code. Reap orphans that end before it."""
    while True:
        ended_pid, status = os.wait()
        if ended_pid == pid:
            return os.waitstatus_to_exitcode(status)


def _adopt_orphans() -> bool:
    """Make orphaned descendants children of this process. Return whether that works."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _kill_children() -> None:
    """Send SIGKILL to all children until there are none, because the children of a killed process become ours."""
    protected: set[int] = set()  # processes of another user, which this one may not kill
    while children := set(_child_pids(os.getpid())) - protected:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:
                protected.add(pid)
            except (ProcessLookupError, ChildProcessError):
                continue


def _print_memory_error(code: int) -> None:
    """Print an error if the memory limit may have caused the crash."""
    limit_mb = int(os.environ.get("OVEN_AGENTS_MEMORY_MB") or 0)
    if not limit_mb or -code not in CRASH_SIGNALS:
        return
    used_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 // 1_000_000
    if used_mb > limit_mb // 2:
        print(
            f"error: it used {used_mb} MB, but an agent process may use at most {limit_mb} MB (agents_memory_mb); make "
            f"its agents store less, or raise the limit with --set agents_memory_mb={2 * limit_mb}",
            file=sys.stderr,
        )


def _child_pids(parent: int) -> list[int]:
    """Return the ids of the process's children (Linux only)."""
    pids = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(ValueError, OSError, IndexError):
            pid = int(entry)
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()  # those after the command's name in parentheses
            if int(fields[1]) == parent:
                pids.append(pid)
    return pids


@contextlib.contextmanager
def _signals_only_in_this_thread() -> Iterator[None]:
    """Keep signals away from threads that are started in this context. Only the main thread runs handlers. If another
    thread received the second of two signals, the main thread might be waiting for the command again and never run the
    handler."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
