"""The command `slurm`, which prints a batch script for a training on one node or several."""

from __future__ import annotations

import shlex

import click

from oven_controller.cli.options import argument, run_option
from oven_core.protocol import names
from oven_runs.home.run_folder import Home

SCRIPT = """\
#!/bin/bash
# Written by `oven-controller slurm`. Options of sbatch, such as --partition or --time, override the lines below.
#SBATCH --job-name={run}
{directives}

export OVEN_HOME={home}
run={run}

# End the training after its step, with a checkpoint, however long that takes.
requeue=""
trap 'requeue=1; oven-controller stop --run "$run" --reason "Slurm ends this job soon"' USR1

# Rank 0 is on this node, the first of the job, and so is the stack.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT

resume=()
[ -f "$OVEN_HOME/runs/$run/run.json" ] && resume=(--resume)
# shellcheck disable=SC2016  # each task expands these variables
oven-controller run "${{resume[@]}}" --run "$run" -- \\
    srun --kill-on-bad-exit=1 --cpus-per-task={cpus} \\
    bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$@"' rank \\
    {command} &
stack=$!
while kill -0 $stack 2>/dev/null; do wait $stack; done
wait $stack
code=$?
[ -n "$requeue" ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
"""


@click.command()
@argument(
    "command", nargs=-1, required=True, metavar="-- COMMAND…", help="Command of one rank, or a script for python."
)
@run_option("Run name; a requeued job continues this run.", required=True)
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Number of nodes.")
@click.option("--gpus-per-node", type=click.IntRange(min=0), default=8, help="GPUs on each node.")
@click.option(
    "--ntasks-per-node",
    type=click.IntRange(min=1),
    show_default="as --gpus-per-node, or 1",
    help="Ranks on each node; 1 if COMMAND is a launcher.",
)
@click.option("--cpus-per-task", type=click.IntRange(min=1), default=8, help="CPU cores of each rank.")
@click.option("--time", default="24:00:00", help="Time limit of the job, as for sbatch.")
@click.option(
    "--stop-before",
    type=click.IntRange(1, 65535),
    default=1200,
    help="Seconds before the limit at which the training is stopped: a step and a checkpoint.",
)
def slurm(
    command: tuple[str, ...],
    run: str,
    nodes: int,
    gpus_per_node: int,
    ntasks_per_node: int | None,
    cpus_per_task: int,
    time: str,
    stop_before: int,
) -> None:
    """Print a Slurm batch script: the stack on the first node, and srun with all ranks.

    Before the job's limit, or when Slurm sends USR1 for a preemption, the training saves a checkpoint. The job is then
    queued again and continues the run.

    Example: oven-controller slurm --run grpo-7b --nodes 2 -- train.py > job.sh
    """
    names.validate("run", run)
    words = ["python", *command] if command[0].endswith(".py") else command
    directives = {
        "nodes": nodes,
        "ntasks-per-node": ntasks_per_node or max(gpus_per_node, 1),
        "cpus-per-task": cpus_per_task,
        **({"gpus-per-node": gpus_per_node} if gpus_per_node else {}),
        "mem": 0,
        "time": time,
        "signal": f"B:USR1@{stop_before}",
    }
    lines = [*(f"--{name}={value}" for name, value in directives.items()), "--requeue", "--open-mode=append"]
    text = SCRIPT.format(
        run=run,
        directives="\n".join(f"#SBATCH {line}" for line in lines),
        home=shlex.quote(str(Home().path.absolute())),
        cpus=cpus_per_task,
        command=shlex.join(words),
    )
    print(text, end="")
