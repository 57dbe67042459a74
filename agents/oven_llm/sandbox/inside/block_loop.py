"""The main loop of the sandboxed child, which confines itself and then runs blocks until the host closes the pipe."""

from __future__ import annotations

import gc
import importlib
import io
import json
import linecache
import sys
import traceback
from types import ModuleType
from typing import Any

from oven_llm.sandbox import message_format
from oven_llm.sandbox.inside import confinement, host_link
from oven_llm.sandbox.inside.captured_output import CapturedOutput, OutputBudget

CHILD_FOLDER = __file__.rpartition("/")[0]
"""This folder. Its files are removed from tracebacks, because they do not help the author of the code."""


class RejectingFinder:
    """The last import finder in the profile `repl`. It explains that a module is not available."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        raise ModuleNotFoundError(
            f"No module named {name!r} in the sandbox, which has standard modules for text, numbers and data only",
            name=name,
        )


class BlockRunner:
    """Runs code blocks in one `__main__` namespace and reports how each block ended."""

    def __init__(self, link: host_link.HostLink, setup: dict[str, Any]) -> None:
        self._budget = OutputBudget(setup["output_bytes"])
        self._out = CapturedOutput(lambda data: link.send(message_format.OUT, data), self._budget)
        self._err = CapturedOutput(lambda data: link.send(message_format.ERR, data), self._budget)
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        self._namespace = module.__dict__
        for name in setup["functions"]:
            self._namespace[name] = host_link.make_host_function(link, name, setup["call_bytes"])
        self._namespace["FINAL"] = host_link.make_final_function(link, setup["answer_bytes"])

    def assign(self, kind: int, payload: bytes) -> dict[str, Any]:
        """Assign a variable and return the outcome for the DONE frame. In the payload, a zero byte follows the name."""
        end = payload.index(b"\0")
        name, value = payload[:end].decode(), memoryview(payload)[end + 1 :]
        try:
            text = str(value, "utf-8", "surrogatepass")
            self._namespace[name] = text if kind == message_format.TEXT else json.loads(text)
        except MemoryError:
            return {"ended": "error", "error": "MemoryError", "dropped": 0}
        return {"ended": "completed", "dropped": 0}

    def run(self, number: int, code: str) -> dict[str, Any]:
        """Run a block and return the outcome for the DONE frame: `ended`, `dropped`, and `error` if it failed."""
        self._budget.reset()
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), self._out, self._err
        name = f"<block {number}>"
        try:
            exec(compile(code, name, "exec", dont_inherit=True), self._namespace)
            outcome = {"ended": "completed"}
        except host_link.AnsweredExit:
            outcome = {"ended": "completed"}
        except BaseException as error:
            outcome = {"ended": "error", "error": self._write_traceback(error, code, name)}
        self._out.flush()
        self._err.flush()
        return outcome | {"dropped": self._budget.dropped_count}

    def _write_traceback(self, error: BaseException, code: str, name: str) -> str:
        """Write the traceback to standard error and return its last line."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            report = traceback.TracebackException.from_exception(error)
            for section in (report, report.__cause__, report.__context__):
                if section is not None and section.stack is not None:
                    section.stack[:] = [line for line in section.stack if not line.filename.startswith(CHILD_FOLDER)]
            self._err.write("".join(report.format()))
            return "".join(report.format_exception_only()).strip().splitlines()[-1][:500]
        except BaseException:  # formatting failed or ran out of memory
            return type(error).__name__[:100]


def serve(requests: int, replies: int, lifeline: int) -> None:
    """Serve the host over these descriptors until the process ends."""
    link = host_link.HostLink(requests, replies)
    _, payload = link.receive()
    setup = json.loads(payload)
    confinement.die_with_host(lifeline)
    for name in setup["modules"]:
        importlib.import_module(name)
    if "random" in sys.modules:
        sys.modules["random"].seed(0)  # a resumed run gets the same random numbers
    sys.path[:] = setup["path"]
    if not setup["path"]:  # in the profile `repl`
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder]
        sys.meta_path.append(RejectingFinder())
    runner = BlockRunner(link, setup)
    gc.collect()
    gc.freeze()  # exclude the imported modules from later collections
    try:
        _confine_process(setup)
    except confinement.ConfinementError as error:
        link.send(message_format.READY, str(error).encode())
        return
    link.send(message_format.READY)
    while True:
        kind, payload = link.receive()
        if kind == message_format.RUN:
            number, _, code = payload.partition(b"\0")
            outcome = runner.run(int(number), code.decode("utf-8", "surrogatepass"))
        else:
            outcome = runner.assign(kind, payload)
        link.send(message_format.DONE, message_format.encode(outcome))


def _confine_process(setup: dict[str, Any]) -> None:
    """Limit this process's resources and lock it down. Raises ConfinementError."""
    kernel = confinement.Kernel(setup["numbers"])
    host_link.redirect_standard_streams()
    confinement.limit_resources(setup["resources"])
    confinement.confine(kernel, setup["landlock"], bytes.fromhex(setup["program"]))
    confinement.check_restrictions(kernel)
    if not setup["path"] and "ctypes" not in setup["modules"]:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("ctypes", "_ctypes"):
                del sys.modules[name]  # if code gets ctypes in another way, the kernel's rules still apply
