"""When the GPUs are hidden from a scheduler's process, and when they must not be."""

from __future__ import annotations

from grn.compat.tasks.hide_gpus import has_opened_gpus
from tests.compat.tasks import config, run, start
from tests.harness import Story

LOOK = 'import os; from act import say; say("{}", os.environ.get("CUDA_VISIBLE_DEVICES"))\n'
GPUS = {"CUDA_VISIBLE_DEVICES": "0,1"}
MODULE = f"""
from gpu_task_scheduler.gpu_task import GPUTask
{LOOK.format("module")}
def measure():
    pass

class MyGPUTask(GPUTask):
    def main(self):
        {LOOK.format("main")}
"""


def test_it_does_not_matter_in_which_order_a_script_imports(story: Story) -> None:
    story.write("my_gpu_task.py", MODULE)
    script = f"""
{LOOK.format("before")}
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
from gpu_task_scheduler.config_manager import ConfigManager
from my_gpu_task import MyGPUTask
{LOOK.format("after")}
GPUTaskScheduler({{config}}, MyGPUTask).start()
"""
    run(story, config("{'n': [1]}", gpu="['7']"), script, env=GPUS)

    assert story.said() == ["before 0,1", "module ", "after 0,1", "module 7", "main 7"]


def test_a_variable_that_was_not_set_is_not_set_afterwards(story: Story) -> None:
    story.write("my_gpu_task.py", MODULE)
    script = f"from my_gpu_task import MyGPUTask  # for GPUTaskScheduler\n{LOOK.format('after')}"
    story.run_script(script)

    assert story.said() == ["module ", "after None"]


def test_a_script_that_only_uses_the_module_sees_the_gpus(story: Story) -> None:
    story.write("my_gpu_task.py", MODULE)
    story.run_script("from my_gpu_task import measure\n", name="evaluate.py", env=GPUS)

    assert story.said() == ["module 0,1"]


def test_a_class_in_the_main_script_sees_the_gpus(story: Story) -> None:
    """What it computes at its top may travel to workers: it must not be the wrong answer."""
    script = f"""
{MODULE}
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
GPUTaskScheduler({{config}}, MyGPUTask).start()
"""
    run(story, config("{'n': [1]}", gpu="['7']"), script, env=GPUS)

    assert story.said() == ["module 0,1", "main 7"]


def test_hiding_can_be_left_out(story: Story) -> None:
    story.write("my_gpu_task.py", MODULE)
    script = "from my_gpu_task import MyGPUTask  # for GPUTaskScheduler\n"
    story.run_script(script, env={**GPUS, "GRN_TASKS_HIDE_GPUS": "0"})

    assert story.said() == ["module 0,1"]


def test_an_import_that_fails_for_lack_of_a_gpu_says_why(story: Story) -> None:
    needs = "from gpu_task_scheduler.gpu_task import GPUTask\nraise RuntimeError('no GPU')\n"
    story.write("my_gpu_task.py", needs)
    script = """
        from my_gpu_task import MyGPUTask
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
    """
    ended = start(story, "", script).wait()

    assert ended.code == 1
    error, note = ended.err.splitlines()[-2:]
    assert error == "RuntimeError: no GPU"
    assert note.endswith("Use them in main(), or set GRN_TASKS_HIDE_GPUS=0.")


def test_a_process_that_has_started_cuda_is_known_by_its_open_files() -> None:
    assert has_opened_gpus(["/dev/null", "/dev/nvidia-uvm"])
    assert not has_opened_gpus(["/dev/null", "/dev/nvidiactl"])  # the driver was asked, no more
    assert not has_opened_gpus()
