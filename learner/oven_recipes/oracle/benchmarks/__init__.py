"""The oracle's benchmarks: classification data sets, read from their published files or made from templates."""
