"""Where a setting comes from, which one wins, and what is said of a wrong one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from grn import settings
from grn.errors import BadSetting
from grn.model.units import GiB, MiB
from grn.settings import Settings

Config = Callable[[str | bytes], Path]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Write a settings file that this process will read."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("GRN_CONFIG", str(path))

    def write(text: str | bytes) -> Path:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def wrong(flags: dict[str, Any] | None = None) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        settings.load(flags)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return caught.value


# --- which one wins ------------------------------------------------------------------------


def test_without_anything_set_the_defaults_hold() -> None:
    assert settings.load() == Settings()


def test_flags_win_over_the_environment_that_over_the_file_that_over_defaults(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('sample_s = 1.0\nflat_s = 2.0\ngrace_s = 3.0\ngpus = "virtual:1x1GiB"')
    monkeypatch.setenv("GRN_SAMPLE_S", "10")
    monkeypatch.setenv("GRN_FLAT_S", "20")

    found = settings.load({"sample_s": 30.0, "gpus": None})

    assert (found.sample_s, found.flat_s, found.grace_s) == (30.0, 20.0, 3.0)
    assert found.gpus == "virtual:1x1GiB"
    assert found.patience_s == Settings().patience_s


@pytest.mark.parametrize("name", [name for name in Settings.__struct_fields__ if name != "sites"])
def test_every_setting_can_be_set_by_its_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {
        "gpus": "virtual:7x7GiB",
        "guard_fraction": "0.7",
        "booking_share": "0.7",
        "shares": "7=7",
        "policy": "pack",
        "memory_cap": "off",
        "idle_rule": "tell",
        "host": "7x7GiB",
        "share_half_life_s": "77",
    }.get(name)
    if value is None:
        value = "7MiB" if name.endswith("_size") else "7"
    monkeypatch.setenv(f"GRN_{name.upper()}", value)

    found = getattr(settings.load(), name)

    kind = type(getattr(Settings(), name))
    if kind is dict:
        assert found == {"7": 7.0}
    else:
        assert found == (value if kind is str else kind(float(value)))
    assert type(found) is kind


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_can_be_set_in_the_file(name: str, config: Config) -> None:
    default = getattr(Settings(), name)
    config(f"{name} = {default!r}".replace("'", '"'))

    assert settings.load() == Settings()


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRN_SAMPLE_S", "")

    assert settings.load().sample_s == Settings().sample_s


def test_the_file_is_found_where_the_user_keeps_such_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRN_CONFIG")
    for variable, folder in (("HOME", ".config/grn"), ("XDG_CONFIG_HOME", "grn")):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        path = tmp_path / variable / folder / "config.toml"
        path.parent.mkdir(parents=True)
        path.write_text(f"flat_s = {len(variable)}")

        assert settings.load().flat_s == len(variable)


def test_sizes_are_read_as_bytes(config: Config) -> None:
    config('guard_size = "1.5GiB"\ncontext_size = "300MiB"\nlog_size = "1000"')

    found = settings.load()

    assert found.guard_bytes == 3 * GiB // 2
    assert found.context_bytes == 300 * MiB
    assert found.log_bytes == 1000


def test_settings_cannot_be_changed_afterwards() -> None:
    found = settings.load()

    with pytest.raises(AttributeError):
        found.sample_s = 1.0


# --- what is wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_s", "abc"),
        ("sample_s", "0"),
        ("sample_s", "-1"),
        ("sample_s", "61"),
        ("sample_s", "nan"),
        ("sample_s", "inf"),
        ("sample_s", "1e999"),
        ("sample_s", "1,5"),
        ("flat_s", "0"),
        ("guard_fraction", "0.95"),
        ("guard_fraction", "5%"),
        ("connections_per_user", "0"),
        ("connections_per_user", "1.5"),
        ("connections_per_user", "many"),
        ("waiting_per_user", "-1"),
        ("idle_exit_s", "never"),
        ("guard_size", "large"),
        ("guard_size", "-1GiB"),
        ("context_size", "0"),
        ("context_size", "1 parsec"),
        ("gpus", "cuda"),
        ("gpus", "virtual"),
        ("gpus", "0,1"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"GRN_{name.upper()}"
    monkeypatch.setenv(variable, value)

    text = str(wrong())

    assert text.startswith(f"{name} is {value!r} (from {variable})")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('sample_s = "soon"', "sample_s"),
        ("sample_s = true", "sample_s"),
        ("sample_s = [1]", "sample_s"),
        ("sample_s = {a = 1}", "sample_s"),
        ("sample_s = 2024-01-01", "sample_s"),
        ("sample_s = 0.0", "sample_s"),
        ("connections_per_user = 1.5", "connections_per_user"),
        ("guard_size = 512", "guard_size"),
        ("gpus = 4", "gpus"),
        ('gpus = "rocm"', "gpus"),
        ("[gpus]\nx = 1", "gpus"),
    ],
)
def test_a_wrong_line_of_the_file_is_named_with_the_file(
    line: str, name: str, config: Config
) -> None:
    path = config(line)

    text = str(wrong())

    assert text.startswith(f"{name} is ")
    assert f"(in {path})" in text


def test_a_wrong_flag_is_named_as_one() -> None:
    text = str(wrong({"idle_exit_s": -1.0}))

    assert text.startswith("idle_exit_s is -1.0 (from the command line) and must be a number")


@pytest.mark.parametrize("name", ["sample_s", "connections_per_user"])
def test_what_would_be_right_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GRN_{name.upper()}", "?")

    error = wrong()

    assert "number from " in error.message
    assert error.hint == "See docs/settings.md."


def test_a_setting_that_is_no_setting_is_refused_with_the_nearest_one(config: Config) -> None:
    path = config("sampel_s = 1")

    error = wrong()

    assert str(path) in error.message
    assert "'sampel_s'" in error.message
    assert "Did you mean sample_s?" in error.hint


@pytest.mark.parametrize(
    "content", ["sample_s = ", "= 1", "sample_s = 1\nsample_s = 2", b"\xff\xfe\x00", b"\x00", "[x"]
)
def test_a_file_that_is_not_toml_is_named(content: str | bytes, config: Config) -> None:
    path = config(content)

    assert str(wrong()).startswith(f"{path} is not TOML: ")


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRN_CONFIG", str(tmp_path))

    assert str(wrong()) == f"{tmp_path} cannot be read: Is a directory."


def test_a_wrong_value_that_something_else_overrides_does_no_harm(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('sample_s = "nonsense"')
    monkeypatch.setenv("GRN_SAMPLE_S", "2")

    assert settings.load().sample_s == 2.0


def test_the_file_is_read_and_not_run(config: Config) -> None:
    """A settings file is data: nothing in it is expanded."""
    config('on_end = "$HOME `id` $(id)"')

    assert settings.load().on_end == "$HOME `id` $(id)"


def test_every_number_has_a_range() -> None:
    for field in msgspec.structs.fields(Settings):
        if field.type in (int, float):
            os.environ[f"GRN_{field.name.upper()}"] = "1e12"
            try:
                assert f"{field.name} is" in str(wrong())
            finally:
                del os.environ[f"GRN_{field.name.upper()}"]


def test_weights_of_users_are_a_table_of_the_file_or_a_list(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('[shares]\nada = 2\n"@lab" = 0.5\n')
    assert settings.load().shares == {"ada": 2.0, "@lab": 0.5}

    monkeypatch.setenv("GRN_SHARES", "bob=3, @all = 0.25")
    assert settings.load().shares == {"bob": 3.0, "@all": 0.25}


@pytest.mark.parametrize("text", ["ada", "ada=", "ada=x", "ada=2,", "ada=0", "ada=-1", "ada=1e9"])
def test_a_wrong_weight_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRN_SHARES", text)
    with pytest.raises(BadSetting, match="GRN_SHARES"):
        settings.load()
