"""Probe the judges for `doctor --judges`: call each configured judge once, in a process that imports their SDKs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from oven_controller.stack.process_plan import run_to_end
from oven_core.errors import ConfigError, ProcessError
from oven_runs.settings.committee_settings import CommitteeSettings

PROBE_TIMEOUT_S = 120.0
"""Timeout in seconds for all judges. Each judge has 30 s, and importing the SDKs takes several seconds."""


def probe_judges(committee: CommitteeSettings) -> dict[str, dict[str, Any]]:
    """Return each member's result, with the fields of `oven_llm.judges.judge_probe.ProbeResult`. Raises ConfigError if
    no judge is configured, and ProcessError if the process takes too long. The process's own errors are raised too."""
    if not committee.judges:
        raise ConfigError("no judge is configured; pass settings with --config FILE or --set committee.members.NAME=…")
    try:
        output = run_to_end("member", "--probe", timeout_s=PROBE_TIMEOUT_S, stdin=committee.model_dump_json())
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"probing the judges took longer than {PROBE_TIMEOUT_S:g} s; try again later") from error
    results: dict[str, dict[str, Any]] = json.loads(output)
    return results
