"""A strong model that writes programs over a long context; a cheap worker reads the chunks.

There is the REPL and the loop over it so far; models, prompts and logs come from their callers.
"""
