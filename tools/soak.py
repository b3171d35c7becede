"""Kill the queue, its forker and the negotiator at random for a long time, while clients submit.

The campaign is that of tests/queue_faults/test_kills.py, with more kills. Exit code 1 when a job
was lost, run twice, killed or misreported.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import FOREIGN, Story
from tests.queue_faults.campaign import Campaign, Result
from tests.queue_faults.rig import Rig

ROUND = 200  # kills before the folder of the queue is made anew


def one_round(kills: int, seed: int) -> Result:
    """Run one campaign in a folder of its own; keep the folder when something was wrong."""
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


def sweeps() -> int:
    """Run the sweeps that are too long for `make test`: power cuts, failing calls, full disks."""
    pytest = [sys.executable, "-m", "pytest", "tests/queue_faults", "-m", "slow", "-s"]
    environment = {**os.environ, "GRN_SWEEPS": "1"}
    return subprocess.call(pytest, cwd=Path(__file__).resolve().parents[1], env=environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--sweeps", action="store_true", help="also all other long fault tests")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    print(
        f"repeat with: make soak ARGS='--kills {options.kills} --seed {options.seed}'", flush=True
    )
    seeds = random.Random(options.seed)
    kills = jobs = violations = 0
    while kills < options.kills:
        result = one_round(min(ROUND, options.kills - kills), seeds.getrandbits(32))
        print(result, flush=True)
        kills += result.kills.total()
        jobs += result.jobs
        violations += len(result.complaints)
    print(f"{kills} kills over {jobs} accepted jobs: {violations} violations")
    code = sweeps() if options.sweeps else 0
    return 1 if violations else code


if __name__ == "__main__":
    sys.exit(main())
