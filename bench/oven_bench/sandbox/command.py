"""`bench sandbox`: how many attacks each backend of this machine stops, which honest programs it runs, and how fast.

An attack counts only if it works without a sandbox (control.py) in the same run; `not_shown` names those that do not.
It is stopped if it does not reach its goal, its block ends in time and the next block works. The row `tests` is the
profile that may use two folders; `within_rights` names the attacks that it allows on purpose. Times are medians:
`start_ms` until code can run, `block_ms` for an empty block, `worker_ms` for a call of `worker` that does nothing,
`context_s` until 50 MB of text have arrived in a variable.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from oven_bench.sandbox.attack import CONTEXT, KINDS, OWN, PROGRAMS, Attack, Seen
from oven_bench.sandbox.control import run_control
from oven_bench.sandbox.targets import Targets
from oven_bench.study import Report, Study, progress
from oven_core.errors import ConfigError, OvenError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.backend_detection import detect_support
from oven_llm.sandbox.confined_sandbox import open_sandbox
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.profiles import STANDARD_MODULES, Profile
from oven_llm.sandbox.sandbox import Sandbox

DEADLINE_S = 0.5
"""Time limit of an attack's block. No attack needs longer to reach its goal."""
LATE_S = 30.0
"""A block must end this long after its deadline: enough on a busy machine, and less than any attack hangs."""
HANGS_S = 2.5
"""An attack with the goal `hang` must hang this long in the control: the deadline, and the time of a start."""
CONTROL_S = 20.0
"""Time limit of all other attacks in the control."""
ATTACKED = Limits(block_s=DEADLINE_S, memory_bytes=400_000_000, calls=2000, call_bytes=500_000, answer_bytes=500_000)
WITH_CTYPES = Profile(modules=(*STANDARD_MODULES, "ctypes"))
"""`repl` for the attacks: with ctypes they reach the kernel's rules, where `repl` would only refuse the import."""
FRAMES = {"header": "<BI", "kind": [message_format.DONE], "too_long": 2**32 - 1}
"""The format of frames to the host, which an attacker can read in the source."""
CONTEXT_BYTES = 50_000_000
CONTEXTS = 3
STARTS, BLOCKS = 15, 2000
"""Starts and blocks that are timed, and as many calls of `worker` as blocks."""


def shown(attacks: Sequence[Attack]) -> tuple[list[Attack], list[str]]:
    """The attacks that work in the control, and the names of the others."""
    there, not_here = [], []
    with progress("control", len(attacks)) as advance:
        for attack in attacks:
            with Targets() as targets:
                worked = targets.reached(
                    attack, run_control(attack, targets, HANGS_S if attack.goal == "hang" else CONTROL_S)
                )
            if worked:
                there.append(attack)
            else:
                not_here.append(attack.name)
            advance(attack.name)
    return there, not_here


def stopped(attack: Attack, profile: Profile, backend: str) -> bool:
    """Whether the attack missed its goal, its block ended in time, and the next block worked."""
    with Targets() as targets, open_sandbox(profile, {"worker": _worker(targets)}, ATTACKED, backend) as sandbox:
        sandbox.assign("T", targets.facts | FRAMES)
        began = time.monotonic()
        block = sandbox.run(attack.code)
        in_time = time.monotonic() - began < DEADLINE_S + LATE_S
        after = sandbox.run("print(6 * 7)")
        serving = after.ending == "completed" and after.stdout == "42\n"
        values = [] if block.answer is None else [str(block.answer.value)]
        texts = [block.stdout, block.stderr, block.error, *values]
        seen = Seen("\n".join(texts), max(map(len, texts)), in_time, block.answer is not None, serving)
        return in_time and serving and not targets.reached(attack, seen)


def _worker(targets: Targets) -> Any:
    key = targets.memory_secret

    def worker(prompt: str) -> str:
        return f"{len(key)}: {prompt[:10]}"

    return worker


def honest(profile: Profile, backend: str) -> list[str]:
    """Names of the honest programs that printed the right thing, one after another in one sandbox."""
    ran = []
    with open_sandbox(profile, {"worker": lambda prompt: str(prompt.count("beta") - 1)}, backend=backend) as sandbox:
        sandbox.assign("context", CONTEXT)
        for program in PROGRAMS:
            block = sandbox.run(program.code)
            if block.ending == "completed" and block.stdout.strip() == program.printed.strip():
                ran.append(program.name)
    return ran


def speed(profile: Profile, backend: str) -> dict[str, float]:
    begun = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with open_sandbox(profile, backend=backend):
            begun.append(time.perf_counter() - began)
    with open_sandbox(profile, {"worker": lambda prompt: prompt}, Limits(calls=BLOCKS), backend) as sandbox:
        empty_blocks = [_timed(sandbox, "pass") for _ in range(BLOCKS)]
        loop = "for _ in range(100):\n    worker('x')"
        calls = [(_timed(sandbox, loop) - median(empty_blocks)) / 100 for _ in range(BLOCKS // 100)]
        text = ("the quick brown fox jumps over the lazy dog.\n" * (CONTEXT_BYTES // 45 + 1))[:CONTEXT_BYTES]
        contexts = []
        for _ in range(CONTEXTS):
            began = time.perf_counter()
            sandbox.assign("context", text)
            contexts.append(time.perf_counter() - began)
        if sandbox.run("print(len(context))").stdout.strip() != str(CONTEXT_BYTES):
            raise ConfigError("the context arrived incomplete, so its time means nothing")
    return {
        "start_ms": round(1e3 * median(begun), 2),
        "block_ms": round(1e3 * median(empty_blocks), 4),
        "worker_ms": round(1e3 * median(calls), 4),
        "context_s": round(median(contexts), 3),
    }


def _timed(sandbox: Sandbox, code: str) -> float:
    began = time.perf_counter()
    block = sandbox.run(code)
    took = time.perf_counter() - began
    if block.ending != "completed":
        raise ConfigError(f"a harmless block failed, so its time means nothing: {block.error}")
    return took


def measured(name: str, profile: Profile, backend: str, attacks: Sequence[Attack]) -> dict[str, Any]:
    tried = [attack for attack in attacks if profile.name not in attack.within_rights]
    got_through = []
    with progress(name, len(tried)) as advance:
        for attack in tried:
            try:
                held = stopped(attack, profile, backend)
            except OvenError as error:
                raise ConfigError(f"{name}, {attack.name}: {error}") from None
            if not held:
                got_through.append(attack.name)
            advance(attack.name)
    ran = honest(profile, backend)
    return {
        "name": name,
        "attacks": len(tried),
        "stopped": len(tried) - len(got_through),
        "honest": len(PROGRAMS),
        "ran": len(ran),
        **speed(profile, backend),
        "got_through": got_through,
        "did_not_run": [program.name for program in PROGRAMS if program.name not in ran],
        "within_rights": [attack.name for attack in attacks if profile.name in attack.within_rights],
    }


def main() -> Report:
    support = detect_support()
    if not support.backends:
        raise ConfigError("the sandbox has no backend on this machine, so there is nothing to measure")
    attacks, not_shown = shown([*KINDS, *OWN])
    rows = [measured(name, WITH_CTYPES, name, attacks) for name in support.backends]
    if "landlock+seccomp" in support.backends:
        with tempfile.TemporaryDirectory() as read, tempfile.TemporaryDirectory() as write:
            profile = Profile("tests", read=Path(read), write=Path(write))
            rows.append(measured("landlock+seccomp, tests", profile, "landlock+seccomp", attacks))
    names = {attack.name for attack in attacks}
    figures = {
        "backends": rows,
        "kinds": sum(attack.name in names for attack in KINDS),
        "own": sum(attack.name in names for attack in OWN),
        "not_shown": not_shown,
        "landlock": support.landlock_version,
    }
    return Report(figures, rows)


STUDY = Study("sandbox", main, "--json")
