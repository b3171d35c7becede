"""The command line as a whole: help that teaches, errors that help, and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import grn as package
from grn.cli import app, catalog
from grn.errors import BY_CODE, DaemonNotRunning
from tests.cli.live import GRN, Shell
from tests.harness import Story

Start = Callable[..., Any]


def commands() -> Iterator[tuple[str, click.Command]]:
    """List all commands by the words that call them, with those inside of groups."""
    context = click.Context(app.grn)
    for name in catalog.COMMANDS:
        command = app.grn.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield f"{name} {inner}", found


ALL = dict(commands())


# --- help ----------------------------------------------------------------------------------


def test_help_lists_every_command_in_a_line(grn: Shell) -> None:
    ended = grn("--help")

    assert (ended.code, ended.err) == (0, "")
    for name, (_, text) in catalog.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text[:30])}", ended.out, re.MULTILINE), name
    assert "Exit status:" in ended.out
    assert "grn start --virtual 2x2GiB" in " ".join(ended.out.split())


def test_each_command_is_in_one_section_of_the_help() -> None:
    listed = [name for names in catalog.SECTIONS.values() for name in names.split()]

    assert sorted(listed) == sorted(catalog.COMMANDS)


def test_no_command_at_all_teaches_too(grn: Shell) -> None:
    assert grn() == grn("--help")


def test_the_package_runs_as_a_module() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "grn", "--version"], capture_output=True, text=True
    )
    assert said.stdout == f"grn, version {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said", "where"),
    [
        (("subimt",), "no such command 'subimt'. Did you mean submit?", "grn"),
        (("kill", "3"), "no such command 'kill'. Did you mean cancel?", "grn"),
        (("exec",), "there is no command: write it after `--`.", "grn exec"),
        (("ls", "-n", "0"), "-n/--rows is 0 and must be 1 or more.", "grn ls"),
        (("submit", "--foo", "--", "x"), "no such option --foo.", "grn submit"),
        (("site",), "missing command.", "grn site"),
        (("service",), "the argument install|uninstall|show is missing.", "grn service"),
        (("help", "queue", "stop"), "no such command 'stop'.", "grn queue"),
    ],
)
def test_a_misuse_is_two_lines_what_is_wrong_and_where_to_read(
    grn: Shell, words: tuple[str, ...], said: str, where: str
) -> None:
    ended = grn(*words)

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [f"error: {said}", f"hint: See `{where} --help`."]


def test_a_bad_size_is_told_before_anything_is_started(grn: Shell) -> None:
    ended = grn("exec", "--mem", "much", "--", "true")

    assert (ended.code, ended.err.splitlines()[0]) == (125, "error: 'much' is not a size.")
    assert grn("ps").code == DaemonNotRunning.exit_code


@pytest.mark.parametrize(
    "words", ["exec --mem 5 -- true", "start --virtual 2x5", "submit --mem 5 -- true"]
)
def test_a_size_without_its_unit_is_asked_about(grn: Shell, words: str) -> None:
    ended = grn(*words.split())

    assert ended.code != 0
    assert "'5' would be 5 bytes." in ended.err
    assert "hint: Did you mean 5GiB?" in ended.err


@pytest.mark.parametrize("words", ALL)
def test_every_command_says_what_it_does_and_every_flag_what_it_means(words: str) -> None:
    command = ALL[words]

    assert command.help
    assert command.help.split("\n")[0].rstrip().endswith((".", ":", ";"))
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{words} {option.opts}"


@pytest.mark.parametrize("name", [name for name in catalog.COMMANDS if name != "submit"])
def test_every_command_shows_an_example(name: str) -> None:
    command = ALL[name]
    text = command.get_help(click.Context(command, info_name=f"grn {name}"))

    lines = [line.strip() for line in text.splitlines()[1:]]
    shell = f"{name}: " if name != "completion" else "bash:  "
    assert any(line.removeprefix(shell).startswith(f"grn {name}") for line in lines), text


@pytest.mark.parametrize("name", ["exec", "submit", "profiles show", "ps"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command_needs_no_negotiator(grn: Shell, name: str, flag: str) -> None:
    ended = grn(*name.split(), flag)

    assert (ended.code, ended.err) == (0, "")
    assert f"grn {name}" in ended.out


def test_the_version_is_that_of_the_package(grn: Shell) -> None:
    for flag in ("--version", "-V"):
        ended = grn(flag)
        assert (ended.code, ended.err) == (0, "")
        assert package.__version__ in ended.out


# --- mistakes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"), [("gpu", "gpus"), ("strat", "start"), ("profile", "profiles"), ("PS", "")]
)
def test_a_command_that_is_none_is_answered_with_the_nearest(
    grn: Shell, typed: str, meant: str
) -> None:
    ended = grn(typed)

    assert ended.code == 2
    assert f"no such command '{typed}'" in ended.err
    assert not meant or re.search(rf"Did you mean .*\b{meant}\b", ended.err)


@pytest.mark.parametrize(
    "words",
    [
        ["gpus", "--jsn"],
        ["gpus", "extra"],
        ["why"],
        ["exec"],
        ["exec", "--gpus", "-1", "--", "true"],
        ["exec", "--gpus", "many", "--", "true"],
        ["exec", "--priority", "5000", "--", "true"],
        ["run"],
        ["completion"],
        ["completion", "tcsh"],
        ["profiles", "show"],
        ["profiles", "forget"],
        ["profiles", "burn", "x"],
        ["book"],
        ["book", "--for", "0"],
        ["book", "--for", "1h", "--from", "teatime"],
        ["book", "rm"],
        ["start", "--idle-exit", "soon"],
        ["submit", "--gpus", "many"],
        ["\x1b[31m"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_two_lines_and_status_two(grn: Shell, words: list[str]) -> None:
    ended = grn(*words)

    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.splitlines()) <= 8 or words[0] == "submit"


@pytest.mark.parametrize(
    "words",
    [["gpus"], ["ps"], ["ps", "--json"], ["why", "x"], ["profiles"], ["profiles", "show", "x"],
     ["profiles", "forget", "x"], ["book", "ls"], ["book", "--for", "1h"]],
    ids=" ".join,
)  # fmt: skip
def test_without_a_negotiator_the_way_to_start_one_is_named(grn: Shell, words: list[str]) -> None:
    ended = grn(*words)

    assert ended.code == 3
    assert ended.out == ""
    error, hint = ended.err.splitlines()
    assert error.startswith("error: no grn negotiator answers at ")
    assert hint.startswith("hint: Start one with `grn start`")


def test_what_is_not_there_is_status_two(grn: Shell, negotiator: Start) -> None:
    negotiator()

    for words in (["why", "nobody"], ["profiles", "show", "no"], ["profiles", "forget", "no"]):
        ended = grn(*words)
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 2


@pytest.mark.parametrize("more", [[], ["--background"]])
def test_a_wrong_description_of_gpus_is_status_two(grn: Shell, more: list[str]) -> None:
    ended = grn("start", "--virtual", "2x", *more)

    assert ended.code == 2
    assert "error: " in ended.err
    assert "hint: " in ended.err


def test_a_wrong_setting_is_status_two_and_names_its_source(grn: Shell) -> None:
    ended = grn("start", "--virtual", "1x1GiB", env={"GRN_SAMPLE_S": "often"})

    assert ended.code == 2
    assert "sample_s is 'often' (from GRN_SAMPLE_S)" in ended.err


def test_what_the_machine_cannot_do_is_status_four(grn: Shell, story: Story) -> None:
    without_driver = {"GRN_GPUS": "nvml", "LD_LIBRARY_PATH": str(story.folder)}
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")

    ended = grn("start", env=without_driver)

    assert ended.code == 4
    assert "--virtual" in ended.err


def test_a_folder_that_cannot_be_used_is_status_four(grn: Shell, story: Story) -> None:
    (story.folder / "file").touch()
    env = {"GRN_RUNTIME_DIR": str(story.folder / "file")}

    ended = grn("start", "--virtual", "1x1GiB", env=env)

    assert ended.code == 4
    assert "cannot be used: Not a directory" in ended.err

    env = {"GRN_STATE_DIR": str(story.folder / "file")}
    ended = grn("start", "--virtual", "1x1GiB", "--background", env=env)

    assert ended.code == 4
    assert len(ended.err.splitlines()) == 2


def test_every_error_has_a_code_of_the_table() -> None:
    kinds = [*BY_CODE.values(), DaemonNotRunning]

    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4}


# --- output --------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["gpus"], ["ps"], ["ps", "--json"], ["doctor"]])
def test_a_reader_that_leaves_early_is_no_error(
    negotiator: Start, story: Story, words: list[str]
) -> None:
    negotiator()
    reader, writer = os.pipe()
    os.close(reader)  # like `| head -0`

    ended = story.start(*GRN, *words, stdout=writer).wait()
    os.close(writer)

    assert (ended.code, ended.err) == (0, "")


def test_a_full_disk_under_the_output_is_one_line(negotiator: Start, story: Story) -> None:
    negotiator()
    with open("/dev/full", "wb") as full:
        ended = story.start(*GRN, "gpus", stdout=full).wait()

    assert ended.code == 4
    assert ended.err == "error: the output cannot be written: No space left on device.\n"


def test_without_any_output_a_command_still_runs(negotiator: Start, story: Story) -> None:
    negotiator()
    command = " ".join(f"'{word}'" for word in GRN)

    ended = story.start("/bin/sh", "-c", f"{command} gpus >&-").wait()

    assert "Traceback" not in ended.err


def test_colours_are_for_terminals_that_want_them(grn: Shell) -> None:
    _, coloured = grn.on_terminal("ps", env={"NO_COLOR": None})
    _, plain = grn.on_terminal("ps", env={"NO_COLOR": "1"})
    piped = grn("ps", env={"NO_COLOR": None}).err

    assert "\x1b[" in coloured
    assert "\x1b" not in plain + piped
    assert plain == piped


def test_a_pipe_gets_colour_only_when_told_to(grn: Shell, negotiator: Start) -> None:
    negotiator()

    assert "\x1b" not in grn("gpus").out
    assert "\x1b[2mGPU\x1b[0m" in grn("gpus", "--color", "always").out
    assert "\x1b[2mGPU\x1b[0m" in grn("gpus", env={"GRN_COLOR": "always"}).out
    assert "\x1b" not in grn("--color", "never", "gpus", env={"GRN_COLOR": "always"}).out
    wrong = grn("gpus", env={"GRN_COLOR": "often"})
    assert "--color (GRN_COLOR): 'often' is not one of 'auto'" in wrong.err
    assert wrong.code == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_in_any_script_are_shown_on_any_terminal(
    negotiator: Start, story: Story, encoding: str
) -> None:
    negotiator("virtual:1x64GiB")
    name = "模型.py"
    story.run_script(f"import grn\nwith grn.lease(type={name!r}): pass")

    for words in (["profiles"], ["profiles", "show", name], ["gpus"], ["profiles", "forget", name]):
        with (story.folder / "shown").open("wb") as file:
            env = {"PYTHONIOENCODING": encoding}
            ended = story.start(*GRN, *words, stdout=file, env=env).wait()
        assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err


def test_where_only_ascii_can_be_shown_bars_are_ascii(grn: Shell, negotiator: Start) -> None:
    negotiator()

    assert grn("gpus", env={"PYTHONIOENCODING": "ascii"}).out.isascii()
    assert "░" in grn("gpus", env={"PYTHONIOENCODING": "utf-8"}).out


def test_lines_are_cut_to_the_width_of_a_terminal(grn: Shell, negotiator: Start) -> None:
    negotiator()

    _, text = grn.on_terminal("gpus", columns=40)

    lines = text.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 40
    assert "…" in lines[0]


# --- completion ----------------------------------------------------------------------------


def test_completion_without_a_shell_asks_for_one(grn: Shell) -> None:
    ended = grn("completion")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [
        "error: say which shell you use.",
        "hint: Run `grn completion bash`, `zsh` or `fish`.",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(grn: Shell, shell: str) -> None:
    ended = grn("completion", shell)

    assert ended.code == 0
    assert "_GRN_COMPLETE" in ended.out
    assert shell in ended.out or "complete" in ended.out


def test_the_script_for_bash_is_good_bash(grn: Shell, story: Story) -> None:
    path = story.write("complete.bash", grn("completion", "bash").out)

    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_completion_offers_commands_and_flags(grn: Shell) -> None:
    def offered(words: str, word: int) -> str:
        env = {"_GRN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(word)}
        return grn(env=env).out

    assert set(catalog.COMMANDS) <= {
        line.partition(",")[2] for line in offered("grn ", 1).splitlines()
    }
    assert "--json" in offered("grn gpus --", 2)
    assert "forget" in offered("grn profiles f", 2)
    assert offered("grn help su", 2) == "plain,submit\n"
    assert offered("grn batch jo", 2) == "file,jo\n", "the shell completes names of files"
    assert offered("grn submit --lines jo", 3) == "file,jo\n"
    assert offered("grn submit --cwd /", 3) == "dir,/\n"
    assert offered("grn sweep show s", 3) == "dir,s\n"
    assert "plain,sh" in offered("grn submit -- s", 3).splitlines()
    assert offered("grn exec -- sh tr", 4) == "file,tr\n"


def test_json_is_data_on_stdout_and_nothing_else(grn: Shell, negotiator: Start) -> None:
    negotiator()

    for words in (["gpus"], ["ps"], ["profiles"], ["doctor"]):
        ended = grn(*words, "--json")
        assert json.loads(ended.out)["schema"] == 1
        assert ended.err == ""
