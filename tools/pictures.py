"""The pictures of README and docs, drawn by the real programs: `make pictures`.

Starts a negotiator and a queue of its own with virtual GPUs, submits jobs, and draws `grn top`, a
sweep and the page into docs/assets. The page needs Chromium; without it the other two are drawn.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GRN = (sys.executable, "-c", "from grn.cli.main import main; main()")
SIZE = (132, 36)
DEADLINE_S = 120.0
TRAIN = """\
import argparse, json, random, time
asked = argparse.ArgumentParser()
asked.add_argument("--lr", type=float, default=1e-3)
asked.add_argument("--bs", type=int, default=32)
asked.add_argument("--mib", type=int, default=300)
asked.add_argument("--epochs", type=int, default=60)
asked.add_argument("--pace", type=float, default=1.0)
words = asked.parse_args()
parts, loss = [], 2.4
for epoch in range(1, words.epochs + 1):
    if len(parts) < 8:
        parts.append(bytearray((words.mib << 20) // 8))
    rate = 0.93 if 3e-4 < words.lr < 3e-3 else 0.97 - words.bs / 4000
    loss = 0.3 + (loss - 0.3) * rate + random.uniform(-0.01, 0.01)
    until = time.monotonic() + words.pace * 0.1
    while time.monotonic() < until:
        pass
    time.sleep(words.pace * 0.9)
    print(f"\\x1b[36mepoch {epoch:3}\\x1b[0m  loss {loss:.4f}  lr {words.lr:g}", flush=True)
print(json.dumps({"loss": round(loss, 4)}))
"""


def main() -> None:
    """Draw all pictures."""
    ASSETS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grn-pictures-") as folder:
        os.environ |= {"GRN_RUNTIME_DIR": folder, "GRN_STATE_DIR": f"{folder}/state"}
        os.environ |= {"LC_ALL": "C.UTF-8", "COLUMNS": str(SIZE[0])}
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.environ.pop("NO_COLOR", None)
        os.chdir(folder)
        for name in ("train.py", "pretrain.py"):  # the short runs of the sweep are another type
            Path(name).write_text(TRAIN)
        grn("start", "--virtual", "2x2GiB", "--background")
        try:
            draw_sweep()
            submit()
            asyncio.run(draw_top())
            draw_page()
        finally:
            grn("cancel", "--all", "--now")
            grn("queue", "stop")
            grn("stop")


def grn(*words: str) -> str:
    """Run one command of grn and return what it printed."""
    done = subprocess.run([*GRN, *words], capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        sys.exit(f"grn {' '.join(words)}: {done.stderr}")
    return done.stdout


def submit() -> None:
    """Fill the machine: some jobs run, some wait, one is held, one has failed."""
    train = ("--", "python", "pretrain.py")
    grn("submit", "--name", "gpt2 seed 1", "--mem", "900MiB", *train, "--mib", "800")
    grn("submit", "--name", "bert finetune", "--mem", "600MiB", *train, "--mib", "500")
    grn("submit", "--array", "0-3", "--name", "seed", "--mem", "500MiB", *train, "--mib", "400")
    grn("submit", "--name", "evaluate", "--mem", "1GiB", *train, "--mib", "900")
    grn("submit", "--name", "paper figures", "--hold", "--", "true")
    grn("submit", "--name", "broken", "--mem", "50MiB", "--", "python", "-c", "1/0")


async def draw_top() -> None:
    """Draw the screen of `grn top` once the selected job has printed something."""
    from grn.cli.top import draw
    from grn.cli.top.app import Top
    from grn.client.state_mirror import StateMirror

    with StateMirror() as mirror:
        mirror.look()
        app = Top(mirror, draw.UNICODE)
        async with app.run_test(size=SIZE) as pilot:
            await wait_for(lambda: "epoch  12" in app.canvas.text())
            await pilot.pause()
            drawn = app.export_screenshot(title="grn top")
    drawn = re.sub(r"@font-face\s*{[^}]*}", "", drawn)  # nothing is loaded from elsewhere
    drawn = drawn.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    write("top.svg", drawn.encode())


async def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    until = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until:
            sys.exit("the jobs took too long to begin; is this machine very busy?")
        await asyncio.sleep(0.2)


def draw_sweep() -> None:
    """Run a small sweep and draw its results."""
    line = "python train.py --lr {lr} --bs {bs} --mib 40 --epochs 12"
    values = ("-p", "lr", "1e-4", "3e-4", "1e-3", "3e-3", "-p", "bs", "16", "32", "64")
    asked = ("--mem", "100MiB", "--minimize", "loss", "--out", "sweep")
    grn("sweep", f"{line} --pace 0.05", *values, *asked)
    grn("sweep", "plot", "sweep", "--png", "sweep.png")
    write("sweep.png", Path("sweep.png").read_bytes())


def draw_page() -> None:
    """Draw the page of `grn web`, if there is a browser."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print("web.png is left as it is: no Chromium here")
        return
    from playwright.sync_api import sync_playwright

    server = subprocess.Popen([*GRN, "web", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        link = next(word for line in server.stdout for word in line.split() if "http" in word)
        with sync_playwright() as driver:
            opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = opened.new_page(viewport={"width": 1280, "height": 860})
            page.goto(link)
            page.get_by_text("gpt2 seed 1").first.wait_for()
            write("web.png", page.screenshot())
            opened.close()
    finally:
        server.terminate()
        server.wait()


def write(name: str, data: bytes) -> None:
    """Store one picture."""
    (ASSETS / name).write_bytes(data)
    print(f"docs/assets/{name}: {len(data) // 1000} kB")


if __name__ == "__main__":
    main()
