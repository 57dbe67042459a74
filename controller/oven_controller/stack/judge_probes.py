"""Probe the judges for `doctor --judges`: call each configured judge once, in a process that imports the SDKs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from oven_controller.stack.process_plan import process_command
from oven_core.errors import ConfigError, ProcessError
from oven_runs.settings.committee_settings import CommitteeSettings

PROBE_S = 120.0
"""Timeout in seconds for all judges. Each has 30 s, and importing the SDKs takes a few seconds on a busy machine."""


def probe_judges(committee: CommitteeSettings) -> dict[str, dict[str, Any]]:
    """Return each member's result, with the fields of `oven_llm.judges.judge_probe.ProbeResult`. Raises ConfigError if
    no judge is configured, and ProcessError if the process fails."""
    if not committee.judges:
        raise ConfigError("no judge is configured; pass settings with --config FILE or --set committee.members.NAME=…")
    try:
        result = subprocess.run(
            process_command("member", "--probe"),
            input=committee.model_dump_json(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"probing the judges took longer than {PROBE_S:g} s; try again later") from error
    if result.returncode:
        last_line = next(reversed(result.stderr.splitlines()), "the probe process failed without an error message")
        error_type = ConfigError if result.returncode == ConfigError.exit_code else ProcessError
        raise error_type(last_line.removeprefix("error: "))
    results: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return results
