"""The past of a run, read from its log.jsonl: a preview at once, all of it checked and folded behind, and a cache."""
