"""`import`: write another training's logs as a run. One importer per format (`importer.IMPORTERS`), and one writer.

It is not in the learner's package because it makes a log and a run's folder, and because it runs before a training is
attached: on a login node or a laptop, without torch.
"""
