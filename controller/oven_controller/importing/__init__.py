"""Import another program's training logs as a run. Each format has its own importer (see `importer.IMPORTERS`).

This package does not belong to the learner because it creates a log and a run folder. It also runs where torch is not
installed, for example on a login node or a laptop.
"""
