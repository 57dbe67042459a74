"""The policy, a Llama small enough for one CPU core, and its character tokenizer, built in memory."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oven_recipes.sorting_settings import SortingSettings


def build_model(settings: SortingSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised policy in float32. torch's global generator decides its weights."""
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


SYMBOLS = ("<pad>", "<eos>", "<unk>", "S", "=", *"0123456789")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, padded on the left so that completions start in the same
    column."""
    core = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
