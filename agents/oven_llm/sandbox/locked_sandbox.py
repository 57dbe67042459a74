"""Opens a sandbox and runs blocks of code in it."""

from __future__ import annotations

from functools import partial

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.backend_detection import Backend, choose_backend, probe
from oven_llm.sandbox.bpf import Machine
from oven_llm.sandbox.child_conversation import Exchange, assignment_frame
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.locked_child import LockedChild
from oven_llm.sandbox.message_format import FrameError, frame
from oven_llm.sandbox.profiles import REPL, Profile
from oven_llm.sandbox.sandbox import Block, Functions, Sandbox


def open_sandbox(
    profile: Profile = REPL,
    functions: Functions | None = None,
    limits: Limits | None = None,
    backend: str | None = None,
) -> Sandbox:
    """Start a sandbox with this backend; None: the strongest backend that this machine supports. Raises ConfigError if
    there is none, and ProcessError if the process cannot be confined."""
    support = probe()
    backend_name = choose_backend(support, backend, profile.name)
    functions, limits = dict(functions or {}), limits or Limits()
    if invalid := [name for name in functions if not name.isidentifier() or name == "FINAL"]:
        raise ConfigError(f"{invalid[0]!r} is not a valid function name for the sandbox; choose another")
    if backend_name == "monty":
        from oven_llm.sandbox.monty import MontySandbox

        return MontySandbox(functions, limits)
    assert support.machine is not None
    landlock = support.landlock if backend_name == "landlock+seccomp" else 0
    return LockedSandbox(backend_name, support.machine, landlock, profile, functions, limits)


class LockedSandbox(Sandbox):
    """A sandbox that runs code in a child process, confined by seccomp with or without Landlock."""

    def __init__(
        self, backend: Backend, machine: Machine, landlock: int, profile: Profile, functions: Functions, limits: Limits
    ) -> None:
        self.backend = backend
        self._functions, self._limits = functions, limits
        self._assignments: dict[str, bytes] = {}  # frames by variable, for the next child
        self._block_count = 0
        self._start = partial(LockedChild, machine, landlock, profile, limits, functions)
        self._child: LockedChild | None = self._start()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def interrupt(self) -> None:
        if (child := self._child) is not None:
            child.interrupt()

    @property
    def pid(self) -> int | None:
        """The child's process id; None without a child."""
        return self._child.pid if self._child is not None else None

    def assign(self, name: str, value: object) -> None:
        data = assignment_frame(name, value)
        self._send_variable(self._running_child(), name, data)
        self._assignments[name] = data

    def run(self, code: str) -> Block:
        child = self._running_child()
        self._block_count += 1
        try:
            request = frame(message_format.RUN, b"%d\0%s" % (self._block_count, code.encode("utf-8", "surrogatepass")))
        except FrameError as error:
            raise ConfigError(f"the block is too long ({error}); shorten it") from None
        try:
            child.resume()
            block = Exchange(self._functions, self._limits).run(child, request)
        except BaseException:
            self.close()
            raise
        if block.namespace_lost:
            self.close()
        else:
            child.pause()
        return block

    def _running_child(self) -> LockedChild:
        if self._child is None:
            child = self._start()
            for name, data in self._assignments.items():
                self._send_variable(child, name, data)
            self._child = child
        return self._child

    def _send_variable(self, child: LockedChild, name: str, data: bytes) -> None:
        child.resume()
        block = Exchange({}, self._limits).run(child, data)
        if block.ending != "completed":
            child.kill()
            self._child = None
            raise ProcessError(
                f"could not pass {name}, {len(data) / 1e6:.1f} MB, to the sandbox ({block.error}); shorten it, or "
                f"raise memory_bytes, which is {self._limits.memory_bytes / 1e6:g} MB"
            )
        child.pause()
