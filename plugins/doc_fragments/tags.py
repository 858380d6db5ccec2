# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document options of filters that check a run's tags."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  _input:
    description: Tags of the playbook, one for each role. Empty if the playbook has no tags.
    type: list
    elements: str
    required: true
  run:
    description: The variable C(ansible_run_tags).
    type: list
    elements: str
    required: true
  skip:
    description: The variable C(ansible_skip_tags).
    type: list
    elements: str
    required: true
"""
