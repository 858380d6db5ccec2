# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that cached module archives belong to the current code."""

from __future__ import annotations

import os

import pytest

from tests.lab.callback import module_cache


@pytest.fixture
def collection(tmp_path):
    for folder in ("modules", "module_utils"):
        (tmp_path / "plugins" / folder).mkdir(parents=True)
        (tmp_path / "plugins" / folder / "one.py").write_text("ONE = 1\n")
    return tmp_path


def test_each_change_of_the_code_has_its_own_archives(collection):
    seen = {module_cache.key(collection)}
    assert seen == {module_cache.key(collection)}
    helper = collection / "plugins" / "module_utils" / "one.py"
    helper.write_text("ONE = 2\n")
    os.utime(helper, ns=(1, 1))
    seen.add(module_cache.key(collection))
    (collection / "plugins" / "modules" / "two.py").write_text("TWO = 2\n")
    seen.add(module_cache.key(collection))
    helper.unlink()
    assert len(seen | {module_cache.key(collection)}) == 4


def test_archives_unused_for_a_day_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(module_cache, "CACHE", tmp_path)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "old", (0, 0))
    module_cache.forget_unused()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
