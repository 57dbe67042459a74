"""One run on the real stack, with or without an attack plugged in."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from oven_bench.hostile.attacks import ATTACKS, HONEST, NOBODY, STARTS, Attack
from oven_bench.hostile.plugged_agents import Company
from oven_bench.hostile.run_facts import Case, Log, Row, read
from oven_bench.training.recipe_run import Episode, up_command
from oven_bench.worker_processes import ONE_THREAD
from oven_core import plugins
from oven_core.errors import ProcessError
from oven_core.protocol.events import Event
from oven_runs.home.run_folder import RunFolder

READY = "starting the learner"
"""`up` prints this when everything but the learner is up, seconds before the first tick."""
LIMIT_S, LIMIT_S_PER_STEP = 120.0, 5.0
LOOK_S = 0.5
ENDED_S = 60.0
"""Time limit for a stack to end after SIGTERM."""


def play(case: Case, home: Path, options: Mapping[str, object], settings: Sequence[str] = ()) -> Row:
    """Run a case and measure it. `options` are the recipe's, `settings` those of `up`. Raises ProcessError if there is
    nothing to report: the run wrote no log, a guest never joined, or a run without an attack did not complete."""
    attack = ATTACKS.get(case.attack, NOBODY)
    began = time.monotonic()
    # Agents see the run's name, so it must not reveal the start.
    folder = RunFolder(home / "runs" / f"run-{uuid4().hex[:8]}")
    environment = {**os.environ, **ONE_THREAD, "OVEN_HOME": str(home)}
    output = home / f"{folder.run}.txt"
    with output.open("w") as out:
        up = subprocess.Popen(_up(case, folder.run, attack, options, settings), env=environment, stdout=out, stderr=out,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    company = Company(folder, environment, attack.names)
    refused_grants = dict.fromkeys(sorted(attack.names) if attack.granted else [], "it was not tried")
    try:
        limit = time.monotonic() + LIMIT_S + LIMIT_S_PER_STEP * case.steps
        if _until_ready(up, output, limit):
            for guest in attack.guests:
                company.plug_in(guest)
        while up.poll() is None and time.monotonic() < limit:
            company.look()
            results = {name: company.trust(name, attack.granted) for name in refused_grants}
            refused_grants = {name: reason for name, reason in results.items() if reason}
            if attack.approved:
                company.approve()
            time.sleep(LOOK_S)
        code = up.poll()
    finally:
        _end(up)
        survivors = company.end()
    words = f"{company.last_words()}\n{_tail(output)}"
    log = _log(folder, attack.names)
    if log is None or (attack is NOBODY and (log.accuracy is None or code != 0)):
        raise ProcessError(f"`up` for {case} ended with code {code} and did not complete:\n{words}")
    if refused_grants:
        raise ProcessError(f"`trust` never succeeded in {case}: {'; '.join(refused_grants.values())}\n{words}")
    if missing := sorted(attack.names.difference(log.joined)):
        raise ProcessError(f"{', '.join(missing)} never joined {case}, so nothing was attacked:\n{words}")
    output.unlink()
    size, seconds = folder.export.stat().st_size, round(time.monotonic() - began, 1)
    return Row(case, log, size, company.memory_mb, survivors, code, seconds)


def _up(case: Case, run: str, attack: Attack, options: Mapping[str, object], settings: Sequence[str]) -> list[str]:
    start = STARTS[case.start]
    command = up_command(Episode("swarm", start, case.seed, case.steps, "", options=tuple(options.items())), run)
    for setting in settings:
        command += ["--set", setting]
    files = [str(guest.path) for guest in attack.guests if guest.how == "stack"]
    if files or attack.left_out:
        shipped = [name for name in plugins.find_plugins("agents") if name not in attack.left_out]
        command += ["--set", "agents=" + ",".join([*shipped, *files])]
    return command


def _until_ready(up: subprocess.Popen[bytes], output: Path, limit: float) -> bool:
    """Wait until the stack is up. False if it ended or the time limit has passed."""
    while up.poll() is None and time.monotonic() < limit:
        if READY in output.read_text(errors="replace"):
            return True
        time.sleep(0.05)
    return False


def _end(up: subprocess.Popen[bytes]) -> None:
    """End a stack that is still up: SIGTERM, then SIGKILL."""
    if up.poll() is None:
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _log(folder: RunFolder, guests: Collection[str]) -> Log | None:
    """The facts of the run's log; None if there is no log."""
    if not folder.export.exists():
        return None
    with folder.export.open() as lines:
        return read(map(Event.from_line, lines), guests, HONEST)


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-15:])
