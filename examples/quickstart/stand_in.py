"""A long job with a short stand-in, which is measured in its place the first time."""

import time

import grn

MiB = 1 << 20


@grn.job()
def long_job(seconds: float) -> str:
    """Do the real work."""
    weights = b"\xff" * (200 * MiB)
    time.sleep(seconds)
    return f"long_job: {len(weights) // MiB} MiB for {seconds} s"


@long_job.profile
def short_job(*args: float) -> None:
    """Take as much memory as long_job does, but not for long."""
    weights = b"\xff" * (200 * MiB)
    time.sleep(0.3)
    print(f"short_job: measured with {len(weights) // MiB} MiB")


if __name__ == "__main__":
    # Nothing known yet: short_job runs first, then long_job, both with the same arguments.
    # Known already: only long_job runs.
    print(long_job(3))
