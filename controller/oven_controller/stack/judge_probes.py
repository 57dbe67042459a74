"""`doctor --judges`: asks each judge of a configuration once, in a process that has the SDKs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from oven_controller.stack.plan import own_command
from oven_core.errors import ConfigError, ProcessError
from oven_runs.settings.committee_settings import CommitteeSettings

PROBED_S = 120.0
"""For all of them at once: each has 30 s, and the SDKs' import takes a few on a busy machine."""


def probe_judges(committee: CommitteeSettings) -> dict[str, dict[str, Any]]:
    """Member → the outcome: `can_judge`, `failure`, `schema`, …; as `oven_llm.judges.probe.ProbeResult` has it.
    Raises ConfigError where no judge is configured, ProcessError where the process fails."""
    if not committee.judges:
        raise ConfigError(
            "no judge is configured: give the settings with --config FILE or --set committee.members.NAME=…"
        )
    command = own_command("member", "--probe")
    try:
        done = subprocess.run(
            command,
            input=committee.model_dump_json(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBED_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"the judges were not probed within {PROBED_S:g} s") from error
    if done.returncode:
        last = next(reversed(done.stderr.splitlines()), "it says nothing")
        raise (ConfigError if done.returncode == ConfigError.exit_code else ProcessError)(last.removeprefix("error: "))
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found
