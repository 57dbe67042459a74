"""Faults that were held out: written without sight of the agents, of the knowledge graph or of the families that these
were tuned on. A verdict is drawn here; nothing is tuned here."""
