"""The child's main loop: walls first, then one request after another, until the host closes the pipe."""

from __future__ import annotations

import gc
import importlib
import io
import json
import linecache
import sys
import traceback
from types import CodeType, ModuleType
from typing import Any

from oven_llm.sandbox import frames
from oven_llm.sandbox.inside import lockdown
from oven_llm.sandbox.inside.captured_output import Budget, CapturedOutput
from oven_llm.sandbox.inside.host_link import (
    Answered,
    Channel,
    final_function,
    host_function,
    redirect_standard_streams,
)

OWN = __file__.rpartition("/")[0]
"""Where frames of a traceback are ours, and tell the code's author nothing."""


class NoMoreModules:
    """The last finder of a profile without files."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ModuleNotFoundError."""
        raise ModuleNotFoundError(
            f"No module named {name!r} in the sandbox, which has the standard library's for text, numbers and data",
            name=name,
        )


class Blocks:
    """Runs code in one namespace, that of a module `__main__`, and reports how each block ended."""

    def __init__(self, channel: Channel, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._budget = Budget(setup["output_bytes"])
        self._out = CapturedOutput(lambda data: channel.send(frames.OUT, data), self._budget)
        self._err = CapturedOutput(lambda data: channel.send(frames.ERR, data), self._budget)
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        self._namespace = module.__dict__
        for name in setup["functions"]:
            self._namespace[name] = host_function(channel, name, setup["call_bytes"])
        self._namespace["FINAL"] = final_function(channel, setup["answer_bytes"])

    def assign(self, kind: int, payload: bytes) -> dict[str, Any]:
        """A variable: its name, a zero byte, then text or JSON. Returns what DONE says."""
        end = payload.index(b"\0")
        name, rest = payload[:end].decode(), memoryview(payload)[end + 1 :]
        try:
            text = str(rest, "utf-8", "surrogatepass")
            self._namespace[name] = text if kind == frames.TEXT else json.loads(text)
        except MemoryError:
            return {"ended": "error", "error": "MemoryError", "dropped": 0}
        return {"ended": "completed", "dropped": 0}

    def run(self, number: int, code: str) -> dict[str, Any]:
        """What DONE says: `ended`, and of an error its line."""
        self._budget.renew()
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), self._out, self._err
        name = f"<block {number}>"
        try:
            exec(self._compiled(code, name), self._namespace)
            done = {"ended": "completed"}
        except Answered:
            done = {"ended": "completed"}
        except BaseException as error:
            done = {"ended": "error", "error": self._told(error, code, name)}
        self._out.flush()
        self._err.flush()
        return done | {"dropped": self._budget.dropped}

    def _compiled(self, code: str, name: str) -> CodeType:
        return compile(code, name, "exec", dont_inherit=True)

    def _told(self, error: BaseException, code: str, name: str) -> str:
        """Writes the traceback to standard error. Returns its last line, e.g. "ZeroDivisionError: division by zero"."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            told = traceback.TracebackException.from_exception(error)
            for one in (told, told.__cause__, told.__context__):
                if one is not None and one.stack is not None:
                    one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(OWN)]
            self._err.write("".join(told.format()))
            return "".join(told.format_exception_only()).strip().splitlines()[-1][:500]
        except BaseException:  # its own text fails, or there is no memory left for it
            return type(error).__name__[:100]


def serve(requests: int, replies: int, lifeline: int) -> None:
    """Never returns: ends with the process."""
    channel = Channel(requests, replies)
    _, payload = channel.receive()
    setup = json.loads(payload)
    lockdown.die_with_host(lifeline)
    for name in setup["modules"]:
        importlib.import_module(name)
    if "random" in sys.modules:
        sys.modules["random"].seed(0)  # a run that is resumed draws the same again
    sys.path[:] = setup["path"]
    if not setup["path"]:
        sys.meta_path[:] = [one for one in sys.meta_path if one is not importlib.machinery.PathFinder]
        sys.meta_path.append(NoMoreModules())
    blocks = Blocks(channel, setup)
    gc.collect()
    gc.freeze()  # what was imported is not looked at again
    kernel = lockdown.Kernel(setup["numbers"])
    redirect_standard_streams()
    lockdown.limit_resources(setup["resources"])
    try:
        lockdown.lock(kernel, setup["landlock"], bytes.fromhex(setup["program"]))
        lockdown.prove(kernel)
    except lockdown.LockdownError as error:
        channel.send(frames.READY, str(error).encode())
        return
    channel.send(frames.READY)
    while True:
        kind, payload = channel.receive()
        if kind == frames.RUN:
            number, _, code = payload.partition(b"\0")
            done = blocks.run(int(number), code.decode("utf-8", "surrogatepass"))
        else:
            done = blocks.assign(kind, payload)
        channel.send(frames.DONE, frames.encode(done))
