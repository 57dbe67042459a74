"""The key by which the server acts: one of its own, so that the log says who."""

from __future__ import annotations

from oven_controller.runs.run_access import RunAccess


def commanding(access: RunAccess) -> RunAccess:
    return access
