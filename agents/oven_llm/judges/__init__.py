"""LLM judges on the reward committee. Each one is a process that answers requests on `oven.reward.<member>`.

    member_process.py → member.py → member_judges.py → judge.py → ../providers/
      NATS              deadline     which model        one group  one request
                        and counts
    rubric_prompts.py, sanitize.py   what the judge sees, and what it must reply
    adversarial_controls.py          whether it can be fooled
    self_checks.py                   whether it agrees with itself
    verdict_cache.py                 its past verdicts

A judge that fails abstains and reports the kind of its failure (providers/failures.py). A failure never becomes a
score.
"""
