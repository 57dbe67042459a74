"""The prior service's place (docs/roadmap.md): a graph of symptoms, causes and remedies. Nothing is here yet."""
