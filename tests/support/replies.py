"""Teachers' replies to test with."""

from __future__ import annotations

from oven_controller.traces.records import Message, Reply, Trace


def reply(trace: Trace, at: int, teacher: str, action: Message | None, **more: object) -> Reply:
    """A teacher's reply to a step; its family has the letters of its name without digits."""
    given: dict[str, object] = {
        "trace": trace.id,
        "step": at,
        "state": trace.digests()[at],
        "teacher": teacher,
        "family": teacher.rstrip("0123456789"),
        "action": action,
        "usd": 0.01,
        "tokens_in": 100,
        "tokens_out": 10,
    }
    if action is None:
        given["failure"] = "timeout"
    return Reply.model_validate({**given, **more})
