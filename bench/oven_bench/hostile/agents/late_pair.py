"""The pair of attackers that does nothing for 59 ticks."""

from __future__ import annotations

from oven_bench.hostile.agents.pair import Pair


class LatePair(Pair):
    """The pair, from tick 60 on."""

    FROM = 60
    """The first tick at which it votes, after other newcomers would have been judged."""
