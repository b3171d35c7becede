"""Task classes that a fresh process cannot import, and configurations with more than numbers."""

from __future__ import annotations

import sys

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

# A whole script, without `if __name__ == "__main__":`, that uses what it has defined.
ONE_FILE = """
    import os
    from act import say
    from gpu_task_scheduler.gpu_task import GPUTask
    from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

    say("script")
    FACTOR = 3

    class Model:
        def __init__(self, size):
            self.size = size

        def __call__(self, x):
            return triple(x) + self.size

    def triple(x):
        return FACTOR * x

    class MyTask(GPUTask):
        def main(self):
            super().required_env()
            made = self._config["model"](1)
            visible = os.environ["CUDA_VISIBLE_DEVICES"]
            say(self._config["f"](10), made(2), type(made).__name__, visible)

    config = {
        "scheduler_config": {"gpu": ["5"]},
        "global_config": {"model": Model},
        "test_config": [{"f": [lambda x: x + FACTOR, lambda x: -x]}],
    }
    GPUTaskScheduler(config=config, gpu_task_class=MyTask).start()
"""
SAID = ["script", "13 7 Model 5", "-10 7 Model 5"]


def test_a_class_lambdas_and_classes_of_the_main_script_work_and_it_runs_once(story: Story) -> None:
    story.run_script(ONE_FILE, name="main.py")
    assert story.said() == SAID

    story.run_script(ONE_FILE, name="main.py")
    assert story.said() == [*SAID, "script"]  # they are known again
    name = "f-<function<lambda>>,"
    assert files_of(story, "results") == [name, f"{name}~2"]


def test_a_script_from_standard_input_works(story: Story) -> None:
    with story.write("script", ONE_FILE).open() as script:
        story.start(sys.executable, "-", stdin=script).ended_well()

    assert story.said() == SAID


def test_a_script_on_the_command_line_works(story: Story) -> None:
    text = story.write("script", ONE_FILE).read_text()
    story.start(sys.executable, "-c", text).ended_well()

    assert story.said() == SAID


def test_a_module_run_with_m_works(story: Story) -> None:
    story.write("package/__init__.py", "")
    story.write("package/main.py", ONE_FILE)
    story.start(sys.executable, "-m", "package.main").ended_well()

    assert story.said() == SAID


def test_cells_of_a_notebook_work(story: Story) -> None:
    """As its kernel runs them: piece by piece, in a module without a file, while a loop runs."""
    cells = ONE_FILE.partition("    config = {")
    story.write("cells.txt", cells[0] + "\n#%%\n" + cells[1] + cells[2])
    kernel = """
        import asyncio, sys, textwrap, types
        text = open("cells.txt").read()
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module

        async def main():
            for cell in text.split("#%%"):
                exec(compile(textwrap.dedent(cell), "<ipython-input>", "exec"), module.__dict__)

        asyncio.run(main())
    """
    ended = story.run_script(kernel, name="kernel.py", env={"MPLBACKEND": "module://inline"})

    assert story.said() == SAID
    assert with_words(lines_of(ended.err), "gpu5 finished")


def test_lines_on_a_terminal_work(story: Story) -> None:
    """The interpreter that asks for a line at a time."""
    lines = [
        "from gpu_task_scheduler.gpu_task import GPUTask",
        "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler",
        "from act import say",
        "class T(GPUTask):",
        "    def main(self): say(self._config['n'])",
        "",
        f"GPUTaskScheduler({config()}, T).start()",
        "",
    ]
    with story.write("lines", "\n".join(lines)).open() as typed:
        story.start(sys.executable, "-i", "-q", stdin=typed).ended_well()

    assert story.said() == ["1", "2"]


def test_a_module_that_schedules_as_it_is_imported_does_not_start_itself_again(
    story: Story,
) -> None:
    story.write("whole.py", ONE_FILE)
    story.run_script("import whole", name="main.py")

    assert story.said() == SAID


def test_a_scheduler_that_a_worker_would_start_is_refused(story: Story) -> None:
    """The module of the task imports one that schedules, unguarded."""
    story.write(
        "schedules.py",
        f"""
        import sys
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        if "my_gpu_task" in sys.modules and hasattr(sys.modules["my_gpu_task"], "MyGPUTask"):
            GPUTaskScheduler({config()}, sys.modules["my_gpu_task"].MyGPUTask).start()
        """,
    )
    write_task(story, 'say("ran")')
    with (story.folder / "my_gpu_task.py").open("a") as file:
        file.write('if "worker" in sys.modules["__main__"].__file__:\n    import schedules\n')
    said = lines_of(run(story, config("{'n': [1]}")).err)

    assert story.said() == []
    assert with_words(said, "gpu0 fails task n-1,", "start() was called by a module")
    log = (story.folder / "results/n-1,/worker.log").read_text()
    assert 'Put the call under `if __name__ == "__main__":`' in log


def test_a_module_that_is_not_on_the_path_travels_whole(story: Story) -> None:
    story.write("hidden/my_gpu_task.py", "")
    write_task(story, 'say(helper(), self._config["n"])')
    text = (story.folder / "my_gpu_task.py").read_text() + "def helper():\n    return 'helped'\n"
    (story.folder / "my_gpu_task.py").unlink()
    story.write("hidden/my_gpu_task.py", text)
    script = """
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("hidden_task", "hidden/my_gpu_task.py")
        module = sys.modules["hidden_task"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        GPUTaskScheduler({config}, module.MyGPUTask).start()
    """
    run(story, config("{'n': [1]}"), script)

    assert story.said() == ["helped 1"]


def test_a_path_that_the_script_has_added_is_known_to_the_worker(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    (story.folder / "inner").mkdir()
    (story.folder / "my_gpu_task.py").rename(story.folder / "inner/my_gpu_task.py")
    script = """
        import sys
        sys.path.append("inner")
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        GPUTaskScheduler({config}, MyGPUTask).start()
    """
    run(story, config("{'n': [1]}"), script)

    assert story.said() == ["1"]


def test_options_of_the_interpreter_are_those_of_the_script(story: Story) -> None:
    story.env |= {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}  # Python has its own mind in others
    write_task(story, "say(sys.flags.optimize, sys.flags.utf8_mode)")
    story.write("main.py", "")
    run(story, config("{'n': [1]}"))
    main = story.folder / "main.py"
    story.start(sys.executable, "-O", "-X", "utf8", main).ended_well()
    spelled = config("{'n': [2]}")
    main.write_text(main.read_text().replace(config("{'n': [1]}"), spelled))
    story.start(sys.executable, "-O", "-X", "utf8", main).ended_well()

    assert story.said() == ["0 0", "1 1"]


def test_a_task_may_start_processes_of_its_own(story: Story) -> None:
    write_task(
        story,
        """
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            say(pool.apply(double, (4,)))
        """,
    )
    with (story.folder / "my_gpu_task.py").open("a") as file:
        file.write("def double(x):\n    return 2 * x\n")
    run(story, config("{'n': [1]}"))

    assert story.said() == ["8"]


# --- what cannot be sent ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("common", "used", "words"),
    [
        ("{'lock': lock}", "3", "global_config['lock'] cannot be sent to another process: "),
        ("{}", "lock", "the class MyGPUTask cannot be sent to another process: "),
    ],
)
def test_what_cannot_be_sent_is_named_before_anything_runs(
    story: Story, common: str, used: str, words: str
) -> None:
    script = f"""
        import threading
        from act import say
        from gpu_task_scheduler.gpu_task import GPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        lock = threading.Lock()
        class MyGPUTask(GPUTask):
            def main(self):
                say("never", {used})
        GPUTaskScheduler({{config}}, MyGPUTask).start()
    """
    ended = start(story, config("{'n': [1]}", common=common), script).wait()

    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert words in last
    assert "main()" in last
    assert story.said() == []
    assert not (story.folder / "temp").exists()


def test_a_value_that_cannot_be_sent_fails_its_instance_alone(story: Story) -> None:
    write_task(story, 'say(self._config["n"])')
    spelled = config("{'n': [1, __import__('threading').Lock(), 3]}")
    said = lines_of(run(story, spelled).err)

    assert story.said() == ["1", "3"]
    assert with_words(said, "gpu0 fails task", "config['n'] cannot be sent", "make it in main()")


def test_objects_of_modules_travel_too(story: Story) -> None:
    write_task(story, 'say(self._config["n"], type(self._config["c"]).__name__)')
    run(
        story,
        config(
            "{'n': [__import__('decimal').Decimal('1.5')]}",
            common="{'c': __import__('collections').Counter()}",
        ),
    )

    assert story.said() == ["1.5 Counter"]


# --- what is no task -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", ["3", "MyGPUTask({}, '')", "lambda config, work_dir: None", "int"]
)
def test_what_is_no_class_with_a_main_is_refused(story: Story, wrong: str) -> None:
    write_task(story, "pass")
    script = f"""
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        GPUTaskScheduler({{config}}, {wrong}).start()
    """
    ended = start(story, config(), script).wait()

    assert ended.code == 1
    assert "gpu_task_class must be a class with a method main(self), not " in ended.err


def test_a_class_without_main_fails_and_says_so(story: Story) -> None:
    story.write(
        "my_gpu_task.py",
        "from gpu_task_scheduler.gpu_task import GPUTask\nclass MyGPUTask(GPUTask):\n    pass\n",
    )
    run(story, config("{'n': [1]}"))

    assert with_words(log_of(story), "NotImplementedError: MyGPUTask has no main(): write one")


def test_a_class_that_is_no_gpu_task_but_looks_like_one_works(story: Story) -> None:
    story.write(
        "my_gpu_task.py",
        """
        from act import say

        class MyGPUTask:
            def __init__(self, config, work_dir):
                self.n = config["n"]

            def main(self):
                say(self.n)
        """,
    )
    run(story, config())

    assert story.said() == ["1", "2"]


def test_a_task_can_be_tried_without_a_scheduler(story: Story) -> None:
    write_task(story, 'say(self._config["n"], self._work_dir, self.required_env())')
    story.run_script("from my_gpu_task import MyGPUTask\nMyGPUTask({'n': 1}, 'here').main()\n")

    assert story.said() == ["1 here {}"]
