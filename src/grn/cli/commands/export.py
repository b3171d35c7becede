"""One's own past as a workload: what `grn history --export` writes and `grn simulate` reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from grn.client import pages
from grn.client.job_features import of_command
from grn.errors import GrnError, MachineError
from grn.model.text import counted
from grn.simulate.files import write_jobs
from grn.simulate.workload import SimulatedJob


def write(rows: Sequence[dict[str, Any]], path: str) -> int:
    """Write the jobs that ended well and were measured; tell how many were left out."""
    loads = _loads()
    good = [row for row in rows if row["reason"] == "ok" and row["ran_s"] and row["peak_bytes"]]
    good.sort(key=lambda row: float(row["submitted_at"]))
    began = float(good[0]["submitted_at"]) if good else 0.0
    text = write_jobs(_job(row, began, loads) for row in good)
    if path == "-":
        click.echo(text, nl=False)
    else:
        try:
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            raise MachineError(f"{path} cannot be written: {error.strerror}.") from error
    left = len(rows) - len(good)
    click.echo(
        f"{counted(len(good), 'job')} written, {left} left out (failed or not measured)", err=True
    )
    return 0


def _job(row: dict[str, Any], began: float, loads: dict[str, float]) -> SimulatedJob:
    return SimulatedJob(
        name=str(row["id"]),
        job_type=row["label"],
        arrival_s=float(row["submitted_at"]) - began,
        solo_s=float(row["ran_s"]),
        peak_bytes=int(row["peak_bytes"]),
        gpus=max(1, len(row["gpus"])),
        load=loads.get(row["label"], 0.9),
        user=os.getuid(),
        arguments=tuple(sorted(of_command(row["argv"]).items())),
    )


def _loads() -> dict[str, float]:
    """Return what the negotiator has learned of how busy job types keep a GPU."""
    try:
        profiles = pages.ask_all({"op": "profiles"})["profiles"]
    except GrnError:
        return {}  # the file is good without it
    return {row["label"]: row["load"] for row in profiles if row.get("load") is not None}
