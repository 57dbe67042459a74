"""The `oven-controller` program and the table of its commands."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
import typer.main

from oven_controller.cli.lazy_group import HELP_OPTIONS, Command, Group, LazyGroup
from oven_core.errors import NO_SPACE, OvenError
from oven_core.protocol.operator_actions import ACTIONS
from oven_core.terminal_text import clean

HERE: Final = "oven_controller.cli"
COMMANDS: Final[Mapping[str, Mapping[str, Command | Group]]] = {
    "Start and end": {
        "up": Command(f"{HERE}.up:up_command", "Start a run: the bus, the mesh, the agents and the learner."),
        "run": Command(f"{HERE}.up:run_script", "Start the stack around your own training script."),
        "down": Command(f"{HERE}.up:down", "Shut a running stack down, with a checkpoint."),
    },
    "Watch": {
        "runs": Command(f"{HERE}.runs:runs_command", "List the runs; `runs rm` and `runs prune` remove some."),
        "status": Command(f"{HERE}.status:status", "Show how a run is doing."),
        "monitor": Command(f"{HERE}.monitor:monitor", "Watch a run in the terminal: curves, agents, decisions."),
        "log": Command(f"{HERE}.log:log", "Print a run's log, one event per line."),
        "notify": Group(
            "Messages about a run, to a webhook, a chat or by e-mail.",
            "test env:OPS_HOOK",
            {
                "test": Command(f"{HERE}.notify:try_out", "Send one message to each address."),
                "watch": Command(f"{HERE}.notify:watch", "Send messages about a run that is up already."),
            },
        ),
        "mcp": Command(f"{HERE}.mcp:mcp", "Serve runs to a coding agent by the Model Context Protocol."),
    },
    "Overrule": {
        **{
            name: Command(f"{HERE}.operator:{name}_command", f"{ACTIONS[name].summary}.")
            for name in (
                *("hold", "resume", "stop", "set", "approve", "veto", "autonomy"),
                *("mute", "unmute", "trust", "distrust"),
            )
        },
        "judge": Group(
            "The judges of a run's reward committee: list them, and swap them while it trains.",
            "list",
            {
                "list": Command(f"{HERE}.judge:list_judges", "List the remote members and their state."),
                "swap": Command(f"{HERE}.judge:swap", "Have another model judge as this member."),
                "mute": Command(f"{HERE}.judge:mute", "Stop asking a member."),
                "add": Command(f"{HERE}.judge:add", "Start another member under the running stack."),
                "remove": Command(f"{HERE}.judge:remove", "Remove a member and end its process."),
            },
        ),
    },
    "Ask": {
        "decisions": Command(f"{HERE}.decisions:decisions", "List a run's decisions, one per row."),
        "explain": Command(f"{HERE}.explain:explain", "Explain one decision: votes, rules, receipt, outcome."),
        "review": Command(f"{HERE}.review:review", "Ask all agents what they would have flagged in a finished run."),
        "replay": Command(f"{HERE}.replay:replay", "Decide a recorded run again from its log."),
        "backtest": Command(f"{HERE}.backtest:backtest", "Show what one agent would have voted in a recorded run."),
        "import": Command(f"{HERE}.importing:import_", "Read another training's logs as a run."),
        "kg": Group(
            "Ask the graph of causes and remedies, or your own graph.",
            "diagnose loss_spike grad_norm_spike",
            {
                "diagnose": Command(f"{HERE}.kg_graph:diagnose_symptoms", "Rank causes and remedies for symptoms."),
                "query": Command(f"{HERE}.kg_graph:query", "Search a graph: neighbors, path, ppr, search."),
                "info": Command(f"{HERE}.kg_graph:info", "Show what a graph holds, and its hash."),
                "lint": Command(f"{HERE}.kg_graph:lint_graph", "Check a graph for faults."),
                "import": Command(f"{HERE}.kg_import:import_graph_files", "Convert a graph from other sources."),
                "curriculum": Command(f"{HERE}.kg_training:curriculum", "Compute shares of training topics."),
                "token-prior": Command(f"{HERE}.kg_training:token_prior", "Score the tokens that matter most."),
            },
        ),
        "oracle": Group(
            "An oracle that reads activations: measure it on benchmarks, or ask it about a text.",
            'ask "the film was very boring" "is the feeling of this text positive?"',
            {
                "evaluate": Command(f"{HERE}.oracle:evaluate", "Measure an oracle on nine benchmarks."),
                "ask": Command(f"{HERE}.oracle:ask", "Ask an oracle about a text."),
            },
        ),
        "supervise": Group(
            "Have a model write programs over a long text that a cheaper model reads.",
            "diagnose grpo-1121-0231",
            {
                "run": Command(f"{HERE}.supervise_run:run_question", "Answer one question about a long text."),
                "diagnose": Command(f"{HERE}.supervise_diagnose:diagnose_run", "Say what is wrong with a run."),
                "export": Command(f"{HERE}.supervise_export:export", "Write answered questions as training rows."),
            },
        ),
        "traces": Group(
            "Record an agent's attempts at tasks as traces, convert them, and check them.",
            "collect traces.jsonl --rollouts 100",
            {
                "collect": Command(f"{HERE}.traces_collect:collect", "Record traces of the recipe repair's policy."),
                "convert": Command(f"{HERE}.traces_files:convert", "Write traces in another format."),
                "check": Command(f"{HERE}.traces_files:check", "Count the steps that are not complete."),
                "show": Command(f"{HERE}.traces_files:show", "List traces, or show one step by step."),
            },
        ),
    },
    "Measure": {
        "gym": Command(f"{HERE}.bench:gym_command", "Measure whether the controller helps: faults in small runs."),
        "bench": Command(f"{HERE}.bench:bench_command", "Run one of the measurements of a source checkout."),
        "calibration": Command(f"{HERE}.calibration:calibration", "Score the confidences that agents stated."),
    },
    "Set up": {
        "doctor": Command(f"{HERE}.doctor:doctor", "Check whether this machine is ready for a run."),
        "config": Group(
            "Settings: their values, and where they come from.",
            "show --origin",
            {"show": Command(f"{HERE}.config:show", "Print the settings that a run would get.")},
        ),
        "agent": Group(
            "Your own agents: run one beside a stack, write one, list them.",
            "list",
            {
                "run": Command(f"{HERE}.agent:run_agent", "Run an agent beside a stack that is up."),
                "new": Command(f"{HERE}.agent:new_agent", "Write a small agent to start from."),
                "list": Command(f"{HERE}.agent:list_agents", "List the installed agents, or one agent's options."),
            },
        ),
        "creds": Group(
            "Keys for agents and persons elsewhere, and for your own server.",
            "list",
            {
                "add": Command(f"{HERE}.creds:add", "Make a key for a run."),
                "revoke": Command(f"{HERE}.creds:revoke", "Take a key back and close its connections."),
                "list": Command(f"{HERE}.creds:list_keys", "List who may connect."),
                "server": Command(f"{HERE}.creds:server", "Configure your own nats-server, with keys for one run."),
                "cluster": Command(f"{HERE}.creds:cluster", "Configure a cluster of nats-servers."),
            },
        ),
        "schema": Command(f"{HERE}.schema:schema", "Print the JSON Schema of the messages."),
    },
}
"""The commands under each heading of the help."""


class Program(LazyGroup):
    """The top-level group of all commands, under the headings of COMMANDS."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            table={name: entry for commands in COMMANDS.values() for name, entry in commands.items()},
            headings={name: heading for heading, commands in COMMANDS.items() for name in commands},
            **settings,
        )


app = typer.Typer(
    name="oven-controller",
    help="An autopilot for model training that you can watch, question, and overrule.",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(version("oven-controller"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def run(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit codes: 0 done, 1 the answer is no, 2 the request is wrong, 3 something outside failed,
    130 Ctrl-C."""
    try:
        typer.main.get_command(app)(args=argv, prog_name="oven-controller")
    except OvenError as error:
        print("error: " + "\n".join(map(clean, str(error).splitlines())), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in NO_SPACE and not error.filename:
            raise
        where = f" at {error.filename}" if error.filename else ""
        sentence = f"nothing more can be written{where} ({error.strerror}): make room there"
        if error.errno not in NO_SPACE:
            sentence = f"{error.filename} cannot be used ({error.strerror}): check its owner and its permissions"
        print(f"error: {clean(sentence)}", file=sys.stderr)
        sys.exit(OvenError.exit_code)


if __name__ == "__main__":
    run()
