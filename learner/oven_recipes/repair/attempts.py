"""Lets a policy attempt several tasks in parallel, without a trainer. The warm-up and evaluations use this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import parse_response

from oven_learner.losses.completion_logits import pad_rows
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.repair.chat_format import ASSISTANT_HEADER, after_results

MAX_TURNS = 12
"""Maximum number of answers per attempt. A policy that has not finished by then is repeating itself."""


def attempt_all(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[RepairSession],
    max_tokens: int,
    *,
    temperature: float = 1.0,
) -> None:
    """Run all sessions to the end. Sampling uses torch's global generator. The model's mode is restored.

    Args:
        max_tokens: Maximum number of tokens per attempt, including the results of calls.
        temperature: Sampling temperature. 0 means greedy decoding.
    """
    contexts: list[list[int]] = [prompt_ids(tokenizer, session.instance.problem_statement) for session in sessions]
    budgets = [max_tokens] * len(sessions)  # remaining tokens of each attempt
    active = list(range(len(sessions)))
    header_ids = tokenizer(ASSISTANT_HEADER)["input_ids"]
    was_training = model.training
    model.train(False)
    try:
        for _ in range(MAX_TURNS):
            active = [index for index in active if budgets[index] > 0]
            if not active:
                break
            active_contexts = [contexts[index] for index in active]
            max_budget = max(budgets[index] for index in active)
            answers = _sample_answers(model, tokenizer, active_contexts, max_budget, temperature)
            unfinished = []
            for index, full_answer in zip(active, answers, strict=True):
                answer = full_answer[: budgets[index]]
                contexts[index] += answer
                budgets[index] -= len(answer)
                calls = parse_response(tokenizer, answer, prefix=header_ids).get("tool_calls")
                if calls and answer[-1] == tokenizer.eos_token_id:
                    texts = [_call_tool(sessions[index], call["function"]) for call in calls]
                    result_ids = tokenizer(after_results(texts))["input_ids"]
                    contexts[index] += result_ids
                    budgets[index] -= len(result_ids)
                    unfinished.append(index)
            active = unfinished
    finally:
        model.train(was_training)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, statement: str) -> list[int]:
    """Return the tokens of a problem statement, up to the start of the policy's first answer."""
    ids: list[int] = tokenizer.apply_chat_template(  # type: ignore[assignment]
        [{"role": "user", "content": statement}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def _call_tool(session: RepairSession, function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        arguments = {"": arguments}  # an unknown name, so that the session answers with an error
    return session.call(str(function["name"]), arguments).text


def _sample_answers(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    contexts: list[list[int]],
    max_tokens: int,
    temperature: float,
) -> list[list[int]]:
    """Sample an answer to each context, up to its end-of-turn token."""
    end_id = tokenizer.eos_token_id
    ids, mask = pad_rows(contexts, model.device, pad_left=True)  # (batch, prompt)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.no_grad():
        output = model.generate(  # type: ignore[misc]
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end_id,
            **sampling,
        )  # (batch, prompt + completion)
    answers = output[:, ids.size(1) :].tolist()
    return [answer[: answer.index(end_id) + 1] if end_id in answer else answer for answer in answers]


def solved_share(sessions: Sequence[RepairSession]) -> float:
    """Return the share of sessions that solved their task, from 0 to 1."""
    return sum(session.solved for session in sessions) / len(sessions)
