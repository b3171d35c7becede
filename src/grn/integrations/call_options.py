"""The options and job types that joblib's backend and Hydra's launcher share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grn.client.fingerprint import of_function
from grn.client.job_request import lease_request, type_and_label
from grn.client.remote_call import name_of
from grn.errors import UsageError
from grn.group.call_table import Kind

OPTIONS = (
    *("gpus", "mem", "exclusive", "priority", "policy", "retry_oom"),
    "reuse_workers",
)


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a `CallGroup`; raise on unknown and invalid ones."""
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        text = f"there is no option {', '.join(sorted(unknown))} for jobs of grn."
        raise UsageError(text, f"There are {', '.join(OPTIONS)}.")
    needs = dict(options)
    retries, is_reusing = needs.pop("retry_oom", 0), needs.pop("reuse_workers", False)
    lease_request("?", "?", **needs)
    return {"oom_retries": retries, "is_reusing": is_reusing, **needs}


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return the job type that `@grn.job` on a function would have."""
    inner = getattr(function, "func", function)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        name = name_of(function)
        return Kind(name[-1024:], name[-256:])
    names = type_and_label(code.co_filename, inner.__qualname__.replace("<locals>.", ""))
    return Kind(names[0][-1024:], names[1][-256:], of_function(function))
