"""Submit three trainings, and a report that comes after them; wait, and print the report."""

import sys
import tempfile
from pathlib import Path

import grn

TRAIN = str(Path(__file__).with_name("train.py"))


def main() -> None:
    """Submit, wait, report. Kill this script at any time: the jobs go on."""
    results = Path(tempfile.mkdtemp(prefix="grn-example-"))
    trainings = [
        grn.submit(
            [sys.executable, TRAIN, f"--seed={seed}", f"--out={results / str(seed)}.txt"],
            name=f"seed-{seed}",
            retry=1,
            time_limit="10m",
        )
        for seed in range(3)
    ]
    report = grn.submit("cat *.txt", shell=True, name="report", cwd=results, after=trainings)
    print("submitted", *(job.id for job in [*trainings, report]))
    for job in trainings:
        ended = job.wait()
        print(f"job {job.id}: {ended['reason']}")
    report.result()  # raises grn.JobFailed if it did not end well
    print(report.logs(), end="")


if __name__ == "__main__":
    main()
