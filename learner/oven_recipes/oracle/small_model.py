"""Builds and pre-trains the recipe's small model, a Llama with a million parameters, and builds its word tokenizer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from oven_learner.optim.float32_muon import Float32Muon
from oven_recipes.activations.capture import MAX_TOKENS, capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.placeholders import PLACEHOLDER
from oven_recipes.oracle import supervised_stage
from oven_recipes.oracle.benchmark_items import benchmark_words, items
from oven_recipes.oracle.questions import QuestionedPrompt
from oven_recipes.oracle.supervised_stage import Lesson, benchmark_prompts, build_lessons, lesson_loss
from oven_recipes.oracle.template_questions import YES, TemplatePrompt, draw_prompts, draw_questions
from oven_recipes.oracle.template_words import ABSENT, ATTRIBUTES, QUESTIONS, WORDS
from oven_recipes.preparation import resumable_steps
from oven_recipes.small_models import small_llama, warmup_decay_schedule
from oven_recipes.weights_cache import key_of, load_or_train

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
LAYER, STATUS = "Layer:", "[epistemic status:"
"""The first token of an oracle's prompt, and the first token of its answers, which begin by stating a confidence."""
PUNCTUATION = ("\n", "?", ".", ":", ",", "!", "]", PLACEHOLDER)
CONTEXT_LENGTH = 160
"""The model's context in tokens, twice the length of the longest pre-training row."""


class Sizes(NamedTuple):
    """The model's dimensions. With a vocabulary of about 700 words, the default has 0.95 million parameters."""

    hidden: int = 96
    ffn: int = 256
    layers: int = 8
    heads: int = 4


DEFAULT_SIZES = Sizes()


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the words of all template prompts, questions and benchmark texts, and the numbers up to 100."""
    texts: Iterable[str] = chain(
        *(
            (*attribute.values, *attribute.values.values(), *attribute.open, *attribute.closed)
            for attribute in ATTRIBUTES.values()
        ),
        *(words for _, words in (*WORDS.topics.values(), *WORDS.feelings.values(), *WORDS.greetings.values())),
        *WORDS.manners.values(),
        *WORDS.times.values(),
        (ABSENT, "is about the feels because of the"),  # the words that `draw_prompts` adds
        benchmark_words(),
    )
    words = {word for text in texts for word in text.replace("?", "").replace("{}", "").split()}
    return tuple(sorted(word for word in words if word.isalpha())) + tuple(str(number) for number in range(101))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word. A word's token includes the space before it and ignores case.
    Punctuation marks and newlines are separate tokens."""
    tokens = (PAD, EOS, UNKNOWN, *PUNCTUATION, *(f" {word}" for word in vocabulary()))
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=UNKNOWN))
    normalizer_steps = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r" +\n"), "\n"),
        normalizers.Replace(Regex(r"\n *(?=\w)"), "\n "),
        normalizers.Replace(Regex(r"\A *(?=\w)"), " "),
    ]
    core.normalizer = normalizers.Sequence(normalizer_steps)
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[\p{L}']+| ?\p{N}+| \?|\n|[^\s\p{L}\p{N}]|\s"), "isolated")
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(r"(?<=\n) (?=\w)"), "")])
    core.add_tokens([AddedToken(LAYER, normalized=False), AddedToken(STATUS, normalized=False)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(sizes: Sizes, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised model."""
    return small_llama(sizes, tokenizer, CONTEXT_LENGTH)


NOTES_FIRST_SHARE = 0.5
"""Share of rows with notes, a list of the text's facts, before the questions. In the other rows, notes come last. Notes
contain the answers word for word, so it is easier to learn to answer from them than from the text."""
ORACLE_FORMAT_SHARE = 0.3
"""Share of rows in the format of an oracle's prompt, with the text instead of activations, and random confidences. They
teach the model the words of this format."""
BENCHMARK_ROW_RATIO = 2
"""Number of benchmark rows per prompt row. Benchmark rows are about half as long."""
QUERY_STEP_SHARE = 0.6
"""Share of the steps, at the end, that also train on queries, which are questions about activations."""
QUERIES_PER_ROW = 2
"""Number of queries per prompt row. Half of them are about the benchmarks' texts."""
QUESTIONS_PER_PROMPT = 4
"""Number of questions in a prompt's row."""
BENCHMARK_TEXTS = 1000
"""Number of texts from the benchmarks' training parts for queries."""
TEXT_WEIGHT = 0.1
"""Loss weight of tokens outside the answers. It is low because a random text is mostly unpredictable."""


class Schedule(NamedTuple):
    """Number of training steps, prompt rows per step, and the maximum learning rate."""

    steps: int
    rows: int
    learning_rate: float


DEFAULT_SCHEDULE = Schedule(steps=350, rows=12, learning_rate=0.04)
ADAM_RATE_FACTOR = 0.25
"""AdamW's learning rate as a multiple of Muon's."""
VERSION = 3
"""Version of pre-training. Increase it when a code change would change the weights."""

Piece = tuple[str, bool]
"""A part of a row's text, and whether it is an answer."""


def load_small_model(
    tokenizer: Any, seed: int, cache: Path, sizes: Sizes = DEFAULT_SIZES, schedule: Schedule = DEFAULT_SCHEDULE
) -> tuple[PreTrainedModel, str]:
    """Return the small model, loaded from the cache or pre-trained now, and its name in the keys of activations."""
    inputs = {"version": VERSION, "seed": seed, "words": tokenizer.get_vocab(), "sizes": sizes, "schedule": schedule}
    name = f"own-{key_of(inputs)}"
    model = load_or_train(
        cache / f"oracle-{name}",
        seed,
        lambda: build_model(sizes, tokenizer),
        lambda model, unfinished: pretrain(model, tokenizer, schedule, seed, unfinished),
    )
    model.train(False)
    return model, name


class ActivationQuery(NamedTuple):
    """A question about the activations of the last `tokens` tokens of `text`."""

    text: str
    tokens: int
    lesson: Lesson


def template_rows(rng: random.Random) -> Iterator[list[Piece]]:
    """Yield rows forever. Each has a prompt, questions with answers, and notes: the values of the prompt's attributes,
    with their broader terms."""
    while True:
        yield _template_row(draw_prompts(1, rng)[0], rng)


def _template_row(prompt: TemplatePrompt, rng: random.Random) -> list[Piece]:
    pieces: list[Piece] = []
    for question in draw_questions(prompt, rng, count=QUESTIONS_PER_PROMPT):
        assert question.answer is not None
        pieces += [("\n" + question.text, False), (question.answer.specific[0], True)]
    notes = []
    for name, attribute in ATTRIBUTES.items():
        value = prompt.values.get(name, ABSENT)
        broader_term = attribute.values.get(value, ABSENT)
        notes += [value, broader_term] if broader_term != value else [value]
    return _build_row(prompt.text, pieces, notes, rng)


def _build_row(text: str, pieces: list[Piece], notes: Sequence[str], rng: random.Random) -> list[Piece]:
    """Build a row from a text, its questions with answers (`pieces`), and notes, in a random format."""
    row: list[Piece] = [(text, False)]
    if rng.random() < ORACLE_FORMAT_SHARE:
        row.insert(0, (f"Layer: {rng.randrange(DEFAULT_SIZES.layers)}\n", False))
        pieces = _with_statuses(pieces, rng)
    note_pieces: list[Piece] = [("\n", False), *((note, True) for note in notes)] if notes else []
    body = note_pieces + pieces if rng.random() < NOTES_FIRST_SHARE else pieces + note_pieces
    return [*row, *body, (EOS, True)]


def _with_statuses(pieces: list[Piece], rng: random.Random) -> list[Piece]:
    """Return the pieces with a random confidence before each answer."""
    result: list[Piece] = []
    for text, is_answer in pieces:
        if is_answer:
            result.append((f"[epistemic status: {rng.randrange(101)}]", False))
        result.append((text, is_answer))
    return result


def benchmark_rows(rng: random.Random) -> Iterator[list[Piece]]:
    """Yield rows forever. Each has a text from a benchmark's training part, and all questions about the text with their
    answers. If the benchmark has labels, the notes are the text's labels. All benchmarks appear equally often."""
    sources = []
    for benchmark, question in QUESTIONS.items():
        items_by_text = groupby(items(benchmark, held_out=False), key=lambda item: item.text)
        labels_by_wording = {question.wording.format(label): label for label in question.labels}
        texts = [(text, [(item.question, item.answer) for item in text_items]) for text, text_items in items_by_text]
        sources.append((labels_by_wording, texts))
    while True:
        labels_by_wording, texts = rng.choice(sources)
        text, answered_questions = rng.choice(texts)
        rng.shuffle(answered_questions)
        pieces: list[Piece] = []
        for question_text, answer in answered_questions:
            pieces += [("\n" + question_text, False), (answer, True)]
        notes = [label for wording, label in labels_by_wording.items() if (wording, YES) in answered_questions]
        if labels_by_wording and not notes:
            notes = [ABSENT]
        yield _build_row(text, pieces, notes, rng)


def draw_queries(
    tokenizer: Any, layers: Sequence[int], count: int, benchmarks: Sequence[QuestionedPrompt], rng: random.Random
) -> list[ActivationQuery]:
    """Return `count` queries, each about a different text and a random layer."""
    template_prompts = [
        QuestionedPrompt(prompt.text, draw_questions(prompt, rng)) for prompt in draw_prompts(count - count // 2, rng)
    ]
    sampled_prompts = [*template_prompts, *rng.sample(benchmarks, count // 2)]
    counts = [rng.randint(1, MAX_TOKENS) for _ in sampled_prompts]
    queries = []
    for prompt, tokens in zip(sampled_prompts, counts, strict=True):
        lesson = rng.sample(build_lessons([prompt], "", [rng.choice(layers)]), 1)[0]
        available = len(tokenizer(prompt.prompt)["input_ids"]) - 1  # the first token is never captured
        queries.append(ActivationQuery(prompt.prompt, min(tokens, available), lesson))
    return queries


def read_activations(model: Any, tokenizer: Any, queries: Sequence[ActivationQuery]) -> list[Tensor]:
    """Return the model's current activations for each query, without gradients."""
    layers = range(model.config.num_hidden_layers)
    texts, tokens = [query.text for query in queries], [query.tokens for query in queries]
    activations = capture(model, tokenizer, texts, layers, tokens)  # ordered by text, then by layer
    return [activations[index * len(layers) + query.lesson.layer].vectors for index, query in enumerate(queries)]


def collate(rows: Sequence[list[Piece]], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return token ids and their loss weights, each (batch, tokens), padded on the right."""
    encoded = []
    for row in rows:
        ids: list[int] = []
        weights: list[float] = []
        for (_, is_answer), piece_ids in zip(row, tokenizer([text for text, _ in row])["input_ids"], strict=True):
            ids += piece_ids
            weights += [1.0 if is_answer else TEXT_WEIGHT] * len(piece_ids)
        encoded.append((ids, weights))
    id_rows = [torch.tensor(ids) for ids, _ in encoded]
    weight_rows = [torch.tensor(weights) for _, weights in encoded]
    padded_ids = pad_sequence(id_rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return padded_ids, pad_sequence(weight_rows, batch_first=True)


def weighted_loss(model: Any, ids: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of the next tokens, in nats."""
    logits = model(input_ids=ids, use_cache=False).logits  # (B, T, V); no token attends to the padding on the right
    targets, target_weights = ids[:, 1:].flatten(), weights[:, 1:].flatten()
    losses = cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="none")
    return (losses * target_weights).sum() / target_weights.sum()


def _draw_steps(
    tokenizer: Any, layers: Sequence[int], schedule: Schedule, seed: int
) -> Iterator[tuple[list[list[list[Piece]]], list[ActivationQuery], Any]]:
    """Yield the random data of each step: the rows of each pass, the queries, and the queries' tokens."""
    rng = random.Random(f"pre-training {seed}")
    sources = ((template_rows(rng), schedule.rows), (benchmark_rows(rng), schedule.rows * BENCHMARK_ROW_RATIO))
    benchmarks = benchmark_prompts(BENCHMARK_TEXTS, rng)
    for step in itertools.count():
        rows_of_passes = [[next(source) for _ in range(count)] for source, count in sources]
        queries: list[ActivationQuery] = []
        batch = None
        if step >= (1 - QUERY_STEP_SHARE) * schedule.steps:
            queries = draw_queries(tokenizer, layers, schedule.rows * QUERIES_PER_ROW, benchmarks, rng)
            lessons, counts = [query.lesson for query in queries], [query.tokens for query in queries]
            batch = supervised_stage.collate(lessons, counts, tokenizer, "spread", rng, always_correct=True)
        yield rows_of_passes, queries, batch


def pretrain(model: Any, tokenizer: Any, schedule: Schedule, seed: int, unfinished: Path) -> None:
    """Train the model on texts, each followed by questions about it and their answers.

    This teaches the model to store the answers in its activations of the text. A large model can use injected
    activations without training, but this small model cannot. So the last steps also ask about its current activations
    of other texts. Held-out texts are never used.

    Muon trains the matrices, in half as many steps as AdamW would need, and AdamW trains the rest. Prompt rows and
    benchmark rows have separate passes, because they differ in length. Progress is saved to the file `unfinished`.
    """
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    other_weights = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Float32Muon(matrices, lr=schedule.learning_rate),
        torch.optim.AdamW(
            other_weights, lr=schedule.learning_rate * ADAM_RATE_FACTOR, betas=(0.9, 0.95), weight_decay=0.0
        ),
    ]
    schedules = [warmup_decay_schedule(optimizer, schedule.steps) for optimizer in optimizers]
    model.train()
    step_data = _draw_steps(tokenizer, range(model.config.num_hidden_layers), schedule, seed)
    trained = (model, *optimizers, *schedules)
    steps = resumable_steps("pre-training the small model", step_data, schedule.steps, trained, unfinished)
    for _, (rows_of_passes, queries, batch) in steps:
        for rows in rows_of_passes:
            weighted_loss(model, *collate(rows, tokenizer)).backward()  # type: ignore[no-untyped-call]
        if queries:
            lessons = [query.lesson for query in queries]
            vectors = read_activations(model, tokenizer, queries)
            with ActivationInjection(model, tokenizer) as injection:
                lesson_loss(model, injection, lessons, vectors, batch).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedules, strict=True):
            optimizer.step()
            scheduler.step()
        model.zero_grad()
    model.eval()
