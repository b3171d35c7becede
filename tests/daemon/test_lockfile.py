"""The daemon_lock a negotiator stands on: one lock per machine, whoever else was there before."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grn.client.negotiator import ask_once, connect
from grn.daemon.lockfile import DaemonLock, file_system_of, state_folder
from grn.errors import AlreadyRunning, MachineError
from grn.proc.processes import mounts
from tests.harness import Story, wait_for
from tests.negotiator.live import OTHER_UID, OWN_UID, begin, needs_root, negotiator_of

VIRTUAL = ("--gpus", "virtual:1x1GiB")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a runtime folder for this process; nobody has made it yet."""
    folder = tmp_path / "run"
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(folder))
    return folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the lock ------------------------------------------------------------------------------


def test_the_folder_is_like_tmp_and_the_socket_open_to_all(run: Path) -> None:
    old_mask = os.umask(0o077)  # as many keep it, but others must get in
    try:
        with DaemonLock() as daemon_lock, daemon_lock.listen():
            modes = [mode_of(run), mode_of(run / "lock"), mode_of(Path(daemon_lock.socket_path))]
    finally:
        os.umask(old_mask)

    assert modes == [0o1777, 0o644, 0o666]


def test_the_socket_goes_with_the_negotiator_and_the_lock_stays(run: Path) -> None:
    with DaemonLock() as daemon_lock, daemon_lock.listen():
        assert len(list(run.iterdir())) == 2

    assert [path.name for path in run.iterdir()] == ["lock"]
    with DaemonLock():
        pass  # a lock that nobody holds is no hindrance


def test_a_second_one_is_told_to_use_the_first(run: Path) -> None:
    with DaemonLock() as daemon_lock, daemon_lock.listen():
        with pytest.raises(AlreadyRunning, match="already runs on this machine") as caught:
            DaemonLock().__enter__()

        assert "grn stop" in caught.value.hint
        assert os.path.exists(daemon_lock.socket_path)  # the first is left alone


def test_a_socket_that_nobody_listens_on_is_replaced(run: Path) -> None:
    run.mkdir()
    stale = run / f"{os.getuid()}.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))

    with DaemonLock() as daemon_lock, daemon_lock.listen(), socket.socket(socket.AF_UNIX) as client:
        client.connect(daemon_lock.socket_path)


def test_a_file_in_place_of_the_socket_is_replaced(run: Path) -> None:
    run.mkdir()
    (run / f"{os.getuid()}.sock").write_text("not a socket")

    with DaemonLock() as daemon_lock, daemon_lock.listen() as listener:
        assert listener.getsockname() == daemon_lock.socket_path


def test_a_folder_in_place_of_the_socket_is_one_clear_line(run: Path) -> None:
    (run / f"{os.getuid()}.sock").mkdir(parents=True)

    with DaemonLock() as daemon_lock, pytest.raises(MachineError, match="cannot be made") as caught:
        daemon_lock.listen()

    assert "GRN_RUNTIME_DIR" in caught.value.hint


def test_a_lock_held_by_a_process_that_dies_is_waited_for(run: Path) -> None:
    """After a kill the kernel may take a moment to let the lock go."""
    run.mkdir()
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); input()"
    (run / "lock").touch()
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(run / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    end = threading.Timer(0.2, owner.kill)
    end.start()
    with DaemonLock() as daemon_lock:
        assert daemon_lock.socket_path.startswith(str(run))
    end.join()
    owner.communicate()


@pytest.mark.parametrize("target", ["/etc/passwd", "/nowhere/at/all"])
def test_a_link_in_place_of_the_lock_is_refused_and_not_followed(run: Path, target: str) -> None:
    run.mkdir()
    (run / "lock").symlink_to(target)

    with pytest.raises(MachineError, match="cannot be used"):
        DaemonLock().__enter__()

    assert not os.path.exists("/nowhere/at/all")


def test_a_pipe_in_place_of_the_lock_is_refused_at_once(run: Path) -> None:
    run.mkdir()
    os.mkfifo(run / "lock")

    with pytest.raises(MachineError, match="is not a file"):
        DaemonLock().__enter__()


def test_a_file_in_place_of_the_folder_is_one_clear_line(run: Path) -> None:
    run.touch()

    with pytest.raises(MachineError, match="Not a directory") as caught:
        DaemonLock().__enter__()

    assert "GRN_RUNTIME_DIR" in caught.value.hint


def test_a_path_too_long_for_a_socket_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 120)
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(folder))

    with pytest.raises(MachineError, match="longer than the system allows") as caught:
        DaemonLock().__enter__()

    assert str(folder) in str(caught.value)
    assert not folder.exists()


def test_a_socket_may_be_named_relative_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRN_SOCKET", "mine.sock")

    with DaemonLock() as daemon_lock, daemon_lock.listen():
        found = connect()
        found.close()
        assert daemon_lock.socket_path == str(tmp_path / "mine.sock")


# --- real negotiators ----------------------------------------------------------------------


def test_of_five_that_start_at_once_exactly_one_wins(story: Story) -> None:
    command = [sys.executable, "-m", "grn.negotiator", *VIRTUAL]
    jobs = [story.start(*command) for _ in range(5)]

    wait_for(lambda: sum(not job.is_running for job in jobs) == 4, "four to give up")
    losers = [job.wait() for job in jobs if not job.is_running]
    (winner,) = (job for job in jobs if job.is_running)

    assert all(loser.code == 3 for loser in losers)
    assert all("already runs on this machine" in loser.err for loser in losers)
    assert not any("Traceback" in loser.err for loser in losers)
    wait_for(lambda: "Managing GPUs" in winner.err, "the winner to be ready")
    assert ask_once({"op": "ping"})["pid"] == winner.pid
    winner.signal(signal.SIGTERM)
    assert winner.wait().code == 0


def test_after_a_kill_the_next_one_starts_at_once(story: Story) -> None:
    first = begin(story, negotiator_of(None, *VIRTUAL))
    assert first.is_ready
    first.end(signal.SIGKILL)
    assert list((story.folder / "run").glob("*.sock"))  # nobody has tidied up

    second = begin(story, negotiator_of(None, *VIRTUAL))

    assert second.is_ready
    assert ask_once({"op": "ping"})["pid"] == second.process.pid
    assert second.end()[0] == 0


@needs_root
def test_users_take_turns_in_one_folder_whatever_their_umask(story: Story) -> None:
    """Whoever came first owns lock and folder; the next must be able to stand there too."""
    story.folder.chmod(0o777)
    old_mask = os.umask(0o077)
    try:
        for uid in (OTHER_UID, OWN_UID, None):
            story.env["GRN_STATE_DIR"] = str(story.folder / f"state-{uid}")
            if uid is None:
                os.chown(story.folder / "run", 0, 0)
            begun = begin(story, negotiator_of(uid, *VIRTUAL))
            assert begun.is_ready, begun
            assert ask_once({"op": "ping"})["uid"] == (uid or 0)
            assert begun.end()[0] == 0
    finally:
        os.umask(old_mask)


@needs_root
def test_while_one_user_runs_it_another_cannot(story: Story) -> None:
    story.folder.chmod(0o777)
    first = begin(story, negotiator_of(OTHER_UID, *VIRTUAL))
    story.env["GRN_STATE_DIR"] = str(story.folder / "other-state")

    second = begin(story, negotiator_of(OWN_UID, *VIRTUAL))

    assert "already runs on this machine" in second.first_line
    assert second.end()[0] == 3
    assert ask_once({"op": "ping"})["uid"] == OTHER_UID
    first.end()


@needs_root
def test_a_socket_squatted_by_another_user_is_one_clear_line(story: Story) -> None:
    run = story.folder / "run"
    run.mkdir()
    run.chmod(0o1777)
    story.folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(str(run / f"{OTHER_UID}.sock"))  # made by root, in a sticky folder

    begun = begin(story, negotiator_of(OTHER_UID, *VIRTUAL))
    code, said = begun.end()

    assert code == 4
    assert "cannot be made" in begun.first_line
    assert "Traceback" not in said


@needs_root
def test_a_runtime_folder_that_cannot_be_written_is_one_clear_line(story: Story) -> None:
    (story.folder / "run").mkdir(mode=0o755)
    story.folder.chmod(0o755)

    begun = begin(story, negotiator_of(OTHER_UID, *VIRTUAL))
    code, said = begun.end()

    assert code == 4
    assert "Permission denied" in begun.first_line
    assert "Traceback" not in said


# --- whose the folder is -------------------------------------------------------------------


def refused(story: Story, uid: int | None) -> str:
    """Start a negotiator, which must refuse in one line; return it."""
    begun = begin(story, negotiator_of(uid, *VIRTUAL))
    code, said = begun.end()
    assert code == 4, said
    assert "Traceback" not in said
    assert "GRN_RUNTIME_DIR" in said
    return begun.first_line


@needs_root
@pytest.mark.parametrize("uid", [None, OWN_UID])
@pytest.mark.parametrize("where", ["run", "link/run"])
def test_a_link_of_another_user_is_not_followed(story: Story, uid: int | None, where: str) -> None:
    """Root would make its lock and its socket wherever the link leads."""
    story.folder.chmod(0o1777)
    target = story.folder / "target"
    target.mkdir()
    target.chmod(0o1777)
    link = story.folder / where.partition("/")[0]
    link.symlink_to(target)
    os.chown(link, OTHER_UID, -1, follow_symlinks=False)
    story.env["GRN_RUNTIME_DIR"] = str(story.folder / where)

    assert f"{link} is a link that user {OTHER_UID} made" in refused(story, uid)
    assert list(target.iterdir()) == []


@needs_root
def test_a_link_that_leads_nowhere_makes_no_folder_there(story: Story) -> None:
    link = story.folder / "run"
    link.symlink_to(story.folder / "nowhere")
    os.chown(link, OTHER_UID, -1, follow_symlinks=False)

    assert "is a link" in refused(story, None)
    assert not (story.folder / "nowhere").exists()


def test_ones_own_link_is_followed(run: Path) -> None:
    elsewhere = run.with_name("elsewhere")
    elsewhere.mkdir()
    run.symlink_to(elsewhere)

    with DaemonLock() as daemon_lock, daemon_lock.listen():
        assert (elsewhere / "lock").exists()


@needs_root
def test_root_does_not_stand_in_the_folder_of_another(story: Story) -> None:
    run = story.folder / "run"
    run.mkdir()
    run.chmod(0o1777)
    os.chown(run, OTHER_UID, -1)

    assert f"belongs to user {OTHER_UID}" in refused(story, None)
    assert list(run.iterdir()) == []


@needs_root
def test_a_user_in_the_folder_of_another_is_warned(story: Story) -> None:
    story.folder.chmod(0o777)
    run = story.folder / "run"
    run.mkdir()
    run.chmod(0o1777)
    os.chown(run, OTHER_UID, -1)

    begun = begin(story, negotiator_of(OWN_UID, *VIRTUAL))
    assert begun.is_ready
    assert f"{run} belongs to user {OTHER_UID}, who can remove lock" in begun.end()[1]


@needs_root
def test_a_folder_that_is_not_sticky_is_refused(story: Story) -> None:
    story.folder.chmod(0o777)
    run = story.folder / "run"
    run.mkdir()
    run.chmod(0o777)

    assert "it is not sticky" in refused(story, OWN_UID)


def test_ones_own_folder_is_made_sticky(run: Path) -> None:
    run.mkdir()
    run.chmod(0o777)

    with DaemonLock():
        assert mode_of(run) == 0o1777


def test_whoever_holds_the_lock_file_without_being_one_is_told_of(story: Story) -> None:
    run = story.folder / "run"
    run.mkdir()
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        begun = begin(story, negotiator_of(None, *VIRTUAL))

    assert "already runs" in begun.first_line
    assert begun.end()[0] == 3


# --- where the state is --------------------------------------------------------------------

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/ann/local xfs rw 0 0
server:/big /srv/my\\040data nfs rw 0 0
host#x /mnt/ssh fuse.sshfs rw 0 0
store /data/lustre lustre rw 0 0
tmpfs /home tmpfs rw 0 0
server:/home /home nfs4 rw,later 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann/.local/state/grn", "nfs4"),
        ("/homestead/ann", "ext4"),
        ("/home/ann/local/deep/er", "xfs"),
        ("/srv/my data/x", "nfs"),
        ("/srv/my", "ext4"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/data/lustre", "lustre"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_what_is_mounted_last_in_one_place_counts() -> None:
    assert file_system_of("/home/x", "a /home nfs rw 0 0\nb /home ext4 rw 0 0\n") == "ext4"


def test_without_a_list_of_mounts_nothing_is_known() -> None:
    assert file_system_of("/home/x", "") == ""


def test_the_list_of_mounts_of_this_machine_can_be_read() -> None:
    assert file_system_of("/proc/self", mounts()) == "proc"


def test_a_state_on_a_local_disk_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRN_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/lib/somewhere")

    assert state_folder(MOUNTS) == ("/var/lib/somewhere/grn", "")


def test_a_state_on_the_network_is_moved_to_a_local_disk_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRN_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ann/.local/state")

    for _ in range(2):  # the second time the folder is there already
        folder, note = state_folder(MOUNTS, str(tmp_path))

        assert folder == str(tmp_path / f"grn-{os.getuid()}")
        assert mode_of(Path(folder)) == 0o700
        assert "/home/ann/.local/state/grn is on nfs4" in note
        assert folder in note


def test_a_state_folder_named_by_hand_is_used_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRN_STATE_DIR", "/home/ann/here")

    assert state_folder(MOUNTS) == ("/home/ann/here", "")


def test_a_link_in_place_of_the_local_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can put one where everybody may write."""
    monkeypatch.delenv("GRN_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ann/.local/state")
    (tmp_path / "target").mkdir()
    (tmp_path / f"grn-{os.getuid()}").symlink_to(tmp_path / "target")

    with pytest.raises(MachineError, match="another user"):
        state_folder(MOUNTS, str(tmp_path))


@needs_root
def test_a_local_folder_made_by_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRN_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ann/.local/state")
    trap = tmp_path / f"grn-{os.getuid()}"
    trap.mkdir()
    os.chown(trap, OTHER_UID, OTHER_UID)

    with pytest.raises(MachineError, match="another user") as caught:
        state_folder(MOUNTS, str(tmp_path))

    assert "GRN_STATE_DIR" in caught.value.hint
