"""Bench that attaching in `observe` changes no bit of a training, over a table of trainers and their options."""
