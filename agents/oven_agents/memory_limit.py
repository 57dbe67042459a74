"""How much memory a process of agents may take: what one of them hoards would be the training's.

The kernel holds each process to it (RLIMIT_DATA), those that an agent starts too, so an agent's own allocation fails
before the machine's does. That is a MemoryError where it happens, which the session answers for its agent; where other
code meets it, the process ends and says why.
"""

from __future__ import annotations

import resource
import sys

from oven_core.errors import ConfigError

SETTING = "agents_memory_mb"
MB = 1_000_000
"""Bytes."""


def limit(megabytes: int) -> None:
    """For this process from now on, and for all that it starts. Raises ConfigError where the system does not hold a
    process to it."""
    if sys.platform != "linux":
        raise ConfigError(f"{SETTING} = {megabytes} holds on Linux only; leave it out")
    held = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = megabytes * MB if held == resource.RLIM_INFINITY else min(held, megabytes * MB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def reached(*agents: str) -> str:
    """That the process of `agents` got no more memory, at which limit, and what to do; for its log and a status."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    who = f"agent{'s' if len(agents) > 1 else ''} {', '.join(agents)}"
    if most == resource.RLIM_INFINITY:
        return f"{who} found no memory left on this machine; leave it out, or mend what it hoards"
    now = most // MB
    return (
        f"{who} reached the limit of {now} MB on the memory of a process of agents ({SETTING}); mend what it hoards, "
        f"leave it out, or allow more with --set {SETTING}={2 * now}"
    )
