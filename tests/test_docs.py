"""The documentation against the code: nothing a user can set, type or read is left out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from grn.cli import app, catalog
from grn.cli.commands.run import leased_command
from grn.errors import BY_CODE
from grn.model.units import GiB
from grn.negotiator.events import WaitReason
from grn.negotiator.queries import views
from grn.proc.spawn import NOT_FOUND, NOT_RUNNABLE
from grn.protocol.rows import as_json
from grn.settings import Settings
from tests.builders import Story, a_profile, a_run
from tests.web.conftest import BROWSERS, HINT

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "tools" / "mkdocs.yml"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# What grn's own processes tell each other; nobody sets or reads these.
INTERNAL = {"GRN_COMPLETE"}


def page(name: str) -> str:
    path = DOCS / name
    assert path.exists(), f"{path} is missing"
    return path.read_text()


def in_code(text: str) -> set[str]:
    """Return all words that stand in `code`, and all lines of blocks of it."""
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return {*re.findall(r"`([^`\n]+)`", text), *"\n".join(blocks).splitlines()}


def mentions(text: str, word: str) -> bool:
    """True when a word stands in code, by itself or among others."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return any(whole.search(piece) for piece in in_code(text))


# --- what can be set -----------------------------------------------------------------------


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_has_a_row_with_its_default(name: str) -> None:
    rows = [line for line in page("settings.md").splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"docs/settings.md has no row for {name}"
    default = getattr(Settings(), name)
    shown = rows[0].split("|")[2].strip().strip("`")
    if isinstance(default, (str, dict)):
        assert shown == (default or "empty")
    else:
        assert float(shown) == default


def variables() -> list[str]:
    """Return all variables the code reads or sets, and those of the settings."""
    found = {f"GRN_{name.upper()}" for name in Settings.__struct_fields__}
    for path in (ROOT / "src").rglob("*.py"):
        found |= set(re.findall(r"\bGRN_[A-Z_]*[A-Z]\b", path.read_text()))
    return sorted(found - INTERNAL)


def test_every_variable_is_mentioned() -> None:
    pages = [path.read_text() for path in DOCS.rglob("*.md")]
    assert [name for name in variables() if not any(mentions(text, name) for text in pages)] == []


# --- what can be typed ---------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
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


def flags_of(name: str, command: click.Command) -> set[str]:
    """Return each spelling of each flag of a command."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    found = [[*one.opts, *one.secondary_opts] for one in options if not one.hidden]
    return {spelling for spellings in found for spelling in spellings} - {
        "-h", "--help", "--color",
    }  # fmt: skip


def page_of(name: str) -> str:
    """Return the page of a command or of its group, and the page it sends to for flags."""
    text = page(f"commands/{name.split()[0]}.md")
    return text + page("sweeps.md") if name.split()[0] == "sweep" else text


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_described_with_all_its_flags(name: str) -> None:
    command = ALL[name]
    text = page_of(name)

    assert f"grn {name}" in text, f"its page does not speak of `grn {name}`"
    assert {flag for flag in flags_of(name, command) if not mentions(text, flag)} == set()


def test_the_way_to_help_is_described() -> None:
    assert all(mentions(page("commands.md"), flag) for flag in ("-h", "--help", "--version", "-V"))


def test_every_exit_code_is_in_the_table() -> None:
    table = page("commands.md").partition("## Exit status")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| (\d+)", table, re.MULTILINE)
    codes = {0, 128, 130, *(kind.exit_code for kind in BY_CODE.values())}
    codes |= {leased_command.OWN_TROUBLE, NOT_RUNNABLE, NOT_FOUND}

    assert set(map(int, shown)) >= codes


# --- what can be read ----------------------------------------------------------------------


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_to_wait_has_a_heading(reason: WaitReason) -> None:
    assert f"\n## {reason.value}\n" in page("waiting.md")


def test_no_reason_is_documented_that_is_none() -> None:
    rows = re.findall(r"^\| \[([\w-]+)\]", page("waiting.md"), re.MULTILINE)

    assert set(rows) == {reason.value for reason in WaitReason}


def json_keys() -> Iterator[tuple[str, str]]:
    """Return every key of what `status` and `profiles` answer, with where it stands."""
    story = Story(profiles=(a_profile(a_run(GiB, arguments=(("bs", 8.0),))),))
    story.asks("a", is_exclusive=True)
    story.asks("b")
    status = views.status(story.engine.view, story.at)
    (profile,) = views.profiles(story.engine.view, None)
    rows = {
        "status": status,
        "gpu": status["gpus"][0],
        "lease": status["leases"][0],
        "waiting": status["waiting"][0],
        "share": as_json(status["shares"][0]),
        "profile": profile,
        "run": profile["history"][0],
    }
    for name, row in rows.items():
        yield from ((name, key) for key in row)


def test_every_key_of_the_json_output_is_documented() -> None:
    text = page("json.md")
    assert [f"{where}.{key}" for where, key in json_keys() if f"| `{key}` |" not in text] == []


# --- links ---------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the names under which a page's headings can be linked to, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        while name in found:
            name += "-1"
        found.add(name)
    return found


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", without_blocks(path.read_text()))
    return re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text)


def test_every_link_inside_leads_somewhere() -> None:
    anchors_of = cache(lambda path: anchors(path.read_text()))
    for path, link in [(one, link) for one in PAGES for link in links(one)]:
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{path.name}: {link}"
        assert there.is_relative_to(ROOT), f"{path.name}: {link} leads out of the project"
        if anchor:
            assert anchor in anchors_of(there), f"{path.name}: {link}"


def test_there_is_a_way_to_every_page() -> None:
    """From the README, link by link."""
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        path = ahead.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        for link in links(path):
            target = (path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md":
                ahead.append(target)

    assert sorted(set(DOCS.rglob("*.md")) - seen) == []


def test_every_page_but_the_decisions_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"^ +- (?:Home: )?(\S+\.md)$", SITE.read_text(), re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}

    assert sorted(listed) == sorted(page for page in pages if not page.startswith("decisions/"))


# --- as a site -----------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Build the site, which takes a second: for one test only."""
    folder = tmp_path / "site"
    mkdocs = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet")
    where = ("-f", str(SITE), "-d", str(folder))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

    built = subprocess.run([*mkdocs, *where], capture_output=True, text=True, env=environment)

    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere_and_is_searched_from_a_file(site: Path) -> None:
    pages = [path for path in DOCS.rglob("*.md") if "decisions" not in path.parts]
    loaded = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]+)")
    for path in pages:
        made = site / path.relative_to(DOCS).with_suffix(".html")
        assert loaded.findall(made.read_text()) == [], path.name
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NO BROWSER TESTS: no playwright"
    )
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        pytest.skip(HINT)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((site / "commands" / "submit.html").as_uri())
        page.locator("input.md-search__input").first.click()
        page.keyboard.type("half-life")
        found = page.wait_for_selector(".md-search-result__link", timeout=60_000)
        assert "packing.html" in found.get_attribute("href")
        browser.close()


def test_no_code_shows_a_backslash_that_only_escapes_a_table() -> None:
    for path in PAGES:
        text = without_blocks(path.read_text())
        assert [code for code in re.findall(r"`([^`\n]+)`", text) if r"\|" in code] == [], path
