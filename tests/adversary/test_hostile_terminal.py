# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a compromised host's results cannot control the operator's terminal."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.printable import printable
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_action import printable_json
from tests.adversary.attackers import HostileHost, play, said

#: Clears the screen, sets the window title, reverses text, and has characters that some programs treat as line ends.
ACTS = "\x1b[2J\x1b]0;owned\x07 \u202egnol \r\u0085\u2028"
WRITTEN = r"\x1b[2J\x1b]0;owned\x07 \u202egnol \x0d\x85\u2028"
OLD = [{"msg": "deprecates " + ACTS, "version": "9.0", "collection_name": "openfleet.gpu"}]


@pytest.mark.core
def test_module_results_cannot_control_the_terminal(tmp_path):
    answers = {
        "fails": {"failed": True, "msg": "fails " + ACTS, "where": ACTS, "exception": "trace " + ACTS},
        "warns": {
            "changed": False,
            "warnings": ["warns " + ACTS],
            "deprecations": OLD,
            ACTS: [ACTS, {ACTS: ACTS}],
            "ansible_facts": {"x": 1},
        },
        "raves": "raves %s\n" % ACTS,
    }
    hosts = {name: HostileHost(tmp_path / name, answer).variables for name, answer in answers.items()}
    tasks = "    - openfleet.gpu.gpu_info:\n      register: seen\n    - ansible.builtin.debug: {var: seen}\n"
    playbook = tmp_path / "play.yml"
    playbook.write_text("- hosts: all\n  gather_facts: false\n  ignore_errors: true\n  tasks:\n" + tasks)
    done = play(tmp_path, playbook, {"all": {"hosts": hosts}}, "-v", "--diff")
    printed = said(done)
    for text in ("fails ", "warns ", "deprecates ", "raves "):
        assert text + WRITTEN[: WRITTEN.index(" ")] in printed, printed[-3000:]
    acting = {letter for letter in done.stdout + done.stderr if not letter.isprintable()} - {"\n"}
    assert acting == set()
    # Facts would become variables of later tasks.
    assert "ansible_facts" not in printed


@pytest.mark.parametrize(
    "text",
    [
        "plain é \U0001f600",
        ACTS,
        "a\n\tb\r",
        'quote " slash / backslash \\ \\u001b',
        "\x7f\x9b\ud800",
        "\\" * 3 + "\x1b",
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_of_a_host_decodes_to_printable_text(text, ascii_only):
    output = json.dumps({text: [text, 1, {"a": text}]}, ensure_ascii=ascii_only)
    expected = "".join(letter if letter in "\n\t" else printable(letter) for letter in text)
    assert json.loads(printable_json(output)) == {expected: [expected, 1, {"a": expected}]}


def test_other_output_of_a_host_is_printable():
    assert printable_json("raves \x1b[2J\n") == "raves \\x1b[2J\n"
    assert printable_json("{ \x1b \\").isprintable()
