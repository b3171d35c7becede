"""Run the fault campaigns in their long form and print one line of figures for each.

First the queue, its forker and the negotiator are killed at random while clients submit
(tests/queue_faults/campaign.py), then every test marked `soak` runs. Exit
code 1 when a promise was broken anywhere. docs/trust.md publishes the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import FOREIGN, Story
from tests.queue_faults.campaign import Campaign, Result
from tests.queue_faults.rig import Rig

ROOT = Path(__file__).resolve().parents[1]
KILLS_PER_ROUND = 200  # then a new folder is used
NOISE = ("repeat with:", "----")


def one_round(kills: int, seed: int) -> Result:
    """Run one campaign in a temporary folder; keep the folder when a promise was broken."""
    story = Story.begin()
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    rig = Rig(story)
    os.environ.update(
        {name: story.env[name] for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG")}
    )
    try:
        result = Campaign(rig, seed).run(kills)
    finally:
        rig.close()
    if result.complaints:
        print(f"its folder is kept: {story.folder}", flush=True)
    else:
        story.end()
    return result


def kill_campaign(wanted: int, seed: int) -> bool:
    """Kill daemons at random until the wanted number of kills is reached; True if all held."""
    seeds = random.Random(seed)
    kills = jobs = violations = 0
    while kills < wanted:
        result = one_round(min(KILLS_PER_ROUND, wanted - kills), seeds.getrandbits(32))
        print(result, flush=True)
        kills += result.kills.total()
        jobs += result.jobs
        violations += len(result.complaints)
    print(f"{kills} kills over {jobs} accepted jobs: {violations} violations", flush=True)
    return violations == 0


def long_campaigns(seed: int, keyword: str) -> bool:
    """Run the long form of every other campaign, two at a time; True if all held."""
    with tempfile.TemporaryDirectory(prefix="grn-soak") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak"]
        command += ["-n", "2", "--dist", "worksteal", f"--junitxml={report}"]
        command += ["-o", "junit_logging=system-out"]
        command += ["-k", keyword] if keyword else []
        environment = {**os.environ, "GRN_SOAK": "1", "GRN_SEED": str(seed)}
        code = subprocess.call(command, cwd=ROOT, env=environment)
        for line in figures(report):
            print(line, flush=True)
    return code == 0


def figures(report: Path) -> list[str]:
    """Return one line for each campaign in pytest's report: result, minutes, name, figures."""
    lines = []
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        result = "BROKEN" if bad else "skipped" if case.find("skipped") is not None else "held"
        minutes = float(case.get("time", "0")) / 60
        printed = (case.findtext("system-out") or "").splitlines()
        said = "; ".join(one.strip() for one in printed if one and not one.startswith(NOISE))
        name = str(case.get("name")).removeprefix("test_").replace("_", " ")
        lines.append(f"{result:8}{minutes:5.1f} min  {name}: {said or 'no figures'}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="0 leaves the kills out")
    parser.add_argument("--only", default="", metavar="WORD", help="only campaigns so named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    kills = 0 if options.only else options.kills
    again = f"--kills {kills} --seed {options.seed}"
    again += f" --only {options.only!r}" if options.only else ""
    print(f'repeat with: make soak ARGS="{again}"', flush=True)
    killed = not kills or kill_campaign(kills, options.seed)
    return 0 if long_campaigns(options.seed, options.only) and killed else 1


if __name__ == "__main__":
    sys.exit(main())
