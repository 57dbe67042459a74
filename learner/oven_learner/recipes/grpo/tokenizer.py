"""A character tokenizer built in memory: no vocabulary file, no model hub."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SYMBOLS = ("<pad>", "<eos>", "<unk>", "S", "=", *"0123456789")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, padded on the left so that a batch's completions start in the same column."""
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
