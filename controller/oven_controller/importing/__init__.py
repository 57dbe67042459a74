"""Import another program's training logs as a run, with one importer per format (`importer.IMPORTERS`) and one writer.

It is not in the learner's package because it creates a log and a run folder. It also runs before a training is
attached, on a login node or a laptop without torch.
"""
