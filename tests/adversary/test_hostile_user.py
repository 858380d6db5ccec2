# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user who chooses names and command lines: what root and others read of them acts on no terminal and no parser."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.command_line import printable, shown


@pytest.mark.parametrize(
    ("letter", "written"),
    [
        ("\r", "\\x0d"),
        ("\n", "\\x0a"),
        ("\x1b", "\\x1b"),
        ("\x85", "\\x85"),
        ("\u2028", "\\u2028"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_of_a_command_line_are_written_out(letter, written):
    assert printable("a%sb" % letter) == "a%sb" % written
    assert shown(["python3", "train%s.py" % letter]) == "python3 train%s.py" % written


@pytest.mark.parametrize("text", ["", "python3 train.py --name=Z\u00fcrich", "\u8bad\u7ec3"])
def test_other_letters_stay(text):
    assert printable(text) == text
