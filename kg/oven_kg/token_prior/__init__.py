"""Scores of a vocabulary's tokens, as a prior for training: by a corpus's unigram, or by a graph's labels."""
