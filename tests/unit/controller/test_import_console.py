"""Console output of training programs becomes a run without options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_controller.importing.console.headed_table import HeadedTable
from oven_controller.importing.console.line_parser import parse_line
from oven_controller.importing.import_run import ImportedSource, read_source
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Observation

STEPS = range(1, 13)


class Format(NamedTuple):
    """A format, and what should be read from it."""

    line: Callable[[int], str]
    """Returns the lines of a step."""
    step_column: str
    columns: dict[str, str]
    """The column of the loss, the reward, the learning rate, the gradient norm and held-out metrics."""
    last_step: int
    observations: int = len(STEPS)


def loss(step: int) -> str:
    return f"{2 + 1 / step:.4f}"


def every(interval: int, step: int, text: str) -> str:
    return text if step % interval == 0 else ""


def columns(*cells: object, widths: tuple[int, ...], align: str = ">") -> str:
    return "  ".join(f"{cell:{align}{width}}" for cell, width in zip(cells, widths, strict=True))


SPACY_COLUMNS = ("E", "#", "LOSS TOK2VEC", "LOSS NER", "ENTS_F", "SCORE")
SPACY_WIDTHS = (3, 6, 12, 8, 6, 6)
YOLO_CLASSES = f"{'Class':>22}" + "".join(f"{name:>11}" for name in ("Images", "Instances", "Box(P", "R", "mAP50"))


def yolo(i: int) -> str:
    """Return what Ultralytics prints in an epoch, with the states of its progress bars."""
    header = "".join(f"{name:>11}" for name in ("Epoch", "GPU_mem", "box_loss", "cls_loss", "Instances", "Size"))
    row = f"{f'{i}/12':>11}{'2.9G':>11}{loss(i):>11}{0.5:11.4g}{16:11.4g}{640:11.4g}"
    return (
        f"\n{header}\n{row.replace(loss(i), '9.9')}:   0%|          | 0/8 [00:00<?, ?it/s]\r"
        f"{row}: 100%|##########| 8/8 [00:02<00:00,  3.50it/s]\n"
        f"{YOLO_CLASSES}   mAP50-95)     Mask(P  mAP50-95): 100%|##########| 4/4 [00:00<00:00,  5.03it/s]\n"
        f"{'all':>22}{128:11d}{929:11d}{0.6:11.3g}{0.5:11.3g}{0.55:11.3g}{0.4:11.3g}{0.3:11.3g}{0.2:11.3g}\n"
    )


FORMATS = {
    "Ultralytics": Format(
        yolo,
        "epoch",
        {
            "loss": "box_loss",
            "eval/mAP50": "val_mAP50",
            "eval/mAP50-95": "val_mAP50-95",
            "eval/mAP50-95(M)": "val_mAP50-95(M)",
            "eval/precision": "val_precision",
            "eval/precision(M)": "val_precision(M)",
            "eval/recall": "val_recall",
        },
        12,
    ),
    "spaCy": Format(
        lambda i: (
            (
                f"{columns(*SPACY_COLUMNS, widths=SPACY_WIDTHS, align='<')}\n"
                f"{columns(*('-' * width for width in SPACY_WIDTHS), widths=SPACY_WIDTHS)}\n"
            )
            * (i == 1)
            + f"{columns(i // 5, 200 * i, loss(i), '9.50', '60.10', '0.60', widths=SPACY_WIDTHS)}\n"
        ),
        "step",
        {"loss": "LOSS TOK2VEC", "eval/ENTS_F": "val_ENTS_F", "eval/SCORE": "val_SCORE"},
        2400,
    ),
    "fastai": Format(
        lambda i: (
            "epoch     train_loss  valid_loss  accuracy  time    \n" * (i == 1)
            + f"{i - 1}         {loss(i)}    2.700000    0.500000  00:03     \n"
        ),
        "epoch",
        {"loss": "train_loss", "eval/loss": "valid_loss"},
        11,
    ),
    "trainer dictionaries": Format(
        lambda i: (
            f"{{'loss': {loss(i)}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {i / 10}}}\n"
            + every(4, i, f"{{'eval_loss': 2.5, 'eval_runtime': 3.1, 'epoch': {i / 10}}}\n")
        ),
        "row number",
        {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "eval/loss": "eval_loss"},
        11,
    ),
    "trainer dictionaries as text, after a bar and a log prefix": Format(
        lambda i: (
            f"  1%|▎  | {i}/500 [00:01<08:20,  1.0it/s]\r[INFO|trainer.py:77] 2030-01-01 10:00:00,100 >> "
            f"{{'loss': '{loss(i)}', 'learning_rate': '1e-05', 'num_tokens': '1.5e+06', 'epoch': '{i / 10}'}}\n"
        ),
        "row number",
        {"loss": "loss", "learning_rate": "learning_rate"},
        11,
    ),
    "verl": Format(
        lambda i: (
            f"\x1b[36m(main_task pid=77)\x1b[0m step:{i} - actor/pg_loss:-0.1 - critic/vf_loss:0.3 - "
            f"actor/grad_norm:1.5 - actor/lr(1e-4):0.010 - critic/score/mean:{i / 20} - critic/rewards/mean:0.1 - "
            "timing/testing:3.0" + every(4, i, " - val/test_score/sums:0.25") + "\n"
        ),
        "step",
        {
            "reward": "critic/score/mean",
            "learning_rate": "actor/lr",
            "grad_norm": "actor/grad_norm",
            "eval/test_score/sums": "val/test_score/sums",
        },
        12,
    ),
    "OpenRLHF": Format(
        lambda i: (
            f"Episode [1/1]:  {i}%|▎| {i}/99 [00:01<01:00,  1.2s/it, policy_loss=-0.1, kl=0.01, reward=0.{i:02d}]"
            + ("\n" if i == STEPS[-1] else "\r")
        ),
        "batch",
        {"reward": "reward"},
        12,
    ),
    "nanoGPT": Format(
        lambda i: (
            every(4, i, f"step {i}: train loss 2.6, val loss 2.7\n")
            + f"iter {i}: loss {loss(i)}, time 30.12ms, mfu 9.50%\n"
        ),
        "step",
        {"loss": "loss", "eval/loss": "val loss"},
        12,
    ),
    "llm.c": Format(
        lambda i: (
            f"step {i:4d}/100 | loss {loss(i)} (+nanz)| norm 1.5 (+0.2z)| lr 3.0e-04 | 30.1 ms | 9.1% MFU\n"
            + every(4, i, "val loss 2.7\n")
        ),
        "step",
        {"loss": "loss", "learning_rate": "lr", "grad_norm": "norm", "eval/loss": "val loss"},
        12,
    ),
    "llm.c, main.log": Format(
        lambda i: f"s:{i} trl:{loss(i)} lr:0.0003 norm:1.5\n" + every(4, i, f"s:{i} tel:2.7\n"),
        "step",
        {"loss": "trl", "learning_rate": "lr", "grad_norm": "norm", "eval/loss": "tel"},
        12,
    ),
    "modded-nanogpt": Format(
        lambda i: (
            f"step:{i}/100 train_loss:{loss(i)} train_time:{i}0ms step_avg:nanms\n"
            + every(4, i, f"step:{i}/100 val_loss:2.7 train_time:{i}0ms step_avg:10.1ms\n")
        ),
        "step",
        {"loss": "train_loss", "eval/loss": "val_loss"},
        12,
        observations=15,  # both kinds of lines have a time
    ),
    "plain epochs": Format(
        lambda i: f"Epoch {i}/12 - loss: {loss(i)} - val_loss: 2.7 - val_acc: 12%\n",
        "epoch",
        {"loss": "loss", "eval/loss": "val_loss", "eval/acc": "val_acc"},
        12,
    ),
    "Keras": Format(
        lambda i: (
            f"Epoch {i}/12\n 5/10 [==>..] - ETA: 3s - loss: 9.9\r10/10 [====] - 6s 9ms/step - loss: {loss(i)} - "
            "val_loss: 2.7\n"
        ),
        "epoch",
        {"loss": "loss", "eval/loss": "val_loss"},
        12,
    ),
    "PyTorch's examples": Format(
        lambda i: (
            f"Train Epoch: {i} [0/600 (0%)]\tLoss: {loss(i)}\nTrain Epoch: {i} [300/600 (50%)]\tLoss: {loss(i)}\n"
            f"Test set: Average loss: 2.7, Accuracy: 90/100 (90%)\n"
        ),
        "row number",
        {"loss": "Loss", "eval/loss": "val_Average loss", "eval/Accuracy": "val_Accuracy"},
        23,
        observations=24,
    ),
    "phases": Format(
        lambda i: f"Epoch {i}/12\n-----\ntrain Loss: {loss(i)} Acc: 0.5\nval Loss: 2.7 Acc: 0.4\n\n",
        "epoch",
        {"loss": "train Loss", "eval/loss": "val Loss", "eval/Acc": "val_Acc"},
        12,
    ),
    "XTuner": Format(
        lambda i: (
            f"01/01 10:00:00 - mmengine - INFO - Iter(train) [ {i}/100]  lr: 1.0e-04  eta: 1 day, 2:03:04  "
            f"memory: 900  grad_norm: 1.5  loss: {loss(i)}\n"
        ),
        "step",
        {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"},
        12,
    ),
    "PaddleOCR": Format(
        lambda i: (
            f"[2030/01/01 10:00:00] ppocr INFO: epoch: [1/9], global_step: {i}, lr: 0.001, acc: 0.5, "
            f"loss: {loss(i)}, ips: 99.5 samples/s, eta: 1:02:03\n"
            + every(4, i, "[2030/01/01 10:00:00] ppocr INFO: cur metric, acc: 0.4, fps: 9.9\n")
        ),
        "step",
        {"loss": "loss", "learning_rate": "lr", "eval/acc": "val_acc", "eval/fps": "val_fps"},
        12,
    ),
    "fairseq": Format(
        lambda i: (
            f"2030-01-01 10:00:00 | INFO | train_inner | epoch 001: {i} / 50 loss={loss(i)}, num_updates={i}0, "
            "lr=1.0e-05, gnorm=1.5\n"
            + every(4, i, f"2030-01-01 10:00:00 | INFO | valid | epoch 001 | loss 2.7 | ppl 6.5 | num_updates {i}0\n")
        ),
        "step",
        {"loss": "loss", "learning_rate": "lr", "grad_norm": "gnorm", "eval/loss": "val_loss", "eval/ppl": "val_ppl"},
        120,
    ),
    "Megatron": Format(
        lambda i: (
            f" iteration {i:8d}/ 100 | learning rate: 1.0E-06 | lm loss: {loss(i)} | grad norm: 1.5 | number of "
            "skipped iterations:   0 |\n"
            + every(4, i, f" validation loss at iteration {i} | lm loss value: 2.7E+00 | lm loss PPL: 1.5E+01 |\n")
        ),
        "step",
        {
            "loss": "lm loss",
            "learning_rate": "learning rate",
            "grad_norm": "grad norm",
            "eval/loss": "val_lm loss value",
            "eval/lm_loss_PPL": "val_lm loss PPL",
        },
        12,
    ),
    "timm": Format(
        lambda i: (
            f"Train: {i} [  0/50 (  0%)]  Loss: {loss(i)} (2.9)  Time: 0.3s, 77.1/s  (0.3s,  77/s)  LR: 1.0e-03\n"
            "Test: [  0/9]  Loss:  2.7 ( 2.7)  Acc@1: 50.1 (50.1)\n"
        ),
        "epoch",
        {"loss": "Loss", "learning_rate": "LR", "eval/loss": "val_Loss", "eval/Acc@1": "val_Acc@1"},
        12,
    ),
    "Stable-Baselines": Format(
        lambda i: (
            f"----\n| rollout/ |  |\n|  ep_rew_mean | {i}.5 |\n| time/ | |\n|  total_timesteps | {i}00 |\n"
            "| train/ | |\n|  loss | 3.3 |\n|  value_loss | 9.1 |\n----\n"
        ),
        "time/total_timesteps",
        {"reward": "rollout/ep_rew_mean"},
        1200,
    ),
    "rsl_rl": Format(
        lambda i: (
            f"#####\n  \x1b[1m Learning iteration {i}/99 \x1b[0m\n\n  Value function loss: 0.3\n"
            f"  Mean reward: {i}.5\n  Total timesteps: {i}000\n"
        ),
        "step",
        {"reward": "Mean reward"},
        12,
    ),
    "LightGBM": Format(
        lambda i: f"[{i}0]\ttraining's l2: {loss(i)}\tvalid_1's l2: 2.7\n",
        "step",
        {"loss": "training's l2", "eval/loss": "valid_1's l2"},
        120,
    ),
    "a GAN's two losses": Format(
        lambda i: f"[Epoch {i}/12] [D loss: {loss(i)}] [G loss: 0.5]\n", "epoch", {"loss": "D loss"}, 12
    ),
}


def read(tmp_path: Path, text: str) -> ImportedSource:
    path = tmp_path / "train.log"
    path.write_text(text)
    return read_source(path, {})


def observations(imported: ImportedSource) -> list[Observation]:
    return [event.body for event in imported.rows.events("any") if isinstance(event.body, Observation)]


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_without_options(name: str, tmp_path: Path) -> None:
    wanted = FORMATS[name]
    imported = read(tmp_path, "Starting the training\n" + "".join(map(wanted.line, STEPS)) + "Done.\n")
    with imported.rows:
        summary = imported.summary([])
        measured = observations(imported)
    assert summary["format"] == "console" and summary["step_column"] == wanted.step_column
    assert summary["columns"] == wanted.columns
    assert summary["last_step"] == wanted.last_step and summary["incarnations"] == 1
    assert len(measured) == summary["observations"] == wanted.observations
    objective = "reward" if "reward" in wanted.columns else "loss"
    values = [row.metrics[objective] for row in measured if objective in row.metrics]
    assert values == sorted(values, reverse=objective == "loss") and len(values) >= len(STEPS)


def test_only_lines_that_repeat_are_read(tmp_path: Path) -> None:
    source = "lr = 0.5\nfor step in range(10):\n    loss = 0.5\n    loss = 0.1\nstep = 0\nprint('step:{}')\n====\n"
    lines = [f"step:{i}/99 val_loss:{loss(i)}\nSo {'x' * i} = {i} in answer {'y' * i} {i}\n" for i in STEPS]
    text = source + "seed:7\nwarmup_step:1/2\nwarmup_step:2/2\n" + "".join(lines)
    imported = read(tmp_path, text + "peak memory: 99 MiB\nstopping step:12/99\n")
    with imported.rows:
        assert imported.rows.totals.metrics == {"eval/loss": 12}
        assert [row.step for row in observations(imported)] == list(STEPS)


def test_lines_about_an_earlier_step_are_not_measurements(tmp_path: Path) -> None:
    lines = [f"Epoch {i}: loss {loss(i)}, val_loss {loss(i)}\nBest epoch: {i // 2}, val_loss: 2.5\n" for i in STEPS]
    with (imported := read(tmp_path, "".join(lines))).rows as rows:
        assert rows.totals.metrics == {"loss": 12, "eval/loss": 12} and rows.totals.incarnations == 1
        assert imported.step_column == "epoch"


def test_a_metric_that_is_only_in_the_last_line_is_read(tmp_path: Path) -> None:
    lines = [f"step {i} loss {loss(i)}\n" for i in STEPS]
    with read(tmp_path, "".join(lines) + "step 13 loss 1.5 acc 0.5\n").rows as rows:
        assert rows.totals.metrics == {"loss": 13, "acc": 1} and rows.totals.last_step == 13


def test_two_runs_in_one_file_are_two_incarnations(tmp_path: Path) -> None:
    run = "".join(f"step {i} loss {loss(i)}\n" for i in STEPS)
    with (imported := read(tmp_path, run * 2)).rows as rows:
        assert rows.totals.incarnations == 2 and rows.totals.observations == 24
        assert imported.step_column == "step"


def test_values_that_are_not_finite_are_measurements(tmp_path: Path) -> None:
    values = ("1.5", "nan", "-inf", "NaN", "Infinity", "1e-3")
    text = "".join(f"step={i}, loss={value}, status=info\n" for i, value in enumerate(values))
    with (imported := read(tmp_path, text)).rows:
        measured = [row.metrics for row in observations(imported)]
    assert [str(metrics["loss"]) for metrics in measured] == ["1.5", "nan", "-inf", "nan", "inf", "0.001"]


@pytest.mark.parametrize(
    "text", ["Nothing here.\n", "It has 3 lines and 2 numbers.\nNothing else.\n", "a = 1\nb = 2\n"]
)
def test_text_without_measurements_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.log has no usable measurements"):
        read(tmp_path, text)


NAMES = st.from_regex(re.compile(r"[a-z][a-z_]{2,8}(/[a-z_]{2,8})?", re.ASCII), fullmatch=True).filter(
    lambda name: not name.startswith(("nan", "inf")) and not name.endswith("_")
)


@given(
    st.dictionaries(NAMES, st.floats(allow_nan=False), min_size=1, max_size=5),
    st.integers(0, 10**9),
    st.sampled_from(("{}: {}", "{}={}", "{}:{}")),
    st.sampled_from((" ", ", ", " | ", " - ", "\t", "; ")),
)
def test_every_pair_of_a_line_is_read(values: dict[str, float], step: int, pair: str, separator: str) -> None:
    line = separator.join([f"step {step}:", *(pair.format(name, value) for name, value in values.items())])
    parsed = parse_line(line)
    assert parsed.counters["step"] == step
    assert parsed.values == {name: value for name, value in values.items() if name in parsed.values}
    assert parsed.values.keys() | parsed.counters.keys() >= values.keys()


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_line_can_be_parsed(line: str) -> None:
    parse_line(line)
    table = HeadedTable()
    table.read("epoch  train loss  valid loss")
    table.read(line)


def test_sentences_are_not_headers_and_lines_of_other_lengths_are_not_rows(tmp_path: Path) -> None:
    header = "epoch  train loss  valid loss\n"
    rows = "".join(f"{i}      {loss(i)}      2.7\nEpoch {i} is done\n{i} of 12 epochs\n" for i in STEPS)
    with (imported := read(tmp_path, header + rows)).rows as imported_rows:
        assert imported_rows.totals.metrics == {"loss": 12, "eval/loss": 12} and imported.step_column == "epoch"
