"""The policy, a Llama small enough for one CPU core, and its character tokenizer, built in memory."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_recipes.small_models import small_llama
from oven_recipes.sorting_settings import SortingSettings


def build_model(settings: SortingSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised policy."""
    # A prompt is the digits between two marks; the completion may be one token longer than it should.
    positions = max(settings.lengths) + 2 + settings.max_completion_length
    return small_llama(settings, tokenizer, positions, tied=False)


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
