"""Whom the setting `shares` means."""

import grp
import os
import pwd

import pytest

from grn.errors import BadSetting
from grn.negotiator.__main__ import share_weights

ME = pwd.getpwuid(os.getuid())
MY_GROUP = grp.getgrgid(ME.pw_gid).gr_name


def test_users_are_named_or_numbered():
    assert share_weights({ME.pw_name: 2.0, "54321": 0.5}) == {ME.pw_uid: 2.0, 54321: 0.5}


def test_a_group_means_its_members_and_a_users_own_entry_wins():
    assert share_weights({f"@{MY_GROUP}": 3.0})[ME.pw_uid] == 3.0
    assert share_weights({f"@{ME.pw_gid}": 3.0})[ME.pw_uid] == 3.0
    assert share_weights({f"@{MY_GROUP}": 3.0, ME.pw_name: 0.5})[ME.pw_uid] == 0.5


@pytest.mark.parametrize("name", ["nobody-of-that-name", "@no-such-group", "@", "@999999"])
def test_an_unknown_name_is_refused_with_its_name(name):
    with pytest.raises(BadSetting, match=name):
        share_weights({name: 1.0})
