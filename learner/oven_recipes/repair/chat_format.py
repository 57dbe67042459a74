"""The policy's chat format: its chat template, and a tokenizer whose tokens are words, digits and punctuation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<pad>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
SPECIAL_TOKENS: Final = (PAD, BEGIN, END)
CALL_PARTS: Final = (
    CALL_START + '{"name": "', '", "arguments": {', '"path": "', '"text": "', '"folder": "', '", "old": "',
    '", "new": "', '"}}' + CALL_END, "}}" + CALL_END, CALL_START, CALL_END,
)  # fmt: skip
"""Fixed parts of tool calls. Each is one token. Otherwise, half of an attempt's tokens would be punctuation."""

PIECE_PATTERN: Final = r"\\n| {4}| ?[A-Za-z_]+| ?[0-9]| ?[^\w\s\\]+(?: [^\w\s\\]+)*|\n+|\\| "
"""Pattern of the largest possible tokens: words, digits, indents, runs of punctuation, and newlines."""
MAX_VOCABULARY: Final = 640
"""Maximum size of the trained vocabulary. It has the tasks' words and all 256 bytes, so that it can encode any text."""

CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{%- generation %}"
    "{%- if message.content %}{{- message.content }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    '{{- \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{%- if call.function.arguments is string %}{{- call.function.arguments }}"
    "{%- else %}{{- call.function.arguments | tojson }}{%- endif %}"
    "{{- '}</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>' }}"
    "{%- endgeneration %}"
    "{{- '\n' }}"
    "{%- else %}{{- message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""The chat template, which is ChatML with Qwen's format of tool calls. It does not list the tools, because the policy
learns them from demonstrations."""

ASSISTANT_HEADER: Final = f"{BEGIN}assistant\n"
"""The text before each answer of the policy."""

RESPONSE_TEMPLATE: Final[dict[str, Any]] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": CALL_START,
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""The rules by which transformers parses an answer into a message with tool calls."""


def after_results(texts: Iterable[str]) -> str:
    """Return the text between an answer with tool calls and the next answer. `texts` are the results of the calls."""
    return "\n" + "".join(f"{BEGIN}tool\n{text}{END}\n" for text in texts) + ASSISTANT_HEADER


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`. The same texts give the same tokenizer. The tokenizer pads on the left."""
    core = Tokenizer(models.BPE())
    split_pieces = pre_tokenizers.Split(Regex(PIECE_PATTERN), "isolated")
    encode_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([split_pieces, encode_bytes])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    call_parts = re.compile("|".join(re.escape(part) for part in sorted(CALL_PARTS, key=len, reverse=True)))
    core.train_from_iterator((call_parts.sub(" ", text) for text in texts), trainer)  # without the call parts
    core.add_tokens([AddedToken(part, normalized=False) for part in CALL_PARTS])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, pad_token=PAD, eos_token=END, padding_side="left", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def render(conversations: Iterable[list[dict[str, Any]]]) -> list[str]:
    """Render each conversation as text with the chat template."""
    untrained = build_tokenizer(())
    texts: list[str] = untrained.apply_chat_template(list(conversations), tokenize=False)  # type: ignore[assignment]
    return texts
