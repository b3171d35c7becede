"""Folders that travel: `--send` takes one to a node, `--fetch` brings files back.

The machines of these tests share one file system. So a folder counts as missing there only once it
differs from what was packed, or when the job's folder is removed after the submit.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from grn.client import folder_pack
from tests.harness import wait_for
from tests.sites.site_under_test import SITE, Home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder under git: one file tracked, one new, one ignored."""
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("*.big\nout/\n")
    (folder / "code.py").write_text("print('as submitted')\n")
    subprocess.run(["git", "-C", folder, "add", "code.py"], check=True)
    (folder / "new.txt").write_text("new\n")
    (folder / "data.big").write_text("large\n")
    return folder


def submitted(lab: Home, project: Path, *words: str) -> int:
    """Submit a job with its folder, held, then change the folder: the node does not have it."""
    out = lab.grn_well("submit", "--send", "--hold", "--at", SITE, *words, cwd=project)
    (project / "code.py").write_text("print('changed later')\n")
    lab.grn_well("release", out.strip())
    return int(out)


def test_a_sent_folder_is_what_git_sees_of_it_as_submitted(lab: Home, project: Path) -> None:
    script = "cat code.py; ls -A; pwd"
    job = submitted(lab, project, "--shell", "--", script)

    assert lab.rig.ended(job)["reason"] == "ok"
    code, *names, folder = lab.log(job).splitlines()
    assert code == "print('as submitted')"
    assert names == [".gitignore", "code.py", "new.txt"]
    assert folder != str(project)
    wait_for(lambda: not Path(folder).exists(), lambda: f"{folder} to be removed")


def test_a_job_that_writes_into_its_folder_changes_nothing_for_the_next(
    lab: Home, project: Path
) -> None:
    script = "cat new.txt; echo spoilt > new.txt"
    first = submitted(lab, project, "--shell", "--", script)
    assert lab.rig.ended(first)["reason"] == "ok"
    (project / "code.py").write_text("print('as submitted')\n")
    second = submitted(lab, project, "--shell", "--", script)

    assert lab.rig.ended(second)["reason"] == "ok"
    assert lab.log(first) == lab.log(second) == "new\n"
    assert (project / "new.txt").read_text() == "new\n"


def test_a_folder_that_the_node_shares_is_used_in_place(lab: Home, project: Path) -> None:
    out = lab.grn_well(
        "submit", "--send", "--at", SITE, "--shell", "--", "pwd; ls *.big", cwd=project
    )

    assert lab.rig.ended(int(out))["reason"] == "ok"
    assert lab.log(int(out)).split() == [str(project), "data.big"]


def test_matching_files_come_home_whatever_the_outcome(lab: Home, project: Path) -> None:
    script = "mkdir -p out/a; echo 1 > out/a/x.csv; echo 2 > out/y.txt; cp code.py z.csv; exit 3"
    job = submitted(lab, project, "--fetch", "out/**/*.csv", "--fetch", "*.csv", "--shell", "--",
                    script)  # fmt: skip
    row = lab.rig.ended(job)

    assert (row["reason"], row["status"]) == ("failed", 3)
    assert (project / "out/a/x.csv").read_text() == "1\n"
    assert (project / "z.csv").read_text() == "print('as submitted')\n"
    assert not (project / "out/y.txt").exists()
    assert (project / "code.py").read_text() == "print('changed later')\n"
    assert row["attempts"][0]["text"] == ""


def test_a_large_file_comes_home_whole(lab: Home, project: Path) -> None:
    job = submitted(lab, project, "--fetch", "big", "--shell", "--",
                    "head -c 3000001 /dev/urandom > big; sha256sum < big")  # fmt: skip

    assert lab.rig.ended(job)["reason"] == "ok"
    found = subprocess.run("sha256sum < big", shell=True, cwd=project, stdout=subprocess.PIPE)
    assert found.stdout.decode() == lab.log(job)


def test_a_file_that_cannot_be_fetched_is_told_and_the_outcome_stays(
    lab: Home, project: Path
) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (project / "out").symlink_to(elsewhere)
    job = submitted(lab, project, "--fetch", "out/*", "--shell", "--",
                    "rm -rf out; mkdir out; echo 1 > out/x")  # fmt: skip
    row = lab.rig.ended(job)

    assert row["reason"] == "ok"
    assert "not fetched: out/x: " in row["attempts"][0]["text"]
    assert "not fetched: out/x: " in lab.grn_well("show", str(job)).replace("\n", " ")
    assert list(elsewhere.iterdir()) == []
    kept = row["attempts"][0]["text"].partition("; see ")[2].partition(" on ")[0]
    assert (Path(kept) / "out/x").read_text() == "1\n"


def test_a_pattern_that_matches_nothing_is_told(lab: Home, project: Path) -> None:
    job = submitted(lab, project, "--fetch", "*.pt", "--", "true")

    assert lab.rig.ended(job)["attempts"][0]["text"] == "nothing new matches --fetch *.pt"


def test_a_pack_that_is_gone_ends_the_job_in_words(lab: Home, project: Path) -> None:
    out = lab.grn_well("submit", "--send", "--hold", "--at", SITE, "--", "true", cwd=project)
    shutil.rmtree(Path(lab.story.env["GRN_STATE_DIR"]) / "sent")
    lab.grn_well("release", out.strip())
    row = lab.rig.ended(int(out))

    assert row["reason"] == "not-runnable"
    assert "submit it again" in row["text"]


def test_a_missing_folder_is_named_with_the_node_and_what_to_do(lab: Home, project: Path) -> None:
    out = lab.grn_well("submit", "--hold", "--at", SITE, "--", "true", cwd=project)
    shutil.rmtree(project)
    lab.grn_well("release", out.strip())
    row = lab.rig.ended(int(out))

    assert row["reason"] == "not-runnable"
    assert f"the folder {project} cannot be used on {row['where']}" in row["text"]
    assert "--send" in row["text"]
    assert "--cwd" in row["text"]


def test_at_home_a_sent_folder_is_used_as_it_is(lab: Home, project: Path) -> None:
    words = ("submit", "--send", "--fetch", "x", "--at", "local", "--shell", "--", "pwd")
    out = lab.grn_well(*words, cwd=project)

    assert lab.rig.ended(int(out))["reason"] == "ok"
    assert lab.log(int(out)).strip() == str(project)


def test_a_folder_that_is_not_here_cannot_be_sent(lab: Home, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ended = lab.grn("submit", "--send", "--cwd", str(missing), "--at", SITE, "--", "true")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: the folder {missing} cannot be sent: it does not exist")


def test_a_folder_that_is_too_large_is_refused(lab: Home, tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(folder_pack.MAX_BYTES + 1)
    ended = lab.grn("submit", "--send", "--", "true", cwd=tmp_path)

    assert ended.code == 2
    assert "too large to send" in ended.err
    assert ".gitignore" in ended.err


@pytest.mark.parametrize("words", [("batch", "jobs.txt"), ("sweep", "run")])
def test_the_lines_of_a_batch_and_the_runs_of_a_sweep_take_their_folder_along(
    lab: Home, project: Path, words: tuple[str, ...]
) -> None:
    """The first command changes the folder, so for the second one the node does not have it."""
    lines = ["touch code.py", "pwd > where.txt"]
    (project / "jobs.txt").write_text("\n".join(lines))
    options = ["--at", SITE, "--send", "--fetch", "where.txt", "--parallel", "1", "-q"]
    commands = ["-p", "line", *lines, "--shell", "--", "eval {line}"] if "sweep" in words else []
    lab.grn_well(*words, *options, *commands, cwd=project)

    where = (project / "where.txt").read_text().strip()
    assert where.endswith("/tree")
    assert not where.startswith(str(project))


def test_a_line_that_is_cut_while_the_folder_is_sent_does_no_harm(lab: Home, project: Path) -> None:
    (project / "large").write_bytes(bytes(range(256)) * (1 << 16))
    job = submitted(lab, project, "--shell", "--", "cat code.py; stat -c %s large")
    sent = Path(lab.machine.env["GRN_STATE_DIR"]) / "agent"
    wait_for(lambda: any(sent.glob("*/sent/*.part")) or lab.rig.row(job)["state"] == "ended",
             lambda: "a part of the folder on the node")  # fmt: skip
    assert lab.site is not None
    lab.site.cut()
    lab.site.join()

    assert lab.rig.ended(job)["reason"] == "ok"
    assert lab.log(job).splitlines() == ["print('as submitted')", str(1 << 24)]


def test_a_node_without_room_for_the_folder_leaves_the_job_queued(lab: Home, project: Path) -> None:
    assert lab.rig.ended(submitted(lab, project, "true"))["reason"] == "ok"
    sent = next((Path(lab.machine.env["GRN_STATE_DIR"]) / "agent").glob("*/sent"))
    away = sent.rename(sent.with_name("away"))
    sent.write_text("no folder can be made here")
    try:
        (project / "new.txt").write_text("of this test\n")
        job = submitted(lab, project, "--shell", "--", "cat new.txt")
        why = lab.why_says(job, "could not take the folder of a job")
        assert "\n" not in why
        assert lab.rig.row(job)["state"] == "queued"
    finally:
        sent.unlink()
        away.rename(sent)

    assert lab.rig.ended(job)["reason"] == "ok"
    assert lab.log(job) == "of this test\n"
