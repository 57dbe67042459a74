"""The `oven-controller` program and the table of its commands."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from oven_controller.cli.lazy_group import Command, Group, LazyGroup
from oven_core.errors import NO_SPACE, ConfigError, OvenError
from oven_core.protocol.operator_actions import ACTIONS
from oven_core.terminal_text import clean

CLI: Final = "oven_controller.cli"
ACTION_NAMES = ("hold", "resume", "stop", "set", "approve", "veto", "autonomy", "mute", "unmute", "trust", "distrust")
"""The operator's actions, in the order of the help."""
COMMANDS: Final[Mapping[str, Mapping[str, Command | Group]]] = {
    "Start and end": {
        "up": Command(f"{CLI}.up:up", "Start a run: the bus, the mesh, the agents and the learner."),
        "run": Command(f"{CLI}.up:run_script", "Start the stack around your own training script."),
        "slurm": Command(f"{CLI}.slurm:slurm", "Print a Slurm batch script for a training on one node or several."),
        "down": Command(f"{CLI}.up:down", "Shut down a running stack cleanly."),
    },
    "Watch": {
        "runs": Command(f"{CLI}.runs:runs", "List the runs; `runs rm` and `runs prune` remove some."),
        "status": Command(f"{CLI}.status:status", "Show how a run is doing."),
        "monitor": Command(f"{CLI}.monitor:monitor", "Watch a run in the terminal: curves, agents, decisions."),
        "log": Command(f"{CLI}.log:log", "Print a run's log, one event per line."),
        "wait": Command(f"{CLI}.wait:wait", "Sleep until a finding, a decision, a step, or the end of a run."),
        "notify": Group(
            "Send messages about a run to a webhook, a chat or by e-mail.",
            "test env:OPS_HOOK",
            {
                "test": Command(f"{CLI}.notify:send_test", "Send one message to each address."),
                "watch": Command(f"{CLI}.notify:watch", "Send messages about a running run."),
            },
        ),
        "mcp": Command(f"{CLI}.mcp:mcp", "Serve runs to a coding agent over the Model Context Protocol."),
    },
    "Overrule": {
        **{name: Command(f"{CLI}.operator:{name}_command", f"{ACTIONS[name].summary}.") for name in ACTION_NAMES},
        "propose": Command(f"{CLI}.propose:propose", "Propose a value for a knob, as an agent without trust."),
        "judge": Group(
            "Manage the judges of a run's reward committee while it trains.",
            "list",
            {
                "list": Command(f"{CLI}.judge:list_judges", "List the remote members and their state."),
                "swap": Command(f"{CLI}.judge:swap", "Replace a member's model."),
                "mute": Command(f"{CLI}.judge:mute", "Stop calling a member."),
                "add": Command(f"{CLI}.judge:add", "Start a new member in the running stack."),
                "remove": Command(f"{CLI}.judge:remove", "Remove a member and end its process."),
            },
        ),
    },
    "Ask": {
        "decisions": Command(f"{CLI}.decisions:decisions", "List a run's decisions, one per row."),
        "explain": Command(f"{CLI}.explain:explain", "Explain one decision: votes, rules, receipt, outcome."),
        "review": Command(
            f"{CLI}.review:review", "Find what is wrong with a training run, from the logs of any trainer."
        ),
        "replay": Command(f"{CLI}.replay:replay", "Recompute the decisions of a recorded run."),
        "backtest": Command(f"{CLI}.backtest:backtest", "Show what one agent would have voted in a recorded run."),
        "export": Command(f"{CLI}.export:export", "Export a run to wandb, MLflow, TensorBoard and others."),
        "import": Command(f"{CLI}.importing:import_", "Import another program's training logs as a run."),
        "kg": Group(
            "Query the graph of causes and remedies, or your own graph.",
            "diagnose loss_spike grad_norm_spike",
            {
                "diagnose": Command(f"{CLI}.kg_inspect:diagnose_symptoms", "Rank causes and remedies for symptoms."),
                "query": Command(f"{CLI}.kg_inspect:query", "Query a graph: neighbors, path, ppr, search."),
                "info": Command(f"{CLI}.kg_inspect:info", "Show a graph's contents and its hash."),
                "lint": Command(f"{CLI}.kg_inspect:lint_graph", "Check a graph for faults."),
                "import": Command(f"{CLI}.kg_import:import_graph_files", "Convert a graph from other sources."),
                "curriculum": Command(f"{CLI}.kg_training:curriculum", "Compute the training share of each topic."),
                "token-prior": Command(f"{CLI}.kg_training:token_prior", "Score the most important tokens."),
            },
        ),
        "oracle": Group(
            "Evaluate an oracle that reads activations, or ask it about a text.",
            'ask "the film was very boring" "is the feeling of this text positive?"',
            {
                "evaluate": Command(f"{CLI}.oracle:evaluate", "Evaluate an oracle on nine benchmarks."),
                "ask": Command(f"{CLI}.oracle:ask", "Ask an oracle about a text."),
            },
        ),
        "supervise": Group(
            "Answer questions about long texts: a model writes programs, and a cheaper one reads the parts.",
            "diagnose grpo-1121-0231",
            {
                "run": Command(f"{CLI}.supervise_run:run_question", "Answer one question about a long text."),
                "diagnose": Command(f"{CLI}.supervise_diagnose:diagnose_run", "Diagnose what is wrong with a run."),
                "export": Command(f"{CLI}.supervise_export:export", "Export answered questions as training data."),
            },
        ),
        "traces": Group(
            "Record an agent's attempts at tasks as traces, convert them, and check them.",
            "collect traces.jsonl --rollouts 100",
            {
                "collect": Command(f"{CLI}.traces_collect:collect", "Record traces of the `repair` recipe's policy."),
                "convert": Command(f"{CLI}.traces_files:convert", "Write traces in another format."),
                "check": Command(f"{CLI}.traces_files:check", "Count incomplete steps."),
                "show": Command(f"{CLI}.traces_files:show", "List traces, or show one step by step."),
            },
        ),
    },
    "Measure": {
        "gym": Command(f"{CLI}.bench:gym", "Measure whether the controller helps when small runs go wrong."),
        "bench": Command(f"{CLI}.bench:bench", "Run one of the benchmarks of a source checkout."),
        "calibration": Command(f"{CLI}.calibration:calibration", "Score the confidences that agents stated."),
    },
    "Set up": {
        "doctor": Command(f"{CLI}.doctor:doctor", "Check whether this machine is ready for a run."),
        "config": Group(
            "Show settings and where they come from.",
            "show --origin",
            {"show": Command(f"{CLI}.config:show", "Print the settings that a run would get.")},
        ),
        "agent": Group(
            "Write your own agents, run them alongside a stack, and list agents.",
            "list",
            {
                "run": Command(f"{CLI}.agent:run_agent", "Run an agent alongside a running stack."),
                "new": Command(f"{CLI}.agent:new_agent", "Write a small agent to start from."),
                "list": Command(f"{CLI}.agent:list_agents", "List the installed agents, or those of a run."),
            },
        ),
        "creds": Group(
            "Manage keys for agents and people on other machines, and for your own server.",
            "list",
            {
                "add": Command(f"{CLI}.creds:add", "Make a key for a run."),
                "revoke": Command(f"{CLI}.creds:revoke", "Revoke a key and close its connections."),
                "list": Command(f"{CLI}.creds:list_keys", "List the keys that may connect."),
                "server": Command(f"{CLI}.creds:server", "Configure your own nats-server, with keys for one run."),
                "cluster": Command(f"{CLI}.creds:cluster", "Configure a cluster of nats-servers."),
            },
        ),
        "schema": Command(f"{CLI}.schema:schema", "Print the JSON Schema of the messages."),
    },
}
"""The commands under each heading of the help."""


@click.group(
    cls=LazyGroup,
    table={name: entry for commands in COMMANDS.values() for name, entry in commands.items()},
    headings={heading: list(commands) for heading, commands in COMMANDS.items()},
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(package_name="oven-controller", message="%(version)s")
def app() -> None:
    """An autopilot for model training that you can watch, question, and overrule."""


def run(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit codes: 0 success, 1 a negative result, 2 an invalid request, 3 an external failure,
    130 Ctrl-C."""
    try:
        app(args=argv, prog_name="oven-controller")
    except OvenError as error:
        print("error: " + "\n".join(map(clean, str(error).splitlines())), file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or importlib.util.find_spec(package) is not None:  # no missing package, but a fault of ours
            raise
        message = f"this command needs the package {package!r}, which is not installed"
        print(f'error: {message}; run `pip install "oven-controller[all]"`', file=sys.stderr)
        sys.exit(ConfigError.exit_code)
    except OSError as error:
        if error.errno not in NO_SPACE and not error.filename:
            raise
        if error.errno in NO_SPACE:
            location = f" to {error.filename}" if error.filename else ""
            message = f"cannot write{location} ({error.strerror}); free some disk space"
        else:
            message = f"cannot use {error.filename} ({error.strerror}); check its owner and permissions"
        print(f"error: {clean(message)}", file=sys.stderr)
        sys.exit(OvenError.exit_code)


if __name__ == "__main__":
    run()
