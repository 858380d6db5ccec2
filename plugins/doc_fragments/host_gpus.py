# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document options of filters that plan a layout for a host's GPUs."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  _input:
    description: The variable C(gpu_layout).
    type: raw
    required: true
  expected_gpus:
    description:
      - Catalogue keys of the host's GPUs in index order, for example C(H100-80GB), for hosts whose driver does not answer.
    type: list
    elements: str
    default: []
  pci_gpus:
    description: GPUs on the PCI bus, as in RV(openfleet.gpu.layout#module:pci_gpus). Used if O(expected_gpus) is empty.
    type: list
    elements: dict
    default: []
"""

    STATE = r"""
options:
  state:
    description: Result of M(openfleet.gpu.gpu_info) for the host. It takes precedence over O(expected_gpus) and O(pci_gpus).
    type: dict
    default: {}
  lost:
    description:
      - How to handle lost GPUs (off the bus) in the layout. V(fail) returns a problem, V(skip) maps the other GPUs.
      - No scheduler is offered a lost GPU.
    type: str
    choices: [fail, skip]
    default: fail
"""
