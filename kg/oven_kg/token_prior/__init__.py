"""Scores of a vocabulary's tokens as a prior for training, from a corpus's unigrams or a graph's labels."""
