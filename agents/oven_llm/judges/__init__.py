"""LLM judges on the reward committee. Each member is a process that answers requests on `oven.reward.<member>`.

    member_process.py, committee_member.py   receives requests, and enforces their deadlines
    member_judges.py, judge.py               chooses the judge for a request, and asks its model for scores
    rubric_prompts.py, sanitize.py           prompts, verdict format and treatment of untrusted text
    adversarial_controls.py, self_checks.py  tests of whether a judge can be fooled, is consistent or has changed
    judge_probe.py                           a test of whether a model can judge
    verdict_cache.py                         a cache of verdicts
    probe_set_process.py                     fetches a frontier model's replies for the calibrator

A judge that fails abstains and reports the kind of failure (providers/failures.py). A failure never becomes a score."""
