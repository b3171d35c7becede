"""The adapter of Ray beside a Ray that is installed anew; what follows is tested on a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from grn.sites import SiteConfig
from tests.harness import DEADLINE_S, PYTHON_PATH


def _install(folder: Path, version: str) -> None:
    """Install a Ray that cannot be loaded."""
    (folder / "ray.py").write_text("raise ImportError('it is not whole')\n")
    told = folder / f"ray-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")


def test_the_adapter_leaves_its_place_to_one_that_loads_the_ray_that_is_installed_now(
    tmp_path: Path,
) -> None:
    _install(tmp_path, "2.60.0")
    site = SiteConfig("cloud", "ray", address="auto")
    words = ["--queue", "cafe", "--site", site.to_json()]
    with subprocess.Popen(
        [sys.executable, "-m", "grn.queue.sites.pilots.ray", *words],
        env={"PYTHONPATH": f"{tmp_path}:{PYTHON_PATH}"}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as adapter:  # fmt: skip
        try:
            assert adapter.stdout is not None
            for _ in range(2):  # as long as nothing changes it tries again
                assert "not installed" in json.loads(adapter.stdout.readline())["trouble"]
            (tmp_path / "ray-2.60.0.dist-info").rename(tmp_path / "old")
            _install(tmp_path, "2.58.0")

            assert adapter.wait(DEADLINE_S) == 0
        finally:
            adapter.kill()
