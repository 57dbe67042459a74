"""A supervisor that is a script: two programs, written by hand on the development families, answer every question.

It stands for a model in everything but the thinking: its answers come over HTTP as a conversation, its programs run in
the sandbox over the context that a model would get, and the host holds what they conclude against the log. So the bench
measures what programs over a log can add to statistics and the graph, and what the way there costs; what a language
model would write is another question.
"""

from __future__ import annotations

from typing import Final

from tests.support.scripted_conversation import Asked, Said

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
    """(tick, old, new) of single steps of a setting that hardly varies by itself."""
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


def loss_turns():
    """The first tick from which the loss of a policy stays below 0: its KL term has lost its sign."""
    values = [(t, v) for t, v in zip(ticks, seen.get("loss", [])) if v is not None and t > 40]
    for place in range(20, len(values) - 8):
        after = median(v for _, v in values[place:place + 8])
        before = median(v for _, v in values[place - 20:place])
        if after < -0.015 and before > -0.005 and values[place][1] < -0.01:
            return values[place][0]
    return None


def judges(apart):
    """Which way judges fail that stop agreeing, by how far their means jump at once."""
    onset, moved = apart["onset"], []
    for metric in seen:
        if metric.startswith("rewards/"):
            old, new = part(metric, onset - 25, onset - 1), part(metric, onset, onset + 12)
            if old and new:
                middle = median(old)
                spread = 1.5 * median(abs(v - middle) for v in old) + 0.005 * abs(middle) + 1e-9
                if (median(new) - middle) / spread > 4 and median(new) > 1.05 * middle:
                    moved.append(metric)
    alike = level("frac_reward_zero_std", onset, onset + 12) == 0 and (
        level("frac_reward_zero_std", onset - 25, onset - 1) or 0) > 0
    if len(moved) > 1 or (alike and moved):
        return "judge_biased"
    return "judge_fooled" if moved else "judge_noisy"


def decide():
    lr, update, weights = "learning_rate", "optim/update_ratio", "optim/weight_norm"
    bad = [t for times in context["not_finite"].values() for t in times if t > 1]
    if bad:
        first = min(bad)
        metric = min(m for m, times in context["not_finite"].items() if first in times)
        return say("numeric_overflow", metric, first, first)

    rate = jumps(lr, 1.6)
    up = [one for one in rate if one[2] > one[1]]
    down = [one for one in rate if one[2] < one[1]]
    if up and not down and up[0][2] / up[0][1] > 1.8:
        t, a, b = up[0]
        return say("lr_too_high", lr, t, knob="optimizer.lr_scale", value=a / b)
    if len(down) == 1 and not up and down[0][1] / down[0][2] > 2.5:
        t, a, b = down[0]
        return say("lr_too_low", lr, t, knob="optimizer.lr_scale", value=a / b)

    for symptom, cause in (("judge_outage", "judge_unavailable"), ("data_repeated", "repeated_data")):
        found = alarm(symptom)
        if found:
            return say(cause, found["metric"], found["onset"], found["raised"])
    kl = alarm("kl_runaway")
    usual = level("kl", 40, ticks[-1])
    wild = [t for t, v in zip(ticks, seen.get("kl", [])) if v and t > 40 and v > 30 * max(usual, 0.01)]
    if (kl and kl["after"] > 30 * max(kl["before"], 0.01)) or len(wild) >= 3:
        first = kl["onset"] if len(wild) < 3 else wild[0]
        return say("off_policy_updates", "kl", first)

    steps = level(update, 45, ticks[-1])
    if steps is not None and steps < 4e-4 and not rate:
        return say("lr_too_low", update, 45, ticks[-1], knob="optimizer.lr_scale", value=3.0)
    beta = context["actuators"].get("grpo.beta")
    if beta and beta["value"] and level("kl", 45, ticks[-1]):
        implied = (level("loss", 45, ticks[-1]) or 0) / level("kl", 45, ticks[-1])
        if implied > 4 * beta["value"]:
            return say("kl_penalty_too_strong", "kl", 45, ticks[-1], knob="grpo.beta", value=beta["value"])
    turned = loss_turns() if {"reward", "kl"} <= set(seen) else None
    if turned:
        return say("kl_penalty_too_weak", "loss", turned, knob="grpo.beta", value=0.02)

    fast, displaced, slow = alarm("update_ratio_high"), alarm("weights_displaced"), alarm("update_ratio_low")
    spike = alarm("grad_norm_spike")
    if spike and not (fast and fast["onset"] < spike["onset"] - 2) and "reward" not in seen:
        return say("outlier_gradient", spike["metric"], spike["onset"], spike["raised"],
                   knob="grad.clip", value=1.0)
    steady = not rate and 0.9 < (ratio(lr, (fast or slow)["onset"]) or 1) < 1.1 if fast or slow else not rate
    shrunk = ratio(weights, fast["onset"], 12) if fast else None
    if fast and steady and shrunk and shrunk < 0.985:
        return say("weight_decay_too_high", weights, fast["onset"], fast["raised"],
                   knob="optimizer.weight_decay", value=0.01)
    falling = alarm("weights_shrink")
    if falling and not displaced and held_out_lost() > 0.02:
        return say("weight_decay_too_high", weights, falling["onset"], falling["raised"],
                   knob="optimizer.weight_decay", value=0.01)
    if fast and steady:
        return say("moments_lost", update, fast["onset"], fast["raised"], knob="optimizer.lr_scale", value=0.5)
    if displaced:
        return say("corrupt_weights", weights, displaced["onset"], displaced["raised"])
    if slow and steady:
        return say("clip_too_tight", update, slow["onset"], slow["raised"], knob="grad.clip", value=1.0)
    if spike and not kl:
        return say("outlier_gradient", spike["metric"], spike["onset"], spike["raised"],
                   knob="grad.clip", value=1.0)
    grown = alarm("weight_norm_growth")
    if grown and not rate:
        return say("weight_decay_sign_lost", weights, grown["onset"], grown["raised"])

    alike = alarm("zero_advantage_groups")
    if alike and (ratio("reward", alike["onset"]) or 0) > 1.08 and (ratio("reward_std", alike["onset"]) or 1) < 0.8:
        return say("sampling_too_cold", alike["metric"], alike["onset"], alike["raised"])
    apart = alarm("judge_disagreement", "judges_apart")
    if apart:
        return say(judges(apart), apart["metric"], apart["onset"], apart["raised"])
    if kl and held_out_lost() > 0.05:
        return say("engine_mismatch", "kl", kl["onset"], kl["raised"], knob="grpo.beta", value=0.1)
    forgotten = alarm("level_forgotten")
    if forgotten and held_out_lost() > 0.03:
        return say("skewed_mixture", forgotten["metric"], forgotten["onset"], forgotten["raised"])

    worse = alarm("loss_spike", "loss_creeps_up")
    if worse and "reward" not in seen:
        onset = worse["onset"]
        before, last = level("loss", onset - 25, onset - 1), level("loss", ticks[-1] - 15, ticks[-1])
        turned = (level("optim/grad_momentum_cos", onset, onset + 12) or 0) - (
            level("optim/grad_momentum_cos", onset - 25, onset - 1) or 0)
        passed = before is not None and last is not None and last < 1.02 * before
        if passed or turned > 0.1 or held_out_lost() > 0.02 or (ratio("grad_norm", onset) or 1) > 1.25:
            return say("corrupt_batches", "loss", onset, worse["raised"])
    return FINAL({"cause": "none", "confidence": 0.5})


decide()
```
'''


def script(asked: Asked) -> Said:
    """The first turn looks, the second decides; a worker says that it has nothing to add."""
    turns = sum(one.role == "assistant" for one in asked.messages)
    return Said("assistant", LOOK if turns == 0 else DECIDE)
