"""`grn exec`: one command in the foreground, under a lease of its own."""

from __future__ import annotations

from typing import Any

import click

from grn.cli import options
from grn.cli.commands.run import leased_command
from grn.cli.help import command, flag


@command("exec", context_settings={"allow_interspersed_args": False})
@options.needs()
@flag("--pack", is_flag=True, help="Prefer the fullest GPU that fits.")
@flag("--retry-oom", type=click.IntRange(0, 10), default=0, metavar="N",
              help="Retry up to N times with more memory if GPU memory runs out.")  # fmt: skip
@flag("-q", "--quiet", is_flag=True, help="Do not print why it waits.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD ...")
def execute(
    job_type: str | None, pack: bool, retry_oom: int, quiet: bool, command: tuple[str, ...],
    **stated: Any,
) -> int:  # fmt: skip
    """Run CMD when GPUs have room for it and return its exit status.

    CMD sees its GPUs in CUDA_VISIBLE_DEVICES. Signals are passed on. A negotiator is started in
    the background if none runs.
    """
    return leased_command.run(
        command, job_type=job_type, retry_oom=retry_oom, quiet=quiet,
        policy="pack" if pack else "spread", **stated,
    )  # fmt: skip
