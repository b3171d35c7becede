"""gpu_task_scheduler at work: real processes, each with the GPU of its slot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.tasks import (
    EXAMPLE,
    config,
    files_of,
    lines_of,
    log_of,
    run,
    start,
    with_words,
    write_task,
)
from tests.conftest import Negotiators
from tests.harness import Story

NAMES = [
    "method-GAN,num_packing-1,num_zmode-1,",
    "method-ALI,num_packing-1,num_zmode-1,",
    "method-WGAN,num_packing-3,num_zmode-1,",
    "method-WGAN,num_packing-3,num_zmode-2,",
]
SAY_ALL = """
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    say(self._config["n"], visible)
"""


# --- the example -----------------------------------------------------------------------------


@pytest.fixture
def example(story: Story) -> Story:
    for name, text in EXAMPLE.items():
        story.write(name, text)
    return story


def test_the_example_runs_as_it_stands(example: Story) -> None:
    ended = example.run_script(EXAMPLE["main.py"], name="main.py")

    assert ended.out == ""
    assert sorted(files_of(example, "results")) == sorted(NAMES)
    for name in NAMES:
        folder = example.folder / "results" / name
        assert (folder / "result.txt").read_text() == "200"
        method = name.removeprefix("method-").partition(",")[0]
        assert (folder / "worker.log").read_text() in [f"training {method} on {n}\n" for n in "012"]
    assert not (example.folder / "temp").exists()


def test_the_example_says_who_did_what(example: Story) -> None:
    said = lines_of(example.run_script(EXAMPLE["main.py"], name="main.py").err)

    assert said == log_of(example)
    assert said[:3] == [f"gpu{n} receives task {name}" for n, name in enumerate(NAMES[:3])]
    for name in NAMES:
        (gpu,) = {line.split()[0] for line in with_words(said, f"task {name}")}
        received, finished = with_words(said, f" task {name}")
        assert (received, finished) == (
            f"{gpu} receives task {name}",
            f"{gpu} finishes task {name}",
        )
    for n in range(3):
        assert [line for line in said if line.startswith(f"gpu{n} ")][-1] == f"gpu{n} finished"
    assert len(said) == 4 + 4 + 3


def test_results_are_collected_from_the_same_folders(example: Story) -> None:
    example.run_script(EXAMPLE["main.py"], name="main.py")
    ended = example.run_script(EXAMPLE["collect.py"], name="collect.py")

    assert ended.out == "GAN 1 200\nALI 1 200\nWGAN 1 200\nWGAN 2 200\n"


def test_the_second_time_all_is_skipped(example: Story) -> None:
    example.run_script(EXAMPLE["main.py"], name="main.py")
    said = lines_of(example.run_script(EXAMPLE["main.py"], name="main.py").err)

    assert said[:2] == [f"gpu0 receives task {NAMES[0]}", f"gpu0 skips task {NAMES[0]}"]
    assert [with_words(said, "skips task", name) != [] for name in NAMES] == [True] * 4
    assert not with_words(said, "finishes")
    assert sorted(said[-3:]) == ["gpu0 finished", "gpu1 finished", "gpu2 finished"]


# --- the process of a task ---------------------------------------------------------------------


def test_a_task_has_its_gpu_its_folder_and_the_surroundings_of_the_script(story: Story) -> None:
    write_task(
        story,
        """
        import json
        with open(os.path.join(self._work_dir, "facts.json"), "w") as file:
            json.dump({
                "config": self._config, "visible": os.environ["CUDA_VISIBLE_DEVICES"],
                "cwd": os.getcwd(), "backend": os.environ["MPLBACKEND"], "argv": sys.argv,
                "pid": os.getpid(), "mine": os.environ["MINE"],
                "is_absolute": os.path.isabs(self._work_dir),
            }, file)
        """,
    )
    ended = start(
        story,
        config("{'n': [1]}", gpu="[['3', '4']]", common="{'all': [1]}"),
        env={"MPLBACKEND": "TkAgg", "MINE": "yes", "CUDA_VISIBLE_DEVICES": "9"},
    ).ended_well()

    facts = json.loads((story.folder / "results/n-1,/facts.json").read_text())
    assert facts.pop("pid") != story.jobs[0].pid
    assert facts == {
        "config": {"all": [1], "n": 1},
        "visible": "3,4",
        "cwd": str(story.folder),
        "backend": "Agg",
        "argv": [str(story.folder / "main.py")],
        "mine": "yes",
        "is_absolute": True,
    }
    assert ended.out == "None\n"
    assert "gpu3,4 receives task n-1," in log_of(story)


def test_both_outputs_go_to_the_log_as_they_come_and_a_new_run_has_a_new_log(story: Story) -> None:
    write_task(story, 'print("out"); print("err", file=sys.stderr); os.system("echo child")')
    for _ in range(2):
        run(story, config("{'n': [1]}", more="'log_file': 'my.log', 'force_rerun': True"))

    assert (story.folder / "results/n-1,/my.log").read_text() == "out\nerr\nchild\n"


def test_without_log_files_output_is_discarded_and_lines_are_on_the_console(story: Story) -> None:
    write_task(story, 'print("out"); raise ValueError("said nowhere else")')
    more = "'log_file': None, 'scheduler_log_file_path': None"
    ended = run(story, config("{'n': [1]}", more=more))

    assert ended.out == "None\n"
    assert files_of(story, "results/n-1,") == []
    assert not (story.folder / "scheduler.log").exists()
    assert "gpu0 fails task n-1,: ValueError: said nowhere else" in lines_of(ended.err)


REQUIRED = """
    import os
    from act import say
    from gpu_task_scheduler.gpu_task import GPUTask

    class MyGPUTask(GPUTask):
        def required_env(self):
            with open(os.path.join(self._work_dir, "asked"), "w") as file:
                file.write(str(os.getpid()))
            self.noted = "noted"
            {answer}

        def main(self):
            {main}
"""


def test_required_env_is_on_top_and_counts_from_the_start_of_the_process(story: Story) -> None:
    answer = (
        'return {"CUDA_VISIBLE_DEVICES": "7", "PYTHONHASHSEED": "0", "N": 5, "MPLBACKEND": "pdf"}'
    )
    names = '("CUDA_VISIBLE_DEVICES", "N", "MPLBACKEND")'
    main = f'say(*(os.environ[n] for n in {names}), hash("a"), self.noted)'
    story.write("my_gpu_task.py", REQUIRED.replace("{answer}", answer).replace("{main}", main))
    run(story, config("{'n': [1, 2]}"))

    first, second = story.said()
    assert first == second
    assert first.startswith("7 5 pdf ")
    assert first.endswith(" noted")
    asked = (story.folder / "results/n-1,/asked").read_text()
    assert int(asked) == story.jobs[0].pid


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('raise KeyError("data")', "required_env() raised KeyError: 'data'"),
        ("return ['A=1']", "it must return a dictionary of strings"),
        ("return {'A=B': 'c'}", "there is no such variable: A=B='c'"),
        ("return {'A': None}", "there is no such variable: A=None"),
    ],
)
def test_a_required_env_that_fails_fails_its_instance(
    story: Story, answer: str, words: str
) -> None:
    text = REQUIRED.replace("{answer}", f"if self._config['n'] == 1: {answer}")
    story.write("my_gpu_task.py", text.replace("{main}", 'say(self._config["n"])'))
    ended = run(story, config())

    assert story.said() == ["2"]  # without a return there is nothing required
    assert with_words(lines_of(ended.err), "gpu0 fails task n-1,", words)
    assert "Traceback" in (story.folder / "results/n-1,/worker.log").read_text()


def test_a_gpu_listed_twice_runs_two_at_a_time(story: Story) -> None:
    write_task(story, 'say(self._config["n"], "runs"); gate(str(self._config["n"]))')
    gates = [story.gate(name) for name in "123"]
    job = start(story, config("{'n': [1, 2, 3]}", gpu="['0', '0']"))
    story.hear("1 runs", "2 runs")
    assert "3 runs" not in story.said()

    for gate in gates:
        gate.open()
    said = lines_of(job.ended_well().err)
    assert said.count("gpu0 finished") == 2
    assert len(with_words(said, "gpu0 finishes task")) == 3


def test_a_freed_gpu_takes_the_next_instance(story: Story) -> None:
    write_task(story, SAY_ALL + '    gate(str(self._config["n"]))')
    gates = {name: story.gate(name) for name in "123"}
    job = start(story, config("{'n': [1, 2, 3]}", gpu="['0', '1']"))
    story.hear("1 0", "2 1")
    gates["2"].open()
    story.hear("3 1")

    gates["1"].open()
    gates["3"].open()
    job.ended_well()


def test_imports_of_the_task_see_no_gpu_in_the_scheduler_and_theirs_in_the_worker(
    story: Story,
) -> None:
    story.write(
        "heavy.py",
        'import os; from act import say; say("heavy", os.environ.get("CUDA_VISIBLE_DEVICES"))',
    )
    write_task(story, "say('main', os.environ['CUDA_VISIBLE_DEVICES'])")
    text = (story.folder / "my_gpu_task.py").read_text()
    story.write(
        "my_gpu_task.py",
        text.replace("class My", "import heavy\n\nclass My", 1).replace(
            "    import heavy", "import heavy"
        ),
    )
    script = """
        from my_gpu_task import MyGPUTask
        from act import say
        import os
        say("script", os.environ.get("CUDA_VISIBLE_DEVICES"))
        from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
        GPUTaskScheduler(config={config}, gpu_task_class=MyGPUTask).start()
    """
    run(story, config("{'n': [1]}", gpu="['2']"), script, env={"CUDA_VISIBLE_DEVICES": "0,1,2"})

    assert story.said() == ["heavy ", "script 0,1,2", "heavy 2", "main 2"]


# --- beside a negotiator -------------------------------------------------------------------------


def test_gpus_are_held_at_the_negotiator_while_in_use(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:2x512MiB")
    write_task(story, 'say("runs"); gate("end")')
    story.gate("end")
    job = start(story, config("{'n': [1]}", gpu="['1']"))
    story.hear("runs")
    (lease,) = here.leases()
    story.gate("end").open()
    job.ended_well()

    assert lease["label"] == "gpu_task_scheduler"
    assert here.leases() == []


def test_a_task_that_asks_the_negotiator_itself_gets_the_gpu_it_has(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x512MiB")
    write_task(story, 'import grn\nwith grn.lease(mem="1MiB"):\n    say("leased")')
    run(story, config("{'n': [1]}"))

    assert story.said() == ["leased"]


def test_there_is_nothing_of_the_run_beside_the_results(story: Story) -> None:
    write_task(story, "pass")
    run(story, config())

    names = {path.name for path in Path(story.folder).iterdir()}
    assert names - {"1.out", "1.err", "__pycache__"} == {
        "main.py",
        "my_gpu_task.py",
        "results",
        "scheduler.log",
    }
