"""The nine benchmarks, one per module: their published files' layouts, and template texts in their place."""

from __future__ import annotations

from collections.abc import Mapping

from oven_recipes.oracle.benchmarks import (
    ag_news,
    geometry_of_truth,
    md_gender,
    ner,
    relations,
    singular_plural,
    snli,
    sst2,
    tense,
)
from oven_recipes.oracle.benchmarks.benchmark import Benchmark

BENCHMARKS: Mapping[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (geometry_of_truth, relations, sst2, md_gender, snli, ag_news, ner, tense, singular_plural)
}
"""In the order in which they are reported."""
