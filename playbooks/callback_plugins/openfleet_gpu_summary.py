# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the callback fleet_summary if ansible.cfg does not enable it.

When ansible-core loads a playbook, by path or by collection name, it adds the playbook's folder callback_plugins to the
search path. It loads callbacks after the first playbook on the command line. A callback in such a folder runs unless
its documentation says that it must be enabled.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: openfleet_gpu_summary
type: aggregate
short_description: Print what a run planned or applied on the whole fleet
description:
  - >-
    Runs the callback C(openfleet.gpu.fleet_summary) for the collection's playbooks without any configuration. It prints nothing
    if C(callbacks_enabled) lists C(openfleet.gpu.fleet_summary), or if C(stdout_callback) prints JSON.
"""

from ansible import constants as C

from ansible_collections.openfleet.gpu.plugins.callback import fleet_summary

#: Callbacks whose output programs read, by the last part of their name.
FOR_PROGRAMS = ("json", "jsonl", "null")


class CallbackModule(fleet_summary.CallbackModule):
    """Ansible's entry point."""

    CALLBACK_NAME = "openfleet_gpu_summary"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self):
        super().__init__()
        for_programs = str(C.DEFAULT_STDOUT_CALLBACK).rpartition(".")[2] in FOR_PROGRAMS
        # Ansible calls this once per run.
        self.disabled = for_programs or fleet_summary.CallbackModule.CALLBACK_NAME in (C.CALLBACKS_ENABLED or [])
