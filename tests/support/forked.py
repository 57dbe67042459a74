"""Python processes that are forked from one that has imported what they will: importing torch and TRL takes seven
seconds of a core, and what a stack's other processes import a third of one.

xdist's workers are forked as well, and what a worker forks comes from a copy of what it was forked from itself.

A forked process is what `python -m …` would be, but for what has been imported: a child of the process that starts it,
with its own environment, working folder, streams and session, and a `__main__` that is run from its file. What it
starts itself in this way is forked as well, as are multiprocessing's workers. What has COLD in its environment is not:
it starts as users have it. Agents with a limit of memory are not, either: it would count what is imported for others.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.util
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

STACK = (
    "anthropic",
    "openai",
    "oven_agents.runtime.agent_host",
    "oven_controller.cli.main",
    "oven_runs.log.replay",
    "oven_core.replica.replica_process",
    "oven_runs.operator.operator_client",
    "oven_controller.stack.dry_run",
    "oven_controller.stack.run_status",
    "oven_controller.stack.preflight_checks",
    "oven_controller.stack.up",
    "oven_learner.link.worker",
)
"""What commands and the processes of a stack import, but for its learner."""
TRAINING = (*STACK, "oven_kg.service.service_process", "oven_recipes.grpo.training_job", "oven_recipes.training_runner")
"""And what a learner does. A copy of all that takes 30 ms, ten times as long as one of the others."""
COLD = "OVEN_TEST_COLD"
LIMITED = "OVEN_AGENTS_MEMORY_MB"
"""In the environment of agents with a limit."""
GUARD = "oven_runs.process.command_guard"
ENTRY = "oven_controller.stack.run_process"
CHILDLESS = ([ENTRY, "mesh"], [ENTRY, "kg"], [ENTRY, "member"], [ENTRY, "probes"], [ENTRY, "agent"])
"""Modules and first arguments of processes that start none of their own, or, as agents may, only cold ones."""
WORKER = ["-u", "-c"]
"""How xdist starts its workers."""
POOLED = "--multiprocessing-fork"
"""The last argument of a process that multiprocessing spawns, whose program is given as `-c CODE`."""
KNOWS_FORKS = "jemalloc_bg_thd"
"""A thread of pyarrow's allocator, which sees to it that forks are right."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37
_prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
_popen: Any = subprocess.Popen
_spawn: Callable[..., int] = multiprocessing.util.spawnv_passfds
_own: ForkServer | None = None
"""In a worker: a copy of the process that it was forked from."""


class ForkServer:
    """The process that forks, seen from the one whose child it is, and whose children all become that it forks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fork(self, order: dict[str, Any], fds: Sequence[int]) -> int:
        """The pid of a new child of this process. `fds` become the descriptors that `order["fds"]` numbers."""
        data = json.dumps(order).encode()
        before = ctypes.c_int()
        _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._connection, [len(data).to_bytes(8)], list(fds))
            self._connection.sendall(data)
            return int.from_bytes(_read(self._connection, 8))
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)

    def popen(self, *, code: bool = False) -> Any:
        """A class that is subprocess.Popen, and forks where it can. `code`: also what is given as `-c CODE`, of which
        nothing may ask what has been imported."""
        server = self

        class Popen(_popen):  # type: ignore[misc]
            def _execute_child(self, args: Any, *rest: Any) -> None:
                executable, preexec, _, pass_fds, cwd, env, _, _, shell, *rest_ = rest
                into, ours_in, ours_out, out, ours_err, err, _, *ids, session, group = rest_
                plain = not (executable or preexec or shell) and ids == [None, None, None, -1]
                environment = dict(os.environ if env is None else env)
                if not plain or {COLD, LIMITED} & environment.keys() or not _forkable(args, code):
                    super()._execute_child(args, *rest)
                    return
                order = {
                    "args": [os.fspath(part) for part in args],
                    "env": environment,
                    "cwd": os.fspath(cwd or os.getcwd()),
                    "session": session,
                    "group": group,
                    "fds": [0, 1, 2, *pass_fds],
                }
                theirs = (into, out, err)
                descriptors = [fd if fd >= 0 else number for number, fd in enumerate(theirs)]
                self.pid = server.fork(order, [*descriptors, *pass_fds])
                self._child_created = True
                pipes = {fd for fd, ours in zip(theirs, (ours_in, ours_out, ours_err), strict=True) if ours >= 0}
                for fd in pipes - {-1}:
                    os.close(fd)

        return Popen

    def spawn(self, path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        """Works like multiprocessing.util.spawnv_passfds, and forks where it can."""
        parts = [os.fsdecode(part) for part in args]
        if parts[-1] != POOLED or {COLD, LIMITED} & os.environ.keys():
            return _spawn(path, args, passfds)
        fds = [0, 1, 2, *sorted(passfds)]
        order = {
            "args": [parts[0], "-P", *parts[parts.index("-c") :]],
            "env": dict(os.environ),
            "cwd": os.getcwd(),
            "session": False,
            "group": -1,
            "fds": fds,
        }
        return self.fork(order, fds)

    def serve_this_process(self) -> None:
        """What this process starts is forked from now on, as far as that can be."""
        subprocess.Popen = self.popen()  # type: ignore[misc]
        multiprocessing.util.spawnv_passfds = self.spawn


def own_server() -> ForkServer | None:
    """In an xdist worker: a copy of the process that the worker was forked from."""
    return _own


def training_server() -> contextlib.AbstractContextManager[ForkServer]:
    """A fork server that has imported what a learner imports."""
    return fork_server(TRAINING) if _own is None else contextlib.nullcontext(_own)


@contextlib.contextmanager
def fork_server(imported: Sequence[str]) -> Iterator[ForkServer]:
    """Yield a fork server that has imported these modules."""
    own, its = socket.socketpair()
    with its:
        process = _popen(
            [sys.executable, "-P", __file__, str(its.fileno()), ",".join(imported)],
            stdin=subprocess.DEVNULL,  # there, also where a job has none
            pass_fds=(its.fileno(),),
        )
    with own:
        yield ForkServer(own)
    process.wait()


def copied() -> ForkServer:
    """Start a fork server that is a copy of this process with only this thread."""
    own, its = socket.socketpair()
    parent = os.getpid()
    if not os.fork():
        own.close()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            serve(its)
        os._exit(0)
    its.close()
    return ForkServer(own)


def _forkable(args: Any, code: bool = False) -> bool:
    """Whether Python runs a module or a script, directly or behind its guard."""
    if isinstance(args, str | bytes | os.PathLike) or args[0] != sys.executable or len(args) < 2:
        return False
    program = _program(args)
    if program[:2] == ["-m", GUARD]:
        return _forkable(program[program.index("--") + 1 :])
    if program[0] == "-c" and code:
        return True
    return program[0] == "-m" or program[0].endswith(".py") or program[:2] == WORKER


def _program(args: Sequence[Any]) -> list[str]:
    """What Python is asked to run: `-m NAME …`, `-u -c CODE` or a file's path and its arguments."""
    return [os.fspath(arg) for arg in args[2 if args[1] == "-P" else 1 :]]


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise EOFError("the fork server's socket was closed at its other end")
        data += more
    return data


def serve(connection: socket.socket) -> None:
    """Fork processes as requested until the other end closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what was forked
    while True:
        length, fds, _, _ = socket.recv_fds(connection, 8, 64)
        if not length:
            return
        order = json.loads(_read(connection, int.from_bytes(length)))
        reader, writer = os.pipe()
        adopted, hold = os.pipe()
        if not (between := os.fork()):  # it ends at once: what it forks becomes the child of who asked
            if pid := os.fork():
                if not order["session"] and order["group"] >= 0:  # before whoever asked gives it the terminal
                    os.setpgid(pid, order["group"])
                os.write(writer, pid.to_bytes(8))
                os._exit(0)
            os.close(hold)
            os.read(adopted, 1)
            become(order, fds)
        os.waitpid(between, 0)
        connection.sendall(os.read(reader, 8))
        for fd in (reader, writer, adopted, hold, *fds):
            os.close(fd)


def become(order: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """Become the process that the order describes."""
    code = 1
    try:
        _take(order, fds)
        code = _run(_program(order["args"]))
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)  # to take down all that is imported would take as long as most commands do


def _take(order: dict[str, Any], fds: Sequence[int]) -> None:
    """Set the session, descriptors, folder, environment and path of a new process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    _install(fds, order["fds"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    random.seed()
    program = _program(order["args"])
    if program[:2] == WORKER:  # its tests ask for what they want forked
        global _own
        _own = copied()
    elif order["args"][1] != "-P":
        sys.path.insert(0, order["cwd"] if program[0] in ("-m", "-c") else str(Path(program[0]).resolve().parent))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    importlib.invalidate_caches()
    _customize()
    if program[:2] != WORKER and program[1:3] not in CHILDLESS:
        copied().serve_this_process()
        os.register_at_fork(after_in_child=_start_cold)  # a server has the children of one process alone


def _customize() -> None:
    """Run the test's sitecustomize, as Python does at startup."""
    files = (Path(folder) / "sitecustomize.py" for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if file := next((file for file in files if file.is_file()), None):
        runpy.run_path(str(file))


def _start_cold() -> None:
    subprocess.Popen = _popen  # type: ignore[misc]
    multiprocessing.util.spawnv_passfds = _spawn


def _install(fds: Sequence[int], wanted: Sequence[int]) -> None:
    """Move the descriptors to the wanted numbers and close all others."""
    above = max(*fds, *wanted) + 1
    for number, fd in enumerate(fds):
        os.dup2(fd, above + number)
    for number, fd in enumerate(wanted):
        os.dup2(above + number, fd)
    low = 0
    for fd in [*sorted(wanted), os.sysconf("SC_OPEN_MAX")]:
        if low < fd:  # an empty range would be all there is to closerange
            os.closerange(low, fd)
        low = fd + 1


def _run(program: list[str]) -> int:
    """Run the program and return its exit code."""
    try:
        if program[0] == "-c" or program[:2] == WORKER:
            index = program.index("-c")
            sys.argv = ["-c", *program[index + 2 :]]
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(program[index + 1], vars(sys.modules["__main__"]))
        elif program[0] == "-m":
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


def main() -> None:
    """Import the modules in a process with a single thread."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    sys.modules["tests.support.forked"] = sys.modules["__main__"]  # a worker's tests are to see what it was given
    for name in sys.argv[2].split(","):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    threads = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")}
    if others := threads - {Path("/proc/self/comm").read_text().strip(), KNOWS_FORKS}:
        raise RuntimeError(f"the imports started {others}: what is forked now might hang")
    serve(connection)


if __name__ == "__main__":
    main()
