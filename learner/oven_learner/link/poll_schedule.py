"""When to look next for what the training thread has said, without being woken by it: by the rhythm of its steps."""

from __future__ import annotations

SOON_S = 0.0005
"""Between two looks while a message is due."""
LOOKS = 10
"""So many of those; one that is later than that has changed its pace, and is waited for at leisure."""
EARLY_S = 0.0005
"""Before it is due: steps are not that regular."""
FORGET = 0.25
"""Weight of the newest interval in the mean of them."""


class PollSchedule:
    """A look may cost the training thread the interpreter for a moment; a message that waits for a look costs its
    decision as much. So few looks, just when a message is due. No clock of its own."""

    def __init__(self, leisure_s: float) -> None:
        """`leisure_s`: between two looks while nothing is due."""
        self._leisure_s = leisure_s
        self._last: float | None = None
        self._period_s: float | None = None
        self._looks = 0

    def found(self, said_s: float) -> None:
        """A look found something, which was said at a time in seconds."""
        if self._last is not None and said_s - self._last > 2 * SOON_S:  # less is what came with it: a receipt
            interval = said_s - self._last
            known = self._period_s
            self._period_s = interval if known is None else known + FORGET * (interval - known)
        self._last, self._looks = said_s, 0

    def pause_s(self, now_s: float) -> float:
        """Until the next look."""
        if self._last is None or self._period_s is None or self._leisure_s <= SOON_S:
            return self._leisure_s
        due = self._last + self._period_s - EARLY_S - now_s
        if due > self._leisure_s + SOON_S:
            return self._leisure_s
        if due > 0:
            return due
        self._looks += 1
        return SOON_S if self._looks <= LOOKS else self._leisure_s
