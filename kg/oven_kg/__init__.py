"""The knowledge graph of training symptoms, causes and remedies, with a source for each edge, and the service that
answers from it.

The graph ranks and explains, but its figures are not calibrated probabilities. It provides reasons with sources, and
the contradictions and preconditions that the mesh enforces. There is no evidence that it improves runs: in a prototype
with injected faults, its gain over the best fixed rule (roll back and lower the learning rate) was within noise.
"""
