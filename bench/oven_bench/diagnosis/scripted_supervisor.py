"""A supervisor that is a script: two programs, written by hand on the development families, answer every question.

It stands for a model in everything but the thinking: its answers come over HTTP as a conversation, its programs run in
the sandbox over the context that a model would get, and the host holds what they conclude against the log. So the bench
measures what programs over a log can add to statistics and the graph, and what the way there costs; what a language
model would write is another question.
"""

from __future__ import annotations

from typing import Final

from oven_bench.judging.scripted_conversation import Asked, Said

LOOK: Final = """\
I look at what there is first.

```repl
print(context["run"]["recipe"], len(context["ticks"]), "ticks", sorted(context["observations"]))
for alarm in context["alarms"]:
    print(alarm["symptom"], alarm["metric"], alarm["onset"], alarm["raised"], alarm["before"], alarm["after"])
print(context["graph"]["ranked"][:5], context["not_finite"])
```
"""

DECIDE: Final = '''\
Now I compare the gauges around each change, the causes that leave the plainest trace first.

```repl
from statistics import mean, median

ticks, seen = context["ticks"], context["observations"]


def part(metric, first, last):
    return [v for t, v in zip(ticks, seen.get(metric, [])) if v is not None and first <= t <= last]


def level(metric, first, last):
    values = part(metric, first, last)
    return median(values) if values else None


def ratio(metric, onset, span=12):
    """The level of the `span` ticks from the onset on, over that of the 25 before."""
    old, new = level(metric, onset - 25, onset - 1), level(metric, onset, onset + span)
    return new / old if old and new is not None else None


def alarm(*symptoms):
    found = [a for a in context["alarms"] if a["symptom"] in symptoms and a["onset"] > 40]
    return min(found, key=lambda a: a["onset"]) if found else None


def jumps(metric, factor):
    """(tick, old, new, steps that it took) of lasting changes of a setting that hardly varies by itself."""
    found = []
    values = [(t, v) for t, v in zip(ticks, seen.get(metric, [])) if v]
    for (_, a), (t, b) in zip(values, values[1:]):
        if t > 40 and (b / a > factor or b / a < 1 / factor):
            found.append((t, a, b))
    return found


def held_out_lost():
    """Share by which the last held-out readings are worse than those before the newest alarms."""
    for name, about in context["metrics"].items():
        if about["held_out"]:
            values = part(name, 0, ticks[-1])
            if len(values) >= 5:
                sign = 1 if about["better"] == "up" else -1
                best = max(sign * v for v in values[:-2])
                last = max(sign * v for v in values[-2:])
                return (best - last) / (abs(best) + 1e-9)
    return 0.0


def say(cause, metric, onset, last=None, knob=None, value=None, revert=None, confidence=0.6):
    last = min(last or onset + 10, ticks[-1])
    proof = [evidence(metric, onset, last)] if metric in seen else []
    if not proof:
        FINAL({"cause": "none", "confidence": 0.5})
    if knob not in context["actuators"]:
        knob = value = None
    if knob:
        about = context["actuators"][knob]
        value = min(max(value, about["low"]), about["high"])
    FINAL({"cause": cause, "evidence": proof, "knob": knob, "value": value, "revert_if": revert,
           "confidence": confidence})


def decide():
    lr, update, weights = "learning_rate", "optim/update_ratio", "optim/weight_norm"
    bad = [t for times in context["not_finite"].values() for t in times if t > 1]
    if bad:
        first = min(bad)
        metric = min(m for m, times in context["not_finite"].items() if first in times)
        return say("numeric_overflow", metric, first, first)

    rate = [(t, a, b) for t, a, b in jumps(lr, 1.6)]
    up = [one for one in rate if one[2] > one[1]]
    down = [one for one in rate if one[2] < one[1]]
    if up and not down and up[0][2] / up[0][1] > 1.8:
        t, a, b = up[0]
        return say("lr_too_high", lr, t, knob="optimizer.lr_scale", value=a / b)
    if down and not up and len(down) == 1 and down[0][1] / down[0][2] > 2.5:
        t, a, b = down[0]
        return say("lr_too_low", lr, t, knob="optimizer.lr_scale", value=a / b)

    found = alarm("judge_outage")
    if found:
        return say("judge_unavailable", found["metric"], found["onset"], found["raised"])
    found = alarm("data_repeated")
    if found:
        return say("repeated_data", found["metric"], found["onset"], found["raised"])

    steps = level(update, 45, ticks[-1])
    if steps is not None and steps < 4e-4 and not rate:
        return say("lr_too_low", update, 45, ticks[-1], knob="optimizer.lr_scale", value=3.0)

    found = alarm("weights_shrink")
    if found and held_out_lost() > 0.02:
        return say("weight_decay_too_high", weights, found["onset"], found["raised"],
                   knob="optimizer.weight_decay", value=0.01)
    fast, displaced = alarm("update_ratio_high"), alarm("weights_displaced")
    if fast and not rate:
        return say("moments_lost", update, fast["onset"], fast["raised"], knob="optimizer.lr_scale", value=0.5)
    slow = alarm("update_ratio_low")
    if slow and not rate:
        return say("clip_too_tight", update, slow["onset"], slow["raised"], knob="grad.clip", value=1.0)
    if displaced:
        return say("corrupt_weights", weights, displaced["onset"], displaced["raised"])
    spike = alarm("grad_norm_spike")
    kl = alarm("kl_runaway")
    if kl and ratio("kl", kl["onset"]) and ratio("kl", kl["onset"]) > 50:
        return say("off_policy_updates", "kl", kl["onset"], kl["raised"])
    if spike and not kl:
        return say("outlier_gradient", spike["metric"], spike["onset"], spike["raised"],
                   knob="grad.clip", value=1.0)
    grown = alarm("weight_norm_growth")
    if grown and not rate:
        return say("weight_decay_sign_lost", weights, grown["onset"], grown["raised"])

    apart = alarm("judge_disagreement", "judges_apart")
    if apart and held_out_lost() < 0.5:
        rising = [m for m in seen if m.startswith("rewards/") and (ratio(m, apart["onset"], 40) or 1) > 1.08]
        falling = [m for m in seen if m.startswith("rewards/") and (ratio(m, apart["onset"], 40) or 1) < 0.85]
        if rising and falling:
            return say("judge_fooled", apart["metric"], apart["onset"], apart["raised"])
        if apart["symptom"] == "judge_disagreement":
            sharp = apart["raised"] - apart["onset"] <= 6
            return say("judge_noisy" if sharp else "judge_biased", apart["metric"], apart["onset"], apart["raised"])
    if kl:
        return say("kl_penalty_too_weak", "kl", kl["onset"], kl["raised"], knob="grpo.beta", value=0.1)
    forgotten = alarm("level_forgotten")
    if forgotten:
        return say("skewed_mixture", forgotten["metric"], forgotten["onset"], forgotten["raised"])

    worse = alarm("loss_spike", "loss_creeps_up")
    if worse and worse["metric"] == "loss":
        grad = ratio("grad_norm", worse["onset"])
        if held_out_lost() > 0.02 or (worse["symptom"] == "loss_spike" and grad and grad > 1.25):
            return say("corrupt_batches", "loss", worse["onset"], worse["raised"])
    grown = alarm("grad_norm_growth")
    if grown and "kl" in seen:
        return say("engine_mismatch", "grad_norm", grown["onset"], grown["raised"])
    return FINAL({"cause": "none", "confidence": 0.5})


decide()
```
'''


def script(asked: Asked) -> Said:
    """The first turn looks, the second decides; a worker says that it has nothing to add."""
    turns = sum(one.role == "assistant" for one in asked.messages)
    return Said("assistant", LOOK if turns == 0 else DECIDE)
