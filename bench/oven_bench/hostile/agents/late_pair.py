"""The pair that bides its time: honest to look at for 59 ticks."""

from __future__ import annotations

from oven_bench.hostile.agents.pair import Pair


class LatePair(Pair):
    """The pair, from tick 60 on."""

    FROM = 60
    """The first tick on which it says anything: the pair is watched as long as others are, and longer."""
