"""Runs a policy's attempts at several tasks in parallel, without a trainer, for the warm-up and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import parse_response

from oven_learner.losses.completion_logits import pad_rows
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.repair.chat_format import ASSISTANT, after_results

MAX_TURNS = 12
"""Maximum number of calls per attempt. An attempt that needs more is going in circles."""


def attempt_all(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[RepairSession],
    max_tokens: int,
    *,
    temperature: float = 1.0,
) -> None:
    """Run all sessions to the end. `max_tokens` limits the tokens of each attempt, including results. `temperature` 0
    is greedy. Restores the model's mode and computes no gradient. Sampling uses torch's global generator."""
    contexts: list[list[int]] = [prompt_ids(tokenizer, session.instance.problem_statement) for session in sessions]
    budget = [max_tokens] * len(sessions)
    active = list(range(len(sessions)))
    prefix = tokenizer(ASSISTANT)["input_ids"]
    was_training = model.training
    model.train(False)
    try:
        for _ in range(MAX_TURNS):
            active = [index for index in active if budget[index] > 0]
            if not active:
                break
            active_contexts, max_budget = [contexts[index] for index in active], max(budget[index] for index in active)
            answers = _sample_answers(model, tokenizer, active_contexts, max_budget, temperature)
            callers = []
            for index, full_answer in zip(active, answers, strict=True):
                answer = full_answer[: budget[index]]
                contexts[index] += answer
                budget[index] -= len(answer)
                calls = parse_response(tokenizer, answer, prefix=prefix).get("tool_calls")
                if calls and answer[-1] == tokenizer.eos_token_id:
                    texts = [_call_tool(sessions[index], call["function"]) for call in calls]
                    result_ids = tokenizer(after_results(texts))["input_ids"]
                    contexts[index] += result_ids
                    budget[index] -= len(result_ids)
                    callers.append(index)
            active = callers
    finally:
        model.train(was_training)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, statement: str) -> list[int]:
    """Return the tokens of a task, up to the start of the policy's first answer."""
    ids: list[int] = tokenizer.apply_chat_template(  # type: ignore[assignment]
        [{"role": "user", "content": statement}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def _call_tool(session: RepairSession, function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    return session.call(str(function["name"]), arguments if isinstance(arguments, dict) else {"": arguments}).text


def _sample_answers(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    contexts: list[list[int]],
    max_tokens: int,
    temperature: float,
) -> list[list[int]]:
    """Sample an answer to each context, up to its end-of-turn token."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids, mask = pad_rows(contexts, model.device, pad_left=True)  # (B, P)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.no_grad():
        output = model.generate(  # type: ignore[misc]
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            pad_token_id=pad,
            eos_token_id=end,
            **sampling,
        )  # (B, P + C)
    answers = output[:, ids.size(1) :].tolist()
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]


def solved_share(sessions: Sequence[RepairSession]) -> float:
    """Return the share of sessions that solved their task, from 0 to 1."""
    return sum(session.solved for session in sessions) / len(sessions)
