"""Pretraining of a language model from scratch on a folder of text: by default a Llama of 0.5 M parameters on the
Python standard library's own sources, which learns within a minute on one CPU core. Nothing is downloaded.

The objective is next-token prediction, by Hugging Face's Trainer and AdamW (Loshchilov & Hutter 2019, arXiv
1711.05101); the model is Llama's (Touvron et al. 2023, arXiv 2302.13971), or that of any Hugging Face configuration.
Left out of the usual recipe:

- decay of the learning rate (the schedule is constant after a short warm-up unless a setting says otherwise): the rate
  is the agents' to move;
- documents kept apart within a row: a row is a window of its sub-corpus, and attention sees across the end of a file;
- half precision, gradient accumulation and sharding, which Trainer has and this size has no use for.

What is measured is held out by file, and in bits per byte, which does not depend on the tokenizer. Importing the
package needs no torch; building its job does.
"""
