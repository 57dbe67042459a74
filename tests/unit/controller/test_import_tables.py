"""CSV, JSON and JSON Lines of any trainer become a run without options."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_controller.importing.import_run import read_source
from oven_core.protocol.messages import Observation
from oven_runs.metrics.metric_names import metric_spec
from oven_runs.metrics.objectives import MetricNames

YOLO = "  epoch,  train/box_loss,  train/cls_loss,  metrics/mAP50(B),  val/box_loss,  val/cls_loss,  lr/pg0,  lr/pg1\n"
TABLES = {
    "YOLO, with a padded header": (
        YOLO + "".join(f"   {i},  1.{i},  2.{i},  0.{i},  1.5,  2.5,  0.01,  0.02\n" for i in range(1, 5)),
        "epoch",
        {
            "loss": "train/box_loss",
            "learning_rate": "lr/pg0",
            "eval/loss": "val/box_loss",
            "eval/cls_loss": "val/cls_loss",
            "eval/mAP50(B)": "metrics/mAP50(B)",
        },
        4,
    ),
    "Stable-Baselines": (
        "time/iterations,rollout/ep_rew_mean,time/total_timesteps,train/value_loss,train/loss,train/learning_rate\n"
        "1,5.5,2048,,,\n2,6.5,4096,9.5,3.5,0.0003\n3,7.5,6144,9.5,3.5,0.0003\n",
        "time/total_timesteps",
        {"reward": "rollout/ep_rew_mean", "learning_rate": "train/learning_rate"},
        6144,
    ),
    "Keras": (
        "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss\n0,0.5,0.01,1.5,0.4,1.6\n1,0.6,0.01,1.4,0.5,1.5\n",
        "epoch",
        {"loss": "loss", "learning_rate": "learning_rate", "eval/accuracy": "val_accuracy", "eval/loss": "val_loss"},
        1,
    ),
    "Lightning, with the metrics of a step in several rows": (
        "epoch,step,lr-AdamW,train_loss_step,train_loss_epoch,val_loss\n0,9,0.01,,,\n0,9,,1.5,,\n0,9,,,1.6,1.7\n"
        "1,19,0.01,,,\n1,19,,1.4,,\n1,19,,,1.5,1.6\n",
        "step",
        {"loss": "train_loss_step", "learning_rate": "lr-AdamW", "eval/loss": "val_loss"},
        19,
    ),
    "a monitor of episodes, with a comment": (
        '#{"t_start": 1.5, "env_id": "Walk-v0"}\nr,l,t\n1.5,10,0.1\n2.5,20,0.2\n3.5,30,0.3\n',
        "row number",
        {"reward": "r"},
        2,
    ),
    "a header in a comment": ("# epoch loss\n1 1.5\n2 1.4\n3 1.3\n", "epoch", {"loss": "loss"}, 3),
    "the header again in the middle": (
        "epoch,loss\n1,1.5\n2,1.4\nepoch,loss\n3,1.3\n",
        "epoch",
        {"loss": "loss"},
        3,
    ),
    "semicolons and decimal commas": (
        "epoch;loss;val_loss\n1;1,5;1,6\n2;1,4;1,5\n",
        "epoch",
        {"loss": "loss", "eval/loss": "val_loss"},
        2,
    ),
    "tabs": (
        "iter\ttrain loss\tvalid loss\n0\t1.5\t1.6\n10\t1.4\t1.5\n",
        "iter",
        {"loss": "train loss", "eval/loss": "valid loss"},
        10,
    ),
    "a row per split": (
        "split,epoch,loss\n" + "".join(f"train,{i},1.5\nval,{i},1.6\n" for i in range(1, 9)),
        "epoch",
        {"loss": "loss", "eval/loss": "val_loss"},
        8,
    ),
    "batches that restart in each epoch": (
        "epoch,batch,loss\n" + "".join(f"{epoch},{batch},1.5\n" for epoch in range(4) for batch in range(5)),
        "row number",
        {"loss": "loss"},
        19,
    ),
    "two processes that write in turns": (
        "current_steps,loss\n" + "".join(f"{i + 10},1.5\n{i},1.5\n" for i in range(0, 200, 10)),
        "row number",
        {"loss": "loss"},
        39,
    ),
    "unknown columns": ("a,b\nx,1.5\ny,1.4\n", "row number", {}, 1),
    "totals of a Hugging Face trainer": (
        "loss,step,train_runtime,train_loss\n1.5,1,,\n1.4,2,,\n,2,99.5,1.45\n",
        "step",
        {"loss": "loss"},
        2,
    ),
    "JSON Lines with objects in objects": (
        "".join(json.dumps({"iter": i, "train": {"loss": 1.5}, "val": {"loss": 1.6}}) + "\n" for i in range(5)),
        "iter",
        {"loss": "train/loss", "eval/loss": "val/loss"},
        4,
    ),
    "JSON Lines of mmengine": (
        "".join(
            json.dumps({"mode": "train", "epoch": 1 + i // 3, "iter": i % 3, "loss": 1.5, "lr": 0.1}) + "\n"
            + (json.dumps({"mode": "val", "epoch": 1 + i // 3, "bbox_mAP": 0.5}) + "\n") * (i % 3 == 2)
            for i in range(9)
        ),
        "row number",
        {"loss": "loss", "learning_rate": "lr", "eval/bbox_mAP": "val_bbox_mAP"},
        8,
    ),
    "an object of lists": (
        '{"loss": [1.5, 1.4], "val_loss": [1.6, 1.5]}',
        "row number",
        {"loss": "loss", "eval/loss": "val_loss"},
        1,
    ),
    "a list of objects in an object": (
        '{"config": {"lr": 0.1}, "history": [{"epoch": 1, "loss": 1.5}, {"epoch": 2, "loss": 1.4}]}',
        "epoch",
        {"loss": "loss"},
        2,
    ),
    "objects by step": ('{\n"10": {"loss": 1.5},\n"20": {"loss": 1.4}\n}', "step", {"loss": "loss"}, 20),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_read_without_options(name: str, tmp_path: Path) -> None:
    text, step_column, columns, last_step = TABLES[name]
    path = tmp_path / "log.txt"
    path.write_text(text)
    with (imported := read_source(path, {})).rows:
        summary = imported.summary([])
    assert (summary["step_column"], summary["columns"]) == (step_column, columns)
    assert (summary["last_step"], summary["incarnations"]) == (last_step, 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss,größe\n1,1.5,2\n2,1.4,3\n", encoding=encoding)
    with (imported := read_source(tmp_path / "log.csv", {})).rows:
        assert imported.rows.totals.metrics == {"loss": 2, "größe": 2}


def test_folds_are_incarnations(tmp_path: Path) -> None:
    rows = [f"{fold},{epoch},1.5\n" for fold in range(5) for epoch in range(4)]
    (tmp_path / "log.csv").write_text("fold,epoch,loss\n" + "".join(rows))
    with (imported := read_source(tmp_path / "log.csv", {})).rows:
        assert (imported.step_column, imported.rows.totals.incarnations) == ("epoch", 5)


def test_values_in_tables(tmp_path: Path) -> None:
    cells = ("1.5", "12%", "3.4s", "nan", "-inf", "Infinity", "None", "", "N/A", "1e-3", "hello", "1_0")
    (tmp_path / "log.csv").write_text("step,loss,x\n" + "".join(f"{i},{cell},1\n" for i, cell in enumerate(cells)))
    with (imported := read_source(tmp_path / "log.csv", {})).rows as rows:
        measured = [event.body.metrics for event in rows.events("any") if isinstance(event.body, Observation)]
    losses = [str(metrics.get("loss")) for metrics in measured]
    assert losses == ["1.5", "12.0", "3.4", "nan", "-inf", "inf", *["None"] * 3, "0.001", "None", "None"]
    assert imported.skipped == {"values that are not numbers": 2}


def test_a_title_before_the_header_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("My run\n\nepoch,loss\n1,1.5\n2,1.4\n")
    with (imported := read_source(tmp_path / "log.csv", {})).rows as rows:
        assert (imported.step_column, rows.totals.metrics) == ("epoch", {"loss": 2})


def test_a_folder_with_one_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("epoch,loss\n1,1.5\n")
    (tmp_path / "args.yaml").write_text("lr: 0.1\n")
    with (imported := read_source(tmp_path, {})).rows:
        assert imported.path.name == "results.csv"


def chosen(*columns: str, **counts: int) -> dict[str, str]:
    """Return the columns by metric name."""
    names = MetricNames()
    gauges = [column for column in (*columns, *counts) if names.is_gauge(column)]
    metrics = names.choose(Counter(dict.fromkeys(gauges, 100) | counts))
    return {metric: column for column, metric in metrics.items()}


def test_the_total_loss_is_preferred_to_its_terms() -> None:
    assert chosen("loss_cls", "loss_box", "total_loss")["loss"] == "total_loss"
    assert chosen("a_loss", "b_loss", "mean_loss")["loss"] == "mean_loss"
    assert chosen("b_loss", "a_loss") == {"loss": "b_loss", "a_loss": "a_loss"}
    assert chosen("train_loss", "loss") == {"loss": "loss", "train_loss": "train_loss"}
    assert chosen(train_loss_epoch=3, train_loss_step=900)["loss"] == "train_loss_step"
    assert chosen(loss=1, my_loss=900)["loss"] == "my_loss", "a loss that is hardly ever logged is not the objective"
    assert "loss" not in chosen("loss_scale", "accuracy")


def test_components_and_statistics_are_not_the_reward() -> None:
    assert chosen("rewards/format/mean", "reward", "reward_std")["reward"] == "reward"
    assert chosen("episode_reward_max", "episode_reward_mean")["reward"] == "episode_reward_mean"
    assert chosen("critic/rewards/mean", "critic/score/mean", "critic/score/max")["reward"] == "critic/score/mean"
    assert chosen("avg_reward_last_100", "reward_std")["reward"] == "avg_reward_last_100"
    assert "reward" not in chosen("rewards/chosen", "rewards/margins", "loss"), "the objective of DPO is its loss"
    assert "reward" not in chosen("score", "loss"), "a classifier may have a score"


ALGORITHM_LOSSES = st.sampled_from((
    *("policy_loss", "value_loss", "entropy_loss", "train/policy_gradient_loss", "actor/pg_loss", "critic/vf_loss"),
    *("Loss/value_function", "loss/policy_avg", "LossPi", "LossV", "actor_loss", "critic_loss", "qf1_loss", "kl_loss"),
))  # fmt: skip


@given(st.sets(ALGORITHM_LOSSES, min_size=1), st.sampled_from(("mean_reward", "train/loss", "lr")))
def test_a_term_of_an_rl_algorithm_is_never_the_objective(losses: set[str], last: str) -> None:
    columns = chosen(*losses, last)
    assert columns.get("loss") in (None, "train/loss")
    assert columns.get("reward") == ("mean_reward" if last == "mean_reward" else None)
    assert losses <= set(columns.values())


COLUMNS = st.lists(
    st.sampled_from((
        *("loss", "Loss", "train/loss", "train_loss", "val_loss", "valid/loss", "test_loss", "eval/loss", "lr", "LR"),
        *("learning_rate", "reward", "mean_reward", "norm", "grad_norm", "eval_acc", "val/acc", "box_loss", "a b"),
        "a_b",
    )),
    unique=True,
)  # fmt: skip


@given(COLUMNS)
def test_every_metric_has_its_own_name(columns: list[str]) -> None:
    assert sorted(chosen(*columns).values()) == sorted(columns)


def test_directions_follow_from_the_ends_of_names() -> None:
    ups = "train_acc eval/accuracy eval/f1_macro eval/mAP50-95(B) eval/rouge-1 eval/rougeLsum eval/roc_auc mIoU Acc@1"
    downs = "loss box_loss eval/wer eval/cer val_ppl eval/perplexity rmse train_mae eval/error eval/bpb"
    for name in [*ups.split(), "eval/test_score/sums", "eval/core/sums/reward/mean@1", "reward"]:
        assert metric_spec(name).better == "up", name
    for name in downs.split():
        assert metric_spec(name).better == "down", name
    for name in (
        "learning_rate",
        "reward_std",
        "eval/reward/std",
        "value_loss",
        "loss_scale",
        "eval/gen_len",
        "entropy",
    ):
        assert metric_spec(name).better == "neither", name


def test_words_that_look_like_held_out_data() -> None:
    held_out = ("valid_acc", "Loss/val", "validation loss", "test_f1", "dev_loss", "valid_1's l2", "valLoss")
    training = ("valid_action", "test_time", "timing/testing", "values", "evaluator", "device")
    assert all(name.startswith("eval/") for name in chosen(*held_out))
    assert not any(name.startswith("eval/") for name in chosen(*training))


def test_a_norm_is_the_gradients_only_if_nothing_speaks_against_it() -> None:
    assert chosen("loss", "Norm") == {"loss": "loss", "grad_norm": "Norm"}
    assert "grad_norm" not in chosen("loss", "weight/norm") | chosen("loss", "feature/norm")
    assert chosen("loss", "norm", "weight_norm") == {"loss": "loss", "norm": "norm", "weight_norm": "weight_norm"}
    assert chosen("loss", "norm", "train/grad_norm")["grad_norm"] == "train/grad_norm"
    assert chosen("loss", "optimizer/grad_norm")["grad_norm"] == "optimizer/grad_norm"
    names = MetricNames()
    gauges = Counter({name: 100 for name in ("loss", "norm") if names.is_gauge(name)})
    assert names.choose(gauges, {"norm"}) == {"loss": "loss", "norm": "norm"}, "no norm is negative"


def test_a_kl_is_the_policys_only_next_to_a_reward() -> None:
    assert chosen("reward", "KL")["kl"] == "KL" and chosen("loss", "critic/kl")["kl"] == "critic/kl"
    assert chosen("loss", "recon_loss", "KL")["KL"] == "KL"


def test_the_output_says_what_was_taken_for_what(tmp_path: Path) -> None:
    rows = "".join(f"{i},0.{i},1.5,0.01,0.5\n" for i in range(1, 9))
    (tmp_path / "log.csv").write_text("step,reward,norm,KL,policy_entropy\n" + rows)
    with (imported := read_source(tmp_path / "log.csv", {})).rows:
        columns = imported.summary([])["columns"]
    assert columns == {"reward": "reward", "grad_norm": "norm", "entropy": "policy_entropy", "kl": "KL"}
