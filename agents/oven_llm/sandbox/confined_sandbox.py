"""Opens a sandbox (`open_sandbox`), and implements the backends in which the kernel confines a child process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.backend_detection import Backend, choose_backend, detect_support
from oven_llm.sandbox.child_conversation import Exchange, pack_assignment
from oven_llm.sandbox.confined_child import ConfinedChild
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError, pack_frame
from oven_llm.sandbox.profiles import REPL, Profile
from oven_llm.sandbox.sandbox import Block, Functions, Sandbox


def open_sandbox(
    profile: Profile = REPL,
    functions: Functions | None = None,
    limits: Limits | None = None,
    backend: str | None = None,
) -> Sandbox:
    """Start a sandbox with this backend, or with the strongest one that this machine supports. Raises ConfigError if
    there is none, and ProcessError if the process cannot be confined."""
    support = detect_support()
    backend_name = choose_backend(support, backend, profile.name)
    functions, limits = dict(functions or {}), limits or Limits()
    if invalid := [name for name in functions if not name.isidentifier() or name == "FINAL"]:
        raise ConfigError(f"{invalid[0]!r} is not a valid function name for the sandbox; choose another")
    if backend_name == "monty":
        from oven_llm.sandbox.monty import MontySandbox

        return MontySandbox(functions, limits)
    assert support.machine is not None
    landlock_version = support.landlock_version if backend_name == "landlock+seccomp" else 0
    start_child = partial(ConfinedChild, support.machine, landlock_version, profile, limits, functions)
    return ConfinedSandbox(backend_name, start_child, functions, limits)


class ConfinedSandbox(Sandbox):
    """A sandbox that runs code in a child process, confined by seccomp with or without Landlock."""

    def __init__(
        self, backend: Backend, start_child: Callable[[], ConfinedChild], functions: Functions, limits: Limits
    ) -> None:
        self.backend = backend
        self._functions, self._limits = functions, limits
        self._assignments: dict[str, bytes] = {}  # frames by variable, for the next child
        self._block_count = 0
        self._start_child = start_child
        self._child: ConfinedChild | None = start_child()

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
        assignment = pack_assignment(name, value)
        self._send_variable(self._get_running_child(), name, assignment)
        self._assignments[name] = assignment

    def run(self, code: str) -> Block:
        child = self._get_running_child()
        self._block_count += 1
        try:
            payload = b"%d\0%s" % (self._block_count, code.encode("utf-8", "surrogatepass"))
            request = pack_frame(message_format.RUN, payload)
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

    def _get_running_child(self) -> ConfinedChild:
        if self._child is None:
            child = self._start_child()
            for name, assignment in self._assignments.items():
                self._send_variable(child, name, assignment)
            self._child = child
        return self._child

    def _send_variable(self, child: ConfinedChild, name: str, assignment: bytes) -> None:
        child.resume()
        block = Exchange({}, self._limits).run(child, assignment)
        if block.ending != "completed":
            child.kill()
            self._child = None
            raise ProcessError(
                f"could not pass {name}, {len(assignment) / 1e6:.1f} MB, to the sandbox ({block.error}); shorten it, "
                f"or raise memory_bytes, which is {self._limits.memory_bytes / 1e6:g} MB"
            )
        child.pause()
