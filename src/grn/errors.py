"""Every error that grn raises on purpose, with its exit code on the command line.

Holds no logic beyond the texts; turning errors into terminal output is the work of `cli/app.py`.
"""

from __future__ import annotations


class GrnError(Exception):
    """Root of all errors of grn; `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip() if hint else message)
        self.message = message
        self.hint = hint


class UsageError(GrnError):
    """The request is invalid."""

    exit_code = 2


class BadSetting(UsageError):
    """A flag, an environment variable or a line of the settings file is wrong."""


class UnknownJob(UsageError):
    """No lease, request or job type of that name."""


class NotAllowed(UsageError):
    """The caller does not own what it wants to change."""


class NeverFits(UsageError, MemoryError):
    """The need exceeds this machine."""

    exit_code = 4


class DaemonError(GrnError):
    """The negotiator cannot be reached."""

    exit_code = 3


class DaemonNotRunning(DaemonError, ConnectionError):
    """No process answers at the socket."""

    def __init__(self, where: str, what: str = "negotiator") -> None:
        if what == "queue":
            super().__init__(f"no grn queue answers at {where}.", "`grn submit` starts one.")
            return
        super().__init__(
            f"no grn negotiator answers at {where}.",
            "Start one with `grn start` (without a GPU: `grn start --virtual 2x2GiB`).",
        )
        self.args = (f"{self.args[0]} (GPU Master is not available.)",)  # as older scripts know


class NotTrusted(DaemonNotRunning):
    """The process that answers at the socket is not trusted."""

    def __init__(self, where: str, user: str, meant: str) -> None:
        GrnError.__init__(
            self,
            f"{where} is answered by user {user}, not by {meant}, so it is not used.",
            "Let that user or root take it away, or meet elsewhere: see GRN_RUNTIME_DIR.",
        )


class VersionMismatch(DaemonError):
    """Client and negotiator speak different versions of the protocol."""


class ProtocolError(DaemonError):
    """The bytes on the socket are not a message of grn."""


class AlreadyRunning(DaemonError):
    """A second negotiator was started on the same machine."""


class MachineError(GrnError):
    """Driver, disk or permission: the machine cannot do what was requested."""

    exit_code = 4


class JobFailed(GrnError):
    """A job that was waited for failed; its exit code is the job's own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


BY_CODE: dict[str, type[GrnError]] = {
    kind.__name__: kind
    for kind in (
        GrnError,
        UsageError,
        BadSetting,
        UnknownJob,
        NotAllowed,
        NeverFits,
        DaemonError,
        VersionMismatch,
        ProtocolError,
        AlreadyRunning,
        MachineError,
    )
}


def from_code(code: str, message: str, hint: str = "") -> GrnError:
    """Rebuild the error that a negotiator sent by the name of its class."""
    return BY_CODE.get(code, GrnError)(message, hint)
