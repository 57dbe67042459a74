"""Pretraining of a language model from scratch on a folder of text.

By default, a Llama of 0.5 million parameters learns the sources of the Python standard library, within a minute on one
CPU core. Nothing is downloaded.

The objective is next-token prediction, with Hugging Face's Trainer and AdamW (Loshchilov & Hutter 2019, arXiv
1711.05101). The model is a Llama (Touvron et al. 2023, arXiv 2302.13971), or any other Hugging Face configuration. The
recipe differs from the usual one in three ways:

- By default, the learning rate is constant after a short warm-up, because the agents change it.
- A row is a window of its sub-corpus, and attention crosses the end of a file.
- Half precision, gradient accumulation and sharding are not used, because this size does not need them.

Whole files are held out. The metric is bits per byte, which does not depend on the tokenizer. The package does not
import torch until its training job is built."""
