"""gpu_task_scheduler a second time: what is run again, what is skipped, what cannot be."""

from __future__ import annotations

import os

import pytest

from tests.compat.tasks import (
    config,
    files_of,
    lines_of,
    log_of,
    run,
    start,
    with_words,
    write_task,
)
from tests.harness import Story

# --- running again -----------------------------------------------------------------------------


FAIL_ON = """
    say(self._config["n"])
    with open(os.path.join(self._work_dir, "partial"), "w") as file:
        file.write("half")
    if self._config["n"] == int(os.environ.get("BAD", "0")):
        {how}
"""


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ('raise ValueError("no data")', "ValueError: no data"),
        ("sys.exit(3)", "sys.exit(3)"),
        ("os._exit(4)", "exit status 4"),
        ("os.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
def test_a_failure_is_told_and_run_again_next_time(story: Story, how: str, reason: str) -> None:
    write_task(story, FAIL_ON.replace("{how}", how))
    first = lines_of(run(story, config(), env={"BAD": "1"}).err)

    text = f"n-1,: {reason}; see results/n-1,/worker.log"
    assert f"gpu0 fails task {text}" in first
    assert first[-2:] == ["1 of 2 tasks failed and will be run again next time:", f"  {text}"]
    assert first == log_of(story)
    assert not with_words(first, "finishes task n-1,")

    second = lines_of(run(story, config()).err)
    assert "gpu0 runs task n-1, again: it did not finish before" in second
    assert "gpu0 finishes task n-1," in second
    assert "gpu0 skips task n-2," in second
    assert story.said() == ["1", "2", "1"]

    run(story, config())
    assert story.said() == ["1", "2", "1"]


def test_exit_status_0_is_an_end_like_a_return(story: Story) -> None:
    write_task(story, 'say(self._config["n"]); sys.exit(0)')
    for _ in range(2):
        run(story, config("{'n': [1]}"))

    assert story.said() == ["1"]


def test_a_folder_that_is_there_is_no_reason_to_skip(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    (story.folder / "results/n-1,").mkdir(parents=True)
    (story.folder / "results/n-2,").mkdir()
    (story.folder / "results/n-2,/partial").touch()
    said = lines_of(run(story, config()).err)

    assert story.said() == ["1", "2"]
    assert (
        "gpu0 runs task n-2, again: its folder is there, but nothing says that it finished" in said
    )


def test_force_rerun_runs_all_and_leaves_other_files_alone(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    run(story, config())
    (story.folder / "results/n-1,/mine").write_text("kept")
    run(story, config(more="'force_rerun': True"))

    assert story.said() == ["1", "2", "1", "2"]
    assert (story.folder / "results/n-1,/mine").read_text() == "kept"


def test_new_values_run_alone(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    run(story, config("{'n': [1]}"))
    run(story, config("{'n': [0, 1, 2]}"))

    assert story.said() == ["1", "0", "2"]


def test_another_class_on_the_same_folders_runs_and_does_not_undo_the_first(story: Story) -> None:
    write_task(story, 'say("train")')
    story.write(
        "other.py",
        """
        from act import say
        from gpu_task_scheduler.gpu_task import GPUTask

        class Evaluate(GPUTask):
            def main(self):
                say("evaluate")
                raise ValueError("not yet")
        """,
    )
    script = """
        from other import Evaluate
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        GPUTaskScheduler({config}, Evaluate).start()
    """
    run(story, config("{'n': [1]}"))
    run(story, config("{'n': [1]}", more="'force_rerun': True"), script)
    run(story, config("{'n': [1]}"))

    assert story.said() == ["train", "evaluate"]


def test_a_changed_global_config_is_told(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    run(story, config("{'n': [1]}", common="{'epochs': 100}"))
    said = lines_of(run(story, config("{'n': [1]}", common="{'epochs': 200}")).err)

    assert story.said() == ["1"]
    assert with_words(said, "skipped results/n-1,", "epochs was 100 and is 200")


def test_results_of_the_older_tool_are_kept_and_told(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    for n, log in ((1, "done\n"), (2, "Traceback (most recent call last):\nValueError\n")):
        story.write(f"results/n-{n},/worker.log", log)
    line = (
        "Mon, 16 Nov 2020 02:00:00 gpu_task_scheduler.py[line:66] INFO gpu0 finishes task n-{},\n"
    )
    story.write("scheduler.log", line.format(1) + line.format(2))
    said = lines_of(run(story, config()).err)

    assert story.said() == ["2"]
    assert with_words(said, "skipped results/n-1,", "an older release finished it")


def test_start_again_runs_what_failed(story: Story) -> None:
    write_task(
        story,
        """
        say(self._config["n"])
        if len(open(os.environ["STORY"] + "/said").readlines()) == 1:
            raise ValueError("the first time")
        """,
    )
    script = """
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        scheduler = GPUTaskScheduler({config}, MyGPUTask)
        scheduler.start()
        scheduler.start()
    """
    run(story, config("{'n': (n for n in [1, 2])}"), script)

    assert story.said() == ["1", "2", "1"]


# --- names that meet, folders that cannot be -------------------------------------------------


def test_instances_with_equal_names_all_run_in_folders_of_their_own(story: Story) -> None:
    write_task(
        story,
        """
        end = self._config["path"][-1]
        say(end)
        open(os.path.join(self._work_dir, end), "w")
        """,
    )
    test = "{'path': ['x' * 40 + end for end in 'abb']}"
    said = lines_of(run(story, config(test)).err)

    name = f"path-{'x' * 30},"
    assert story.said() == ["a", "b"]
    assert files_of(story, "results") == [name, f"{name}~2"]
    assert files_of(story, f"results/{name}~2") == ["b", "worker.log"]
    assert f"results go to results/{name}~2: another instance has the same name" in said
    assert with_words(said, "skipped", "it is the same as one before")

    run(story, config(test))
    assert story.said() == ["a", "b"]


def test_results_of_another_instance_are_not_overwritten(story: Story) -> None:
    write_task(story, 'say(self._config["path"][-1])')
    run(story, config("{'path': ['x' * 40 + end for end in 'b']}"))
    said = lines_of(run(story, config("{'path': ['x' * 40 + end for end in 'ab']}")).err)

    assert story.said() == ["b", "b"]
    assert with_words(said, "gpu0 fails task", "has results of another instance: move them away")


def test_a_name_that_is_too_long_fails_alone_and_says_what_to_do(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    test = "{'n': [1]}, {**{f'key_{n}': ['v' * 30] for n in range(9)}, 'n': [2]}, {'n': ['\\0']}"
    said = lines_of(run(story, config(test)).err)

    assert story.said() == ["1"]
    assert with_words(said, "gpu0 fails task key_0-", "lower config_string_value_maxlen")
    assert with_words(
        said, "gpu0 fails task n-\\0,".replace("\\0", "\0"), "null byte"
    ) or with_words(said, "embedded null")


def test_a_value_with_slashes_makes_folders(story: Story) -> None:
    write_task(story, "say(os.path.relpath(self._work_dir))")
    run(story, config("{'path': ['/data/a', '/data/b']}"))

    assert story.said() == ["results/path-/data/a,", "results/path-/data/b,"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("setting", ["result_root_folder", "temp_folder"])
def test_a_folder_that_cannot_be_written_is_one_clear_error(story: Story, setting: str) -> None:
    write_task(story, "pass")
    (story.folder / "locked").mkdir(mode=0o500)
    ended = start(story, config(more=f"'{setting}': 'locked'")).wait()

    assert ended.code == 1
    assert f"Name another in {setting}." in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("'result_root_folder': 'file/x'", "Name another in result_root_folder."),
        ("'temp_folder': 'file'", "Name another in temp_folder."),
        ("'scheduler_log_file_path': 'file/x.log'", "scheduler_log_file_path, or None."),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_one_clear_error(
    story: Story, more: str, words: str
) -> None:
    write_task(story, 'say("never")')
    story.write("file", "")
    ended = start(story, config(more=more)).wait()

    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith("grn.errors.MachineError: the ")
    assert words in ended.err.splitlines()[-1]
    assert story.said() == []
    assert not (story.folder / "temp").exists()


def test_a_folder_that_cannot_be_made_fails_its_instance_alone(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    story.write("results/n-1,", "a file")
    said = lines_of(run(story, config()).err)

    assert story.said() == ["2"]
    assert with_words(said, "gpu0 fails task n-1,: results/n-1,: ")


def test_temporary_files_go_and_a_folder_that_was_there_stays(story: Story) -> None:
    write_task(story, 'say(len(os.listdir("tmp")))')
    story.write("tmp/mine", "")
    run(story, config("{'n': [1]}", more="'temp_folder': 'tmp'"))

    assert story.said() == ["2"]
    assert files_of(story, "tmp") == ["mine"]


def test_remarks_are_logged(story: Story) -> None:
    write_task(story, "pass")
    said = lines_of(run(story, config("{'n': 'ab'}, {'m': []}", more="'typo': 1")).err)

    assert said[0] == "scheduler_config has no setting 'typo': it is ignored"
    assert len(with_words(said, "finishes task")) == 2


def test_nothing_to_do_is_done_at_once(story: Story) -> None:
    write_task(story, "pass")

    assert lines_of(run(story, config("{'n': []}")).err)[-1] == "gpu0 finished"
