"""The knowledge graph: symptoms, causes and remedies in training, each edge with its source, and the service over it.

The graph ranks and explains, but its figures are not calibrated probabilities. In a prototype with injected faults, its
gain over the best fixed rule (roll back and lower the learning rate) was within noise. So nothing here is evidence that
a graph makes runs better. It provides reasons that can be looked up, and the contradictions and preconditions that the
mesh enforces.
"""
