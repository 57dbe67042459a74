"""The policy: a Llama small enough for one CPU core."""

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oven_learner.recipes.sorting import SortingSettings


def build_model(settings: SortingSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A freshly initialised policy in float32; torch's global generator decides its weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.ffn,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        # A prompt is the digits between two marks; the completion may be one token longer than it should.
        max_position_embeddings=max(settings.lengths) + 2 + settings.max_completion_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
