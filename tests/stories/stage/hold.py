"""One decorated job: says that it runs, waits at the gate of its name, says that it ends.

python hold.py NAME '{"type": "job", "take": 100, "fails": false, "mem": "64MiB"}'
"""

from __future__ import annotations

import json
import sys

from act import gate, say, take

import grn

name, options = sys.argv[1], json.loads(sys.argv[2])
mib, fails = options.pop("take", 0), options.pop("fails", False)


@grn.job(options.pop("type"), **options)
def job() -> None:
    kept = take(mib)
    say(name, "runs")
    gate(name)
    say(name, "ends")
    del kept
    if fails:
        raise ValueError(f"{name} fails")


job()
