"""What tests of gpu_task_scheduler share: scripts with a task, run in a story's folder."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from tests.harness import Ended, Job, Story

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-gputaskscheduler.md"
# The files of the example, as they stand on the page for those who come from the older tool.
EXAMPLE = dict(
    re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
)
TASK = """
    import os, sys
    from act import gate, say
    from gpu_task_scheduler.gpu_task import GPUTask

    class MyGPUTask(GPUTask):
        def main(self):
{main}
"""
MAIN = """
    from my_gpu_task import MyGPUTask
    from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
    config = {config}
    scheduler = GPUTaskScheduler(config = config, gpu_task_class = MyGPUTask)
    print(scheduler.start())
"""


def config(
    test: str = "{'n': [1, 2]}", gpu: str = "['0']", more: str = "", common: str = "{}"
) -> str:
    """Spell a configuration; its parts are source code."""
    settings = f"{{'gpu': {gpu}, {more}}}"
    return f"{{'scheduler_config': {settings}, 'global_config': {common}, 'test_config': [{test}]}}"


def write_task(story: Story, main: str, text: str = TASK) -> None:
    """Write the module of a task with this body of `main`."""
    body = textwrap.indent(textwrap.dedent(main).strip(), " " * 12)
    story.write("my_gpu_task.py", text.replace("{main}", body))


def start(story: Story, spelled: str, script: str = MAIN, **options: Any) -> Job:
    """Start the main script with a configuration."""
    return story.start_script(script.replace("{config}", spelled), name="main.py", **options)


def run(story: Story, spelled: str, script: str = MAIN, **options: Any) -> Ended:
    """Run the main script with a configuration; it must end well."""
    return start(story, spelled, script, **options).ended_well()


def lines_of(text: str) -> list[str]:
    """Return the messages of log lines, without time and level."""
    pattern = r"^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d (?:INFO|WARNING|ERROR) (.*)$"
    found = [re.match(pattern, line) for line in text.splitlines()]
    assert all(found), text
    return [line[1] for line in found if line]


def log_of(story: Story) -> list[str]:
    """Return the messages of the scheduler's log."""
    return lines_of((story.folder / "scheduler.log").read_text())


def with_words(lines: list[str], *words: str) -> list[str]:
    return [line for line in lines if all(word in line for word in words)]


def files_of(story: Story, folder: str) -> list[str]:
    """Return what there is in a folder of the story, without what is hidden."""
    names = (path.name for path in (story.folder / folder).iterdir())
    return sorted(name for name in names if not name.startswith("."))
