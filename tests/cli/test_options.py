"""One grammar: the quick reader and click read the same words alike."""

from __future__ import annotations

import random
import re
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from grn.cli import app, catalog, options, quick
from grn.cli.help import GrnCommand, man_page

SEED = 7
VALUES = ("1", "0", "-3", "x", "", "6GiB", "a=b", "--", "-", "-5000", "2000", "always", "³", "007")


def by_click(name: str, words: list[str]) -> dict[str, Any] | None:
    """Return what click reads, None if it refuses the words."""
    command = app.grn.get_command(click.Context(app.grn), name)
    assert isinstance(command, GrnCommand)
    try:
        context = command.make_context(name, list(words))
    except (click.ClickException, click.exceptions.Exit):
        return None
    return context.params


@pytest.mark.parametrize("name", quick.COMMANDS)
def test_the_quick_reader_reads_words_as_click_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    table = quick.COMMANDS[name].options
    flags = [flag for opt in table for flag in opt.flags]
    accepted = 0
    for _ in range(1500):
        words = []
        for _ in range(chance.randrange(5)):
            flag, value = chance.choice(flags), chance.choice(VALUES)
            words += chance.choice(([flag], [flag, value], [f"{flag}={value}"], [value]))
        found = quick.read_words(name, words)
        if found is not None:
            accepted += 1
            assert by_click(name, words) == found, words
    assert accepted > 100


def test_unknown_flags_missing_values_and_help_are_left_to_click() -> None:
    for words in (["--nmae", "x"], ["--help"], ["-h"], ["--gpus", "two"], ["-n0"], ["--hold=1"]):
        assert quick.read_words("submit", [*words, "--", "true"]) is None, words
    assert quick.read_words("submit", ["--name"]) is None
    assert quick.read_words("ls", ["41"]) is None


def test_every_option_says_a_sentence() -> None:
    told = [opt for one in quick.COMMANDS.values() for opt in one.options]
    for opt in (*told, *options.NEEDS.values(), *options.PLACES.values()):
        assert opt.help[0].isupper(), opt.flags
        assert opt.help.endswith("."), opt.flags


@pytest.mark.parametrize(
    "words", [["submit"], ["exec"], ["batch"], ["sweep"], ["select"], ["book"], ["when"]]
)
def test_a_number_of_gpus_is_g_and_the_older_n_is_accepted_and_not_shown(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app.main(["help", *words])
    text = capsys.readouterr().out
    assert "-g, --gpus N" in text
    assert "-n" not in re.findall(r"^ +(-\w)", text, re.MULTILINE)
    assert quick.read_words("submit", ["-n", "3", "true"])["gpus"] == 3  # type: ignore[index]


def test_the_help_of_sweep_has_its_options_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "sweep"], ["sweep", "--help"]):
        with pytest.raises(SystemExit):
            app.main(words)
        text = capsys.readouterr().out
        assert "--n-samples N" in text
        assert "plot  Draw the sweep in DIR: an HTML page that works offline, a PNG, and a" in text


def test_every_command_has_examples() -> None:
    assert set(catalog.EXAMPLES) == set(catalog.COMMANDS)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["submit", "--tiem-limit", "3h", "--", "true"], "Did you mean --time-limit?"),
        (["ls", "--stat", "ok"], "Did you mean --state?"),
        (
            ["submit", "--retry", "x", "--", "true"],
            "value for --retry: 'x' is not a number",
        ),
        (["show"], "the argument ID is missing."),
        (["why", "1", "2"], "unexpected argument: 2."),
        (["sbumit"], "Did you mean submit?"),
        (["simulate"], "the option --gpus NxSIZE is missing."),
        (["why"], "the argument JOB is missing."),
        (["service", "foo"], "error: 'foo' is not one of 'install', 'uninstall', 'show'."),
        (["submit", "--array", "0-9:0", "--", "true"], "the step of '0-9:0' is 0."),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        app.main(words)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err.splitlines()[0]


def test_help_shows_options_in_sections_and_examples_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        app.main(["help", "submit"])
    text = capsys.readouterr().out
    parts = ("What to run:", "What it needs:", "Output:", "Examples:")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "[default: 1]" in text
    assert "x>=1" not in text


@pytest.mark.parametrize(
    ("words", "begun", "word"),
    [
        (["submit"], "--pri", "--priority"),
        (["ls", "--state"], "fai", "failed"),
        (["sweep"], "pl", "plot"),
        ([], "subm", "submit"),
    ],
)
def test_shells_complete_flags_states_and_commands(words: list[str], begun: str, word: str) -> None:
    found = ShellComplete(app.grn, {}, "grn", "_GRN_COMPLETE").get_completions(words, begun)
    assert [one.value for one in found] == [word]


def test_every_command_has_a_manual_page() -> None:
    for name in catalog.COMMANDS:
        command = app.grn.get_command(click.Context(app.grn), name)
        assert command is not None
        text = man_page(f"grn {name}", command, click.Context(command))
        assert text.startswith(f'.TH "GRN-{name.upper()}" 1')
        assert ".SH EXAMPLES" in text
    assert ".SH EXIT STATUS\n0 success, 1 failure" in man_page(
        "grn", app.grn, click.Context(app.grn)
    )
