"""LLM judges on the reward committee. Each judge is a process that answers requests on `oven.reward.<member>`.

    member_process.py → committee_member.py → member_judges.py → judge.py → ../providers/
      NATS              deadline               swaps              one group  one request
                        and counts
    rubric_prompts.py, sanitize.py   prompts, verdict format and treatment of untrusted text
    adversarial_controls.py          hidden tests that show whether a judge can be fooled
    self_checks.py                   tests of a judge's consistency
    verdict_cache.py                 a cache of verdicts

A judge that fails abstains and reports the kind of failure (providers/failures.py). A failure never becomes a score."""
