"""The files of the page, as they are shipped."""

from __future__ import annotations

import re
from importlib import resources

from grn.cli.web.app import SWEEP_SCRIPT

FILES = resources.files("grn.cli.web") / "static"


def test_every_script_is_loaded_at_once_and_not_one_after_the_other() -> None:
    scripts = {entry.name for entry in FILES.iterdir() if entry.name.endswith(".js")}
    page = (FILES / "index.html").read_text()

    loaded = re.findall(r'(?:modulepreload" href|type="module" src)="([^"]+)"', page)

    assert sorted(loaded) == sorted({*scripts, SWEEP_SCRIPT})
