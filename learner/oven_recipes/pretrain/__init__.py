"""Pretraining of a language model from scratch on a folder of text.

By default this is a Llama of 0.5 M parameters on the sources of the Python standard library, which learns within a
minute on one CPU core. Nothing is downloaded.

The objective is next-token prediction, by Hugging Face's Trainer and AdamW (Loshchilov & Hutter 2019, arXiv
1711.05101). The model is a Llama (Touvron et al. 2023, arXiv 2302.13971), or any other Hugging Face configuration.
Differences from the usual recipe:

- no decay of the learning rate by default: the rate is constant after a short warm-up, because the agents change it
- no separate documents within a row: a row is a window of its sub-corpus, and attention crosses the end of a file
- no half precision, gradient accumulation or sharding: Trainer supports them, but this size does not need them

Whole files are held out, and the metric is bits per byte, which does not depend on the tokenizer. The package does
not import torch until its job is built.
"""
