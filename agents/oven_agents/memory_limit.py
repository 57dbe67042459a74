"""Limits the memory of an agent process, so that a leaking agent cannot starve training.

The kernel enforces the limit (RLIMIT_DATA) on each process, including child processes. So an allocation fails before
the machine runs out of memory. In an agent's code, the failure raises MemoryError, and the agent's session stops
calling the agent. Anywhere else, the process exits and reports the reason.
"""

from __future__ import annotations

import resource
import sys

from oven_core.errors import ConfigError

SETTING = "agents_memory_mb"
"""Name of the setting with the limit."""
BYTES_PER_MB = 1_000_000
"""Megabytes are decimal here."""


def set_limit(megabytes: int) -> None:
    """Limit the memory of this process and of its child processes. Raises ConfigError on systems other than Linux."""
    if sys.platform != "linux":
        raise ConfigError(f"{SETTING} = {megabytes} is supported on Linux only; remove the setting")
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted_bytes = megabytes * BYTES_PER_MB
    limit_bytes = wanted_bytes if hard_limit == resource.RLIM_INFINITY else min(hard_limit, wanted_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def out_of_memory_message(*agents: str) -> str:
    """Return the error message for a process that ran out of memory, with the limit and the remedy."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
    subject = f"agent{'s' if len(agents) > 1 else ''} {', '.join(agents)}"
    if limit_bytes == resource.RLIM_INFINITY:
        return f"{subject} ran out of memory on this machine; reduce the agent's memory, or remove it from the run"
    limit_mb = limit_bytes // BYTES_PER_MB
    return (
        f"{subject} reached the limit of {limit_mb} MB on the memory of an agent process ({SETTING}); reduce the "
        f"agent's memory, remove it from the run, or raise the limit with --set {SETTING}={2 * limit_mb}"
    )
