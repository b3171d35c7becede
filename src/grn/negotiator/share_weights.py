"""The setting `shares`: names of users and groups resolved to numbers."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Mapping

from grn.errors import BadSetting


def weights(shares: Mapping[str, float]) -> dict[int, float]:
    """Return the weight of each user named, by itself or as a member of a @group.

    A user's own entry wins; of several groups the one with the largest weight does.
    """
    groups: dict[int, float] = {}
    for name, weight in shares.items():
        if name.startswith("@"):
            for user in _members(name[1:]):
                groups[user] = max(groups.get(user, 0.0), weight)
    own = {_user(name): weight for name, weight in shares.items() if not name.startswith("@")}
    return groups | own


def _user(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown(name, "user") from None


def _members(name: str) -> list[int]:
    """Return the members of a group, and users with it as primary group."""
    try:
        group = grp.getgrgid(int(name)) if name.isdecimal() else grp.getgrnam(name)
    except KeyError:
        raise _unknown(f"@{name}", "group") from None
    users = pwd.getpwall()
    named = set(group.gr_mem)
    return [one.pw_uid for one in users if one.pw_name in named or one.pw_gid == group.gr_gid]


def _unknown(name: str, what: str) -> BadSetting:
    hint = 'Write it like `ada = 2` or `"@lab" = 0.5` under [shares]; see docs/settings.md.'
    return BadSetting(f"shares names '{name}', which is no {what} here.", hint)
