"""Sorting digits: prompts, the policy that answers them, its supervised warm-up, and the judges of an answer."""
