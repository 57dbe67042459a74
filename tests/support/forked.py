"""Python processes that are forked from one that has imported what they will: importing torch and TRL takes seven seconds
of a core, and a stack's other processes a third of one.

A forked process is what `python -m …` would be, but for what has been imported: a child of the process that starts it,
with its own environment, working folder, streams, session, and a `__main__` that is run from its file. What it starts
itself in this way is forked as well. What is not forked, agents behind their guard among them, starts as users have it;
and so does everything in whose environment OVEN_TEST_COLD is set.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

LIGHT = (
    "oven_controller.cli.main",
    "oven_controller.replica.service",
    "oven_controller.stack.up",
    "oven_agents.runtime.host",
    "oven_learner.link.worker",
)
"""What the processes of a stack import, but for the learner."""
HEAVY = (*LIGHT, "oven_kg.service.process", "oven_learner.recipes.grpo.job", "oven_learner.recipes.runner")
"""And what a learner does."""
GUARD = "oven_controller.process.guard"
"""It imports nothing but the standard library."""
COLD = "OVEN_TEST_COLD"
CHILDLESS = ("mesh", "kg", "member", "probes", "oven_learner.link.worker")
"""Processes that start none of their own."""
KNOWS_FORKS = "jemalloc_bg_thd"
"""A thread of pyarrow's allocator, which ends it in what is forked."""
PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 36, 1
_popen: Any = subprocess.Popen
_prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl


class ForkServer:
    """The process that forks, seen from the one that has it as its child."""

    def __init__(self, imported: Sequence[str]) -> None:
        own, its = socket.socketpair()
        with its:
            self._process: Any = _popen(
                [sys.executable, "-P", __file__, str(its.fileno()), *imported], pass_fds=(its.fileno(),)
            )
        self._socket = own

    @classmethod
    def of_this_process(cls) -> ForkServer:
        """A copy of this process as it is now. It has one thread only."""
        own, its = socket.socketpair()
        parent = os.getpid()
        if not (pid := os.fork()):
            own.close()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                serve(its)
            os._exit(0)
        its.close()
        made = cls.__new__(cls)
        made._process, made._socket = pid, own
        return made

    def fork(self, order: dict[str, Any], streams: Sequence[int]) -> int:
        """The pid of a new child of this process. `streams` become the file descriptors that `order["fds"]` names."""
        data = json.dumps(order).encode()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [len(data).to_bytes(8)], list(streams))
            self._socket.sendall(data)
            return int.from_bytes(_read(self._socket, 8))
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)

    def popen(self) -> Any:
        """A class that is subprocess.Popen, and forks where the command is a Python program that it can fork."""

        class Popen(_popen):  # type: ignore[misc]
            def _execute_child(self, args: Any, *rest: Any) -> None:
                executable, preexec, _, pass_fds, cwd, env, _, _, shell, *rest_ = rest
                streams, (_, *ids, session, group) = rest_[:6], rest_[6:]
                environment = {str(k): str(v) for k, v in (os.environ if env is None else env).items()}
                odd = executable or preexec or shell or ids != [None, None, None, -1] or isinstance(args, str | bytes)
                if odd or COLD in environment or not _forkable(args := [os.fspath(part) for part in args]):
                    super()._execute_child(args, *rest)
                    return
                ours = [fd if fd >= 0 else number for number, fd in enumerate((streams[0], streams[3], streams[5]))]
                fds = [0, 1, 2, *pass_fds]
                order = {
                    "args": args,
                    "env": environment,
                    "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
                    "session": session,
                    "group": group,
                    "fds": fds,
                }
                self.pid = server.fork(order, [*ours, *pass_fds])
                self._child_created = True
                theirs = (streams[0], streams[3], streams[5])
                for fd in {fd for fd, mine in zip(theirs, _mine(streams), strict=True) if fd >= 0 and mine >= 0}:
                    os.close(fd)

        server = self
        return Popen

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _mine(streams: Sequence[int]) -> tuple[int, int, int]:
    """The ends that stay with the process that starts another."""
    return streams[1], streams[2], streams[4]


def _forkable(args: Sequence[str]) -> bool:
    program = _program(args)
    named = program[:1] == ["-m"] and program[1] != GUARD
    return args[0] == sys.executable and (named or program[0].endswith(".py"))


def _program(args: Sequence[str]) -> list[str]:
    """What Python is asked to run: `-m NAME …` or a file's path and its arguments."""
    return list(args[2 if args[1:2] == ["-P"] else 1 :])


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise EOFError("the other end of the fork server's socket was closed")
        data += more
    return data


def serve(connection: socket.socket) -> None:
    """Fork what is asked for until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what was forked
    while True:
        length, fds, _, _ = socket.recv_fds(connection, 8, 64)
        if not length:
            return
        order = json.loads(_read(connection, int.from_bytes(length)))
        reader, writer = os.pipe()
        if not (between := os.fork()):  # it ends at once: the process becomes its grandparent's child
            if pid := os.fork():
                os.write(writer, pid.to_bytes(8))
                os._exit(0)
            become(order, fds)
        os.waitpid(between, 0)
        connection.sendall(os.read(reader, 8))
        for fd in (reader, writer, *fds):
            os.close(fd)


def become(order: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """What the order's command would be."""
    code = 1
    try:
        _take(order, fds)
        code = _run(_program(order["args"]))
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _take(order: dict[str, Any], fds: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    elif order["group"] >= 0:
        os.setpgid(0, order["group"])
    above = max(*fds, *order["fds"]) + 1
    for number, fd in enumerate(fds):
        os.dup2(fd, above + number)
    for number, wanted in enumerate(order["fds"]):
        os.dup2(above + number, wanted)
    low = 0
    for wanted in [*sorted(order["fds"]), os.sysconf("SC_OPEN_MAX")]:
        if low < wanted:  # of an empty range closerange makes all there is
            os.closerange(low, wanted)
        low = wanted + 1
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    if "numpy" in sys.modules:
        importlib.import_module("numpy").random.seed()
    random.seed()
    safe = order["args"][1] == "-P"
    program = _program(order["args"])
    own = [] if safe else [order["cwd"] if program[0] == "-m" else os.path.dirname(os.path.abspath(program[0]))]
    sys.path[:0] = [*own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
    if program[:1] != ["-m"] or program[1] not in CHILDLESS and not (program[2:3] and program[2] in CHILDLESS):
        subprocess.Popen = ForkServer.of_this_process().popen()  # type: ignore[misc]


def _run(program: list[str]) -> int:
    """The exit code."""
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.modules.pop(program[1], None)
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def fork_server(imported: Sequence[str]) -> Iterator[ForkServer]:
    """One that has imported these modules, until the context ends."""
    server = ForkServer(imported)
    try:
        yield server
    finally:
        server.close()


def main() -> None:
    """The first one: it imports, and has no other thread."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    import gc

    gc.collect()
    gc.freeze()
    threads = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")}
    if others := threads - {Path("/proc/self/comm").read_text().strip(), KNOWS_FORKS}:
        raise RuntimeError(f"the imports started {others}: what is forked now might hang")
    serve(connection)


if __name__ == "__main__":
    main()
