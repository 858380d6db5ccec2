# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Undo a change and remove the collection, word for word as how-to pages say."""

from __future__ import annotations

import pytest

from tests.how_to import blocks, commands
from tests.integration.how_to_site import Site

BEFORE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}]
AFTER = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def site(host, library, tmp_path):
    made = Site(tmp_path, library, ["one", "two"])
    for name in ("one", "two"):
        made.commit(name, BEFORE, f"layout of {name}")
    made.follow("ansible-playbook -i hosts.yml openfleet.gpu.site")
    return made


def test_undo_a_change(site):
    before = site.seen()
    site.commit("one", AFTER, "two large instances")
    site.follow("ansible-playbook -i hosts.yml openfleet.gpu.site")
    changed = site.seen()
    assert changed["one"] == {0: [("3g.40gb", 0), ("3g.40gb", 4)]}
    find, revert, check, change = commands("undo-a-change.md", "$")
    assert "two large instances" in site.follow(find)
    site.follow(revert)
    site.follow(check)
    assert site.seen() == changed
    said = site.follow(change)
    assert site.seen() == before
    (expected,) = blocks("undo-a-change.md", "text")
    assert expected.strip() in said


def test_uninstall(site):
    before = site.seen()
    check, remove, turn_off = commands("uninstall.md", "$")
    (expected,) = blocks("uninstall.md", "text")
    site.follow(check)
    assert site.directory.exists()
    assert expected.strip() in site.follow(remove)
    assert site.seen() == before and not site.directory.exists()
    assert not any((host.folder / "state.d").exists() for host in site.fleet.hosts.values())
    site.follow(turn_off)
    assert site.seen() == {"one": {0: []}, "two": {0: []}}
