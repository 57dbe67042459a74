"""LLM judges on the reward committee. Each judge is a process that answers requests on `oven.reward.<member>`.

    member_process.py → committee_member.py → member_judges.py → judge.py → ../providers/
      NATS              deadline               swaps              one group  one request
                        and counts
    rubric_prompts.py, sanitize.py   the prompts and the format of verdicts
    adversarial_controls.py          hidden tests that show whether a judge can be fooled
    self_checks.py                   tests of a judge's consistency
    verdict_cache.py                 earlier verdicts

A judge that fails abstains and reports the kind of failure (providers/failures.py). A failure never becomes a score."""
