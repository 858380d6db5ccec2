# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback fleet_summary for runs of the collection's playbooks whose ansible.cfg does not enable it.

ansible-core adds this folder when it loads a playbook beside it, by its name in the collection too, and loads callbacks after the
first playbook of the command line. Callbacks of folders run unless they say that they must be enabled.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: openfleet_gpu_summary
type: aggregate
short_description: Print what a run planned or applied on the whole fleet
description:
  - >-
    The callback C(openfleet.gpu.fleet_summary) beside the playbooks of its collection, where it needs no configuration. It prints
    nothing where C(callbacks_enabled) names that one, and nothing behind the JSON of C(stdout_callback).
"""

from ansible import constants as C

from ansible_collections.openfleet.gpu.plugins.callback import fleet_summary

#: Callbacks whose output programs read, by the last part of their names.
FOR_PROGRAMS = ("json", "jsonl", "null")


class CallbackModule(fleet_summary.CallbackModule):
    """Ansible's entry point."""

    CALLBACK_NAME = "openfleet_gpu_summary"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self):
        super().__init__()
        for_programs = str(C.DEFAULT_STDOUT_CALLBACK).rpartition(".")[2] in FOR_PROGRAMS
        # Once in a run.
        self.disabled = for_programs or fleet_summary.CallbackModule.CALLBACK_NAME in (C.CALLBACKS_ENABLED or [])
