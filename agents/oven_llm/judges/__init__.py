"""Remote members of the reward committee: LLM judges, each a process that answers `oven.reward.<member>`.

    member_process.py → member.py → judge.py → ../providers/  NATS → deadline and counts → one group → one SDK
                               ├ prompts.py, sanitize.py  what the judge is shown
                               ├ degenerate_text.py       what it is not asked about
                               ├ verdict.py               what it may answer
                               ├ adversarial_controls.py  whether it can be fooled, by attack_corpus.py
                               ├ self_checks.py           whether it agrees with itself, by change_test.py
                               └ accounts.py              its share of the books, and its cache

A judge that failed abstains, with the kind of its failure (providers/failures.py); nothing here turns a failure into a
score.
"""
