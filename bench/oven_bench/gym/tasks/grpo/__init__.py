"""Sorting digits by GRPO: a small policy, judged by a committee of three."""
