"""The prior service: a graph of symptoms, causes and remedies in training, each edge with its source.

It ranks and explains; its figures are not calibrated probabilities. In a prototype with injected faults its gain over
the best fixed rule (go back and lower the rate) was within noise, so nothing here is evidence that a graph makes runs
better. What it gives is a reason that can be looked up, and pairs and needs that the mesh holds decisions to.
"""
