"""`import`: last month's training as a run. A reader a format, listed in `importer.IMPORTERS`, and one writer.

It stands here, and not with the learner, because what it makes is a log and a run's folder, and because it is used
before anything is attached: on a login node or a laptop, without torch. Other formats are other packages' entry points.
"""
