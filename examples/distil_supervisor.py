"""A small supervisor that learns from a large one's programs, under the controller.

    oven-controller supervise run --task stdlib -n 200 …                     # the large one's logs
    oven-controller supervise export logs/stdlib --role supervisor --out rows.jsonl
    oven-controller run -- python examples/distil_supervisor.py --rows rows.jsonl --out student

The student is made here: a tokenizer and a small Llama, trained by TRL's SFTTrainer on what scored. Before and after,
it is served on this machine (examples/judge_server.py) and answers, through `run`, questions about documents that no
row is about. What is reported is the share of its turns whose programs ran to their end, and the official answer F1.

Its chat template leaves out the system message: that is the same in every row, so the weights learn it, and prompts
become short. Without --worker-model the worker is a search for the name that it is asked about, and no model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import oven_learner as oven
from oven_llm.experiments.sample import Posed, posed
from oven_llm.supervisor.caps import Caps
from oven_llm.supervisor.loop import MAX_ITERATIONS
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler, OpenAIHandler
from oven_llm.supervisor.orchestrator import run
from oven_llm.tasks import official_score
from oven_llm.tasks.example import prediction_of
from oven_llm.tasks.stdlib import TASK

TEMPLATE = (
    "{% for message in messages if message.role != 'system' %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
VOCABULARY = 2048
CONTEXT = 2048
"""Tokens; a conversation of four turns has some 1,300."""
TURNS = MAX_ITERATIONS
"""As in the rows: what a supervisor is told names how many turns are left."""
ANSWER = 448
"""Tokens of an answer; the longest program that is taught has 400."""
TIMEOUT_S = 600.0
"""For one answer; a machine that does other work besides needs a minute."""
ERRORS = 2
"""Turns in a row that may fail: before its training each one does, and takes as long as an answer can."""


class Search(ModelHandler):
    """A worker without a model: "yes" where the prompt defines the name that stands in it between backquotes."""

    model = "search"

    def chat(self, messages: Messages) -> LMResponse:
        prompt = messages[-1]["content"]
        named = re.search(r"`([\w.]+)`", prompt)
        name = re.escape(named[1].rpartition(".")[2]) if named else "^"
        return LMResponse("yes" if re.search(rf"\b(?:def|class) {name}\b", prompt) else "no", None, 0.0, self.model)


def tokenizer_for(texts: Sequence[str]) -> Any:
    """Byte-level BPE, so that any text can be written, trained on these."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    options: dict[str, Any] = {"tokenizer_object": made, "pad_token": "<|pad|>", "eos_token": "<|end|>"}
    found: Any = PreTrainedTokenizerFast(**options)  # type: ignore[no-untyped-call]
    found.chat_template = TEMPLATE
    found.clean_up_tokenization_spaces = False
    return found


def student(tokenizer: Any, width: int, layers: int) -> LlamaForCausalLM:
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    ids: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "tie_word_embeddings": True}
    regular: dict[str, Any] = {"attention_dropout": 0.1}  # a few hundred rows are learnt by heart otherwise
    heads: dict[str, Any] = {"num_attention_heads": width // 32, "max_position_embeddings": CONTEXT}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size, **ids, **heads, **regular))


def new_questions(rows: Sequence[dict[str, Any]], count: int, seed: int) -> list[Posed]:
    """About documents that no row is about."""
    known = {title for row in rows for one in row["prompt"] for title in re.findall("“([^”]+)”", one["content"])}
    examples = [one for one in TASK.examples(None, seed, 10 * count) if one.document.title not in known]
    if len(examples) < count:
        raise SystemExit(f"only {len(examples)} new questions are there; lower --questions, or give another --seed")
    chosen = random.Random(seed).sample(examples, count)
    return posed(chosen, chosen, TASK.instructions, 0, seed)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the model in `folder`, behind examples/judge_server.py."""
    command = [sys.executable, str(Path(__file__).with_name("judge_server.py")), "--model", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so small a model is slower on several threads
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if " at " not in line:
                raise SystemExit("the student's server did not start; what it says is above")
            yield line.split(" at ")[1].strip()
        finally:
            server.terminate()


def measured(folder: Path, questions: Sequence[Posed], worker: ModelHandler) -> dict[str, Any]:
    """The share of turns whose programs ran to their end, and answer F1, on these questions."""
    turns = ran = 0
    predicted = {}
    with served(folder) as url, tempfile.TemporaryDirectory() as logs:
        supervisor = OpenAIHandler("student", url, temperature=0.0, max_tokens=ANSWER, timeout_s=TIMEOUT_S)
        for number, one in enumerate(questions):
            place = Path(logs, str(number))
            caps = Caps(errors=ERRORS)
            result = run(one.query, list(one.context), supervisor, worker, TURNS, place, caps=caps)
            answers = [json.loads(line) for line in (place / "supervisor.jsonl").read_text().splitlines()]
            programs = [json.loads(line) for line in (place / "repl.jsonl").read_text().splitlines()]
            bad = {each["step"] for each in programs if each["ended"] != "completed" or each["refused"]}
            turns += len(answers)
            ran += len({each["step"] for each in programs} - bad)
            if result.answered:
                predicted[one.example.id] = prediction_of(result.answer)
    scores = official_score.scores(predicted, {one.example.id: one.example.references for one in questions})
    return {
        "turns": turns,
        "programs_that_ran": ran,
        "share": ran / turns if turns else None,
        "answered": len(predicted),
        "questions": len(questions),
        "answer_f1": scores.answer_f1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="as `supervise export --role supervisor` writes them")
    parser.add_argument("--out", type=Path, default=Path("student"), help="folder for the student")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--questions", type=int, default=20, help="new ones, before and after")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--worker-model", help="behind --worker-url; by default a search, and no model")
    parser.add_argument("--worker-url", default="http://127.0.0.1:8000/v1")
    options = parser.parse_args()
    set_seed(options.seed)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    questions = new_questions(rows, options.questions, options.seed)
    worker = OpenAIHandler(options.worker_model, options.worker_url) if options.worker_model else Search()
    texts = [one["content"] for row in rows for one in (*row["prompt"][1:], *row["completion"])]
    tokenizer = tokenizer_for(texts)
    model = student(tokenizer, options.width, options.layers)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    before = measured(options.out, questions, worker)
    print(f"before: {json.dumps(before)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            output_dir=folder, learning_rate=2e-3, weight_decay=0.1, per_device_train_batch_size=4,
            gradient_checkpointing=False,
            max_steps=options.steps, lr_scheduler_type="cosine", warmup_steps=options.steps // 20, max_length=CONTEXT,
            logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, bf16=False, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = SFTTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows]),
            processing_class=tokenizer,
        )
        oven.attach(trainer)
        trainer.train()
        trainer.save_model(str(options.out))
    after = measured(options.out, questions, worker)
    print(f"after: {json.dumps(after)}", flush=True)


if __name__ == "__main__":
    main()
