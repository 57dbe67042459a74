"""Import another program's training logs as a run. Each format has its own importer (see `importer.IMPORTERS`).

The package is part of the controller because it creates logs and run folders. It does not need torch, so that it also
runs on a login node or a laptop.
"""
