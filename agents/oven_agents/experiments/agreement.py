"""Cohen's κ between two raters of the same answers (Cohen 1960). Pure."""

from __future__ import annotations

from collections.abc import Sequence


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """−1 to 1; 0 is what chance gives. None without answers, and where both raters say one and the same throughout, so
    that chance agrees fully. Raises ValueError for unlike lengths."""
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        return None
    agreed = sum(one == other for one, other in pairs) / len(pairs)
    yes, also = sum(first) / len(pairs), sum(second) / len(pairs)
    chance = yes * also + (1 - yes) * (1 - also)
    return None if chance == 1 else (agreed - chance) / (1 - chance)
