"""`grn notify`: send what a hook is told of a job, to a phone, a channel or by mail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from email.header import Header
from email.message import EmailMessage

import click

from grn.cli.help import command, flag
from grn.errors import MachineError, UsageError
from grn.model.text import cut
from grn.model.units import show_size, show_time

TIMEOUT_S = 10.0
MAX_TITLE = 80
_SCHEMES = ("http://", "https://")


@command()
@flag("--ntfy", metavar="URL", help="Post to this topic of ntfy, such as https://ntfy.sh/my-jobs.")
@flag("--slack", metavar="URL", help="Post to this incoming webhook of Slack or Mattermost.")
@flag("--mail", metavar="ADDRESS", help="Send a mail by the sendmail of this machine.")
@click.argument("text", nargs=-1, metavar="[TEXT...]")
def notify(ntfy: str | None, slack: str | None, mail: str | None, text: tuple[str, ...]) -> int:
    """Send a message about the job whose hook runs this command, or TEXT.

    For `--notify` of `grn submit` and the settings on_end, on_failure, on_empty and on_idle. Every
    user of the machine can read a command line: @FILE stands for the first line of a file.
    """
    if not (ntfy or slack or mail):
        raise UsageError("there is nowhere to send to.", "Use --ntfy, --slack or --mail.")
    title, body = (" ".join(text), "") if text else message(os.environ)
    if ntfy:
        headers = {"Title": Header(title).encode(maxlinelen=0)}
        _post(_secret(ntfy), (body or title).encode(), headers)
    if slack:
        said = json.dumps({"text": f"*{title}*\n{body}".rstrip()}).encode()
        _post(_secret(slack), said, {"Content-Type": "application/json"})
    if mail:
        _mail(_secret(mail), title, body)
    return 0


def message(told: Mapping[str, str]) -> tuple[str, str]:
    """Return title and text for the variables of a hook."""
    event = told.get("GRN_EVENT")
    if event == "empty":
        return "the queue is empty", ""
    if event not in ("end", "idle"):
        raise UsageError("no hook has said what happened.", "Give a TEXT to send.")
    command_line = told.get("GRN_JOB_COMMAND", "")
    job = " ".join(f"job {told.get('GRN_JOB_ID', '')} {told.get('GRN_JOB_NAME', '')}".split())
    if event == "idle":
        held = show_size(int(told.get("GRN_IDLE_BYTES") or 0))
        title = f"{job} holds {held} and has been idle for {_time(told.get('GRN_IDLE_S', ''))}"
        return cut(title, MAX_TITLE), command_line
    reason, status = told.get("GRN_REASON", ""), told.get("GRN_JOB_STATUS", "")
    how = f"{reason}, exit status {status}" if status not in ("", "0") else reason
    lines = [command_line, f"ran for {_time(told.get('GRN_JOB_RUN_S', ''))}"]
    if reason != "ok" and told.get("GRN_JOB_TAIL"):
        lines += ["", told["GRN_JOB_TAIL"]]
    return cut(f"{job}: {how}", MAX_TITLE), "\n".join(lines)


def _time(seconds: str) -> str:
    return show_time(float(seconds)) if seconds else "?"


def _secret(given: str) -> str:
    """Return a value, or the first line of the file that it names."""
    if not given.startswith("@"):
        return given
    try:
        with open(os.path.expanduser(given[1:]), encoding="utf-8") as file:
            return file.readline().strip()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{given[1:]} cannot be read: {said}.") from error


def _post(url: str, data: bytes, headers: Mapping[str, str]) -> None:
    if not url.startswith(_SCHEMES):
        raise UsageError(f"'{url}' is not an address.", "It begins with https:// or http://.")
    host = url.split("/")[2]  # the rest of the address may be a secret
    try:
        request = urllib.request.Request(url, data, dict(headers))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass
    except (OSError, ValueError) as error:  # refused, no such host, no answer in time
        said = getattr(error, "reason", None) or error
        said = getattr(said, "strerror", None) or said
        raise MachineError(f"{host} did not take the message: {said}.") from error


def _mail(address: str, title: str, body: str) -> None:
    program = shutil.which("sendmail") or shutil.which("/usr/sbin/sendmail")
    if program is None:
        raise MachineError("there is no sendmail here.", "Install one, such as msmtp-mta.")
    letter = EmailMessage()
    letter["To"], letter["Subject"] = address, title
    letter.set_content(body + "\n")
    ended = subprocess.run([program, "-t", "-i"], input=bytes(letter), check=False)
    if ended.returncode:
        raise MachineError(f"{program} ended with status {ended.returncode}.")
