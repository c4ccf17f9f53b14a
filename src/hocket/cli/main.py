"""The command `hocket`: its commands, and what errors mean to a shell.

Exit codes: 0 done, 1 a check failed, 2 the input was wrong, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from hocket.cli import explaining, planning, running, scheduling
from hocket.errors import HocketError

INPUT_WRONG, STOPPED = 2, 130

app = typer.Typer(
    name="hocket",
    help="Plan a one-device PyTorch training step for any cluster, see why and how good, and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hocket {version('hocket')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("plan")(planning.plan)
app.command("explain")(explaining.explain)
app.command("simulate")(explaining.simulate)
app.command("verify")(running.verify)
app.command("run", context_settings=running.PASS_ON)(running.run)
app.command("probe")(running.probe)
app.command("schedule")(scheduling.schedule)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Errors of hocket are printed, not raised."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app(args=list(arguments), prog_name="hocket")
    except HocketError as error:
        print_error(error)
        return INPUT_WRONG
    except KeyboardInterrupt:
        code = STOPPED
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        code = 0
    if code == STOPPED:
        Console(stderr=True).print("stopped", style="yellow")
    return code


def print_error(error: HocketError) -> None:
    """An error as culprit and rule, what was found, and the repair, on stderr."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("error ", "bold red"), (error.culprit, "bold"), f" {error.rule}"))
    if error.values:
        console.print(Text.assemble(("  found  ", "dim"), error.values))
    if error.repair:
        console.print(Text.assemble(("  repair ", "green"), error.repair))


def main() -> None:
    """Entry point of the console script."""
    code = run(sys.argv[1:])
    if code == STOPPED:
        # a thread may still be inside a solver or a capture, and must not hold up or crash the exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
