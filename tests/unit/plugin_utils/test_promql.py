# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that an untrusted value in PromQL stays a single value.

tests/audit/test_hostile_names.py uses a real Prometheus.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.plugin_utils.promql import any_of, literal, quote

#: All text that UTF-8 can encode.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("GPU-1", '"GPU-1"'),
        ('a"} or vector(1) #', r'"a\"} or vector(1) #"'),
        ("a\\", r'"a\\"'),
        ("a\nb\tc\rd\0", r'"a\u000ab\u0009c\u000dd\u0000"'),
        ("\x7f\x85\u2028", r'"\u007f\u0085\u2028"'),
        ("é 日本 %(where)s", '"é 日本 %(where)s"'),
        ("half \ud800", '"half \ufffd"'),
    ],
)
def test_a_string_is_one_literal(text, written):
    assert quote(text) == written


@given(TEXT)
def test_a_string_is_read_back(text):
    # The output has only escapes that Go and JSON have in common.
    assert json.loads(quote(text)) == text
    assert min(quote(text)) >= " "


@given(TEXT, TEXT)
def test_expression_matches_only_its_text(text, other):
    assert bool(re.fullmatch(literal(text), other)) == (text == other)
    assert re.fullmatch(literal(text), text)


def test_only_special_characters_of_re2_are_escaped():
    assert literal("GPU-a_b c/d~#&") == "GPU-a_b c/d~#&"
    assert literal(r"\.+*?()|[]{}^$") == r"\\\.\+\*\?\(\)\|\[\]\{\}\^\$"


def test_several_are_alternatives():
    assert any_of(["a.b", 'c"d', "e|f"]) == r'"a\\.b|c\"d|e\\|f"'
