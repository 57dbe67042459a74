"""Pretraining of a language model from scratch on a folder of text.

By default this is a Llama of 0.5 M parameters on the sources of the Python standard library, which learns within a
minute on one CPU core. Nothing is downloaded.

The objective is next-token prediction, by Hugging Face's Trainer and AdamW (Loshchilov & Hutter 2019, arXiv
1711.05101). The model is a Llama (Touvron et al. 2023, arXiv 2302.13971), or that of any Hugging Face configuration.
Left out of the usual recipe:

- decay of the learning rate. The schedule is constant after a short warm-up unless a setting says otherwise: the agents
move the rate;

- separate documents within a row. A row is a window of its sub-corpus, and attention sees across the end of a file;

- half precision, gradient accumulation and sharding. Trainer has them, and this size does not need them.

Whole files are held out, and the metric is bits per byte, which does not depend on the tokenizer. Importing the package
needs no torch; building its job does.
"""
