"""Ways in which processes of a job try to outlive it. Run as `python escapes.py WAY READY MARK`.

The one that tries to get away writes its pid to the file READY and then waits for ever; MARK is
only there to be found in its command line.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
AT_MOST_S = 60  # if the test fails they shall not go on for ever
_SYS_EXIT = 60
_PTRACE_TRACEME = 0


def stay() -> None:
    """Say that we are away, and wait for ever."""
    _say()
    signal.alarm(AT_MOST_S)
    while True:
        signal.pause()


def deaf() -> None:
    """Hear nothing that can be ignored."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)


def in_child(then: Callable[[], None]) -> None:
    """Do it in a child, which the parent leaves alone."""
    if os.fork() == 0:
        then()
        os._exit(0)


def new_session() -> None:
    in_child(lambda: (os.setsid(), stay()))
    signal.pause()


def double_fork() -> None:
    in_child(lambda: (os.setsid(), in_child(stay)))
    signal.pause()


def leaves_a_child() -> None:
    """The command itself ends at once; what it has left is deaf."""
    in_child(lambda: (os.setsid(), deaf(), stay()))


def ignores_term() -> None:
    deaf()
    stay()


def new_group() -> None:
    in_child(lambda: (os.setpgid(0, 0), stay()))
    signal.pause()


def closes_all() -> None:
    in_child(lambda: (os.closerange(0, 1024), os.chdir("/"), stay()))
    signal.pause()


def stopped() -> None:
    in_child(lambda: (deaf(), _say(), os.kill(os.getpid(), signal.SIGSTOP), stay()))
    signal.pause()


def traced() -> None:
    def child() -> None:
        _libc.ptrace(_PTRACE_TRACEME, 0, 0, 0)
        _say()
        os.kill(os.getpid(), signal.SIGSTOP)

    deaf()
    in_child(child)
    signal.pause()


def vforked() -> None:
    deaf()
    if _libc.vfork() == 0:  # the parent stands still until its child ends
        stay()


def leader_gone() -> None:
    deaf()
    threading.Thread(target=_say_and_wait).start()
    _libc.syscall(_SYS_EXIT, 0)


def no_hangup() -> None:
    deaf()
    os.execvp("nohup", ["nohup", sys.executable, sys.argv[0], "ignores-term", *sys.argv[2:]])


def daemon() -> None:
    deaf()
    _libc.daemon(0, 0)
    stay()


def no_environment() -> None:
    deaf()
    argv = [sys.executable, sys.argv[0], "ignores-term", *sys.argv[2:]]
    in_child(lambda: (os.setsid(), os.execve(sys.executable, argv, {})))
    signal.pause()


def fork_loop() -> None:
    """Be always somebody else: each forks the next and ends."""
    deaf()
    _say()
    until = time.monotonic() + AT_MOST_S
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)


def fork_loop_in_sessions() -> None:
    """The same, and in a session of its own each time."""
    deaf()
    _say()
    until = time.monotonic() + AT_MOST_S
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()


def _say() -> None:
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))


def _say_and_wait() -> None:
    _say()
    threading.Event().wait(AT_MOST_S)


WAYS: dict[str, Callable[[], None]] = {
    "new-session": new_session,
    "double-fork": double_fork,
    "leaves-a-child": leaves_a_child,
    "ignores-term": ignores_term,
    "new-group": new_group,
    "closes-all": closes_all,
    "stopped": stopped,
    "traced": traced,
    "vforked": vforked,
    "leader-gone": leader_gone,
    "no-hangup": no_hangup,
    "daemon": daemon,
    "no-environment": no_environment,
    "fork-loop": fork_loop,
    "fork-loop-in-sessions": fork_loop_in_sessions,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
