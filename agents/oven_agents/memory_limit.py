"""Limits the memory of an agent process, so that a leaking agent cannot starve training.

The kernel enforces the limit (RLIMIT_DATA) on each process, including child processes. So the agent's allocation fails
before the machine runs out of memory. In an agent's code this raises MemoryError, which the session handles. In other
code the process exits and reports the reason.
"""

from __future__ import annotations

import resource
import sys

from oven_core.errors import ConfigError

SETTING = "agents_memory_mb"
MB = 1_000_000
"""Bytes in a megabyte."""


def limit(megabytes: int) -> None:
    """Limit this process and all processes that it starts. Raises ConfigError on systems without the limit."""
    if sys.platform != "linux":
        raise ConfigError(f"{SETTING} = {megabytes} works on Linux only; remove it")
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = megabytes * MB if hard_limit == resource.RLIM_INFINITY else min(hard_limit, megabytes * MB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def reached(*agents: str) -> str:
    """Return the message for the log and a status: these agents' process is out of memory, the limit, the remedy."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    who = f"agent{'s' if len(agents) > 1 else ''} {', '.join(agents)}"
    if most == resource.RLIM_INFINITY:
        return f"{who} found no memory left on this machine; fix what the agent hoards, or remove it from the run"
    now = most // MB
    return (
        f"{who} reached the limit of {now} MB on the memory of an agent process ({SETTING}); fix what the agent "
        f"hoards, remove it from the run, or allow more with --set {SETTING}={2 * now}"
    )
