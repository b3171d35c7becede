"""gpu_task_scheduler is stopped: nothing is left running, and what was interrupted runs again."""

from __future__ import annotations

import os
import signal

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
from tests.harness import Job, Story, is_running, wait_for

# A tree: a child, and one that has left it with a session of its own.
TREE = """
    import subprocess
    code = "import os, time; from act import say; say('pid', os.getpid()); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if os.path.exists("stay"):
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("pid", os.getpid())
    gate("end")
"""


def pids_of(story: Story, count: int) -> list[int]:
    """Return the pids that were said, once there are so many."""

    def said() -> list[int]:
        return [int(line.split()[1]) for line in story.said() if line.startswith("pid ")]

    wait_for(lambda: len(said()) >= count, lambda: f"{count} pids: {story.said()}")
    return said()


def begin(story: Story, script: str | None = None) -> tuple[Job, list[int]]:
    """Start two tasks with trees of three processes each."""
    write_task(story, TREE)
    story.gate("end")
    spelled = config("{'n': [1, 2, 3]}", gpu="['0', '1']")
    job = start(story, spelled, script) if script else start(story, spelled)
    return job, pids_of(story, 6)


def gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, pids)), lambda: f"{pids} to end")


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_ends_whole_trees_and_what_was_interrupted_runs_again(
    story: Story, signum: int, code: int
) -> None:
    job, pids = begin(story)
    job.signal(signum)
    ended = job.wait()

    assert ended.code == code
    assert not any(map(is_running, pids))
    said = log_of(story)
    for n in (1, 2):
        assert with_words(said, f"stops task n-{n},: it will be run again next time")
    assert not with_words(said, "n-3,")
    assert not (story.folder / "temp").exists()

    write_task(story, 'say("second", self._config["n"])')
    again = lines_of(run(story, config("{'n': [1, 2, 3]}")).err)
    assert [line for line in story.said() if "second" in line] == [f"second {n}" for n in (1, 2, 3)]
    assert with_words(again, "runs task n-1, again: it did not finish before")


def test_ctrl_c_is_a_keyboard_interrupt_that_the_script_may_catch(story: Story) -> None:
    script = """
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        try:
            GPUTaskScheduler({config}, MyGPUTask).start()
        except KeyboardInterrupt:
            print("caught")
    """
    job, pids = begin(story, script)
    job.signal(signal.SIGINT)

    assert job.ended_well().out == "caught\n"
    assert not any(map(is_running, pids))


def test_a_task_that_ignores_the_request_is_killed_at_the_second_one(story: Story) -> None:
    story.write("stay", "")
    job, pids = begin(story)
    job.signal(signal.SIGINT)
    wait_for(lambda: sum(map(is_running, pids)) == 2, "those that listen to end")
    job.signal(signal.SIGINT)

    assert job.wait().code == -signal.SIGINT
    assert not any(map(is_running, pids))


def test_a_scheduler_that_is_killed_takes_its_workers_along(story: Story) -> None:
    job, pids = begin(story)
    job.kill()
    gone(pids)

    write_task(story, 'say("second", self._config["n"])')
    run(story, config("{'n': [1, 2, 3]}"))
    assert [line for line in story.said() if "second" in line] == [f"second {n}" for n in (1, 2, 3)]


IN_A_THREAD = """
    import threading
    from my_gpu_task import MyGPUTask
    from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
    scheduler = GPUTaskScheduler({config}, MyGPUTask)
    thread = threading.Thread(target=scheduler.start, daemon={is_daemon})
    thread.start()
    thread.join()
    print("joined")
"""


def test_start_works_in_a_thread(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    ended = run(story, config(), IN_A_THREAD.replace("{is_daemon}", "False"))

    assert ended.out == "joined\n"
    assert story.said() == ["1", "2"]


def test_a_process_that_ends_while_a_thread_schedules_takes_its_workers_along(
    story: Story,
) -> None:
    job, pids = begin(story, IN_A_THREAD.replace("{is_daemon}", "True"))
    job.signal(signal.SIGTERM)

    assert job.wait().code == -signal.SIGTERM
    gone(pids)


def test_two_schedulers_share_the_work_and_not_a_folder(story: Story) -> None:
    write_task(story, 'say(os.environ["CUDA_VISIBLE_DEVICES"], self._config["n"]); gate("end")')
    story.gate("end")
    first = start(story, config(gpu="['0']"))
    story.hear("0 1")
    second = start(story, config(gpu="['1']", more="'scheduler_log_file_path': 'second.log'"))
    story.hear("1 2")
    story.gate("end").open()
    said = lines_of(second.ended_well().err)
    first.ended_well()

    assert sorted(story.said()) == ["0 1", "1 2"]
    assert with_words(said, "skipped results/n-1,: another scheduler runs it now")


def test_what_a_task_leaves_running_does_not_keep_the_gpu(story: Story) -> None:
    write_task(
        story,
        """
        import subprocess
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        say("pid", child.pid)
        """,
    )
    job = start(story, config())
    pids = pids_of(story, 2)
    job.ended_well()
    assert files_of(story, "results") == ["n-1,", "n-2,"]
    for pid in pids:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def test_two_schedulers_in_threads_of_one_process_do_not_meet(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    script = """
        import threading
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

        def run(n):
            settings = {"gpu": ["0", "1"], "result_root_folder": f"results{n}"}
            settings["scheduler_log_file_path"] = f"{n}.log"
            config = {"scheduler_config": settings, "test_config": [{"n": range(n, n + 15)}]}
            GPUTaskScheduler(config, MyGPUTask).start()

        threads = [threading.Thread(target=run, args=(n,)) for n in (0, 100)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """
    run(story, "", script)

    assert sorted(map(int, story.said())) == [*range(15), *range(100, 115)]
    for n in (0, 100):
        said = lines_of((story.folder / f"{n}.log").read_text())
        assert len(with_words(said, "finishes task")) == 15


def test_children_of_the_script_are_left_alone(story: Story) -> None:
    """Also those with a session of their own that it starts meanwhile, from a thread."""
    write_task(story, 'say("task"); gate("end")')
    story.gate("end")
    story.gate("child")
    script = """
        import subprocess, sys, threading
        from act import say
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

        def meanwhile():
            code = "from act import gate, say; import sys; say('child'); gate('child'); sys.exit(3)"
            child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            say("status", child.wait())

        thread = threading.Thread(target=meanwhile)
        try:
            thread.start()
            GPUTaskScheduler({config}, MyGPUTask).start()
        except KeyboardInterrupt:
            say("stopped")
        thread.join()
    """
    job = start(story, config("{'n': [1]}"), script)
    story.hear("task", "child")
    job.signal(signal.SIGINT)
    story.hear("stopped")
    story.gate("child").open()
    job.ended_well()

    assert story.said()[-1] == "status 3"
