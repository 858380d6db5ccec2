# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of a compromised host cannot control the operator's terminal."""

from __future__ import annotations

from attackers import ROOT, HostileHost, play, said

from ansible_collections.openfleet.gpu.plugins.plugin_utils.printable_action import harmless

#: Clears the screen, names the window, turns the line round, and ends a line in places where that is none.
ACTS = "\x1b[2J\x1b]0;owned\x07 \u202egnol \r\u0085\u2028"
WRITTEN = r"\x1b[2J\x1b]0;owned\x07 \u202egnol \x0d\x85\u2028"
OLD = [{"msg": "deprecates " + ACTS, "version": "9.0", "collection_name": "openfleet.gpu"}]
#: Modules that run on the controller alone.
OF_THE_CONTROLLER = {"audit", "bundle", "check_variables", "reclaim_tell", "rightsize"}
MODULES = sorted({path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")} - OF_THE_CONTROLLER)


def test_every_module_has_an_action_that_reads_its_result_first():
    """Without an action, errors and warnings would be printed as the host sent them."""
    assert set(MODULES) <= {path.stem for path in (ROOT / "plugins" / "action").glob("*.py")}


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
    # Facts would be variables of later tasks.
    assert "ansible_facts" not in printed


def test_texts_of_several_lines_and_columns_stay():
    given = {
        "msg": "a\n\tb\r",
        "diff": {"after": "c\n\u2028\n"},
        "ansible_facts": {"discovered_interpreter_python": "/p", "x": 1},
    }
    expected = {"msg": "a\n\tb\\x0d", "diff": {"after": "c\n\\u2028\n"}}
    assert harmless(given) == {**expected, "ansible_facts": {"discovered_interpreter_python": "/p"}}
