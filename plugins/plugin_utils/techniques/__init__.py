# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe each sharing technique to the controller.

The audit, packing, right-sizing, the schedulers and the checks of hosts' results ask this registry. They name no technique.

protocol  interface of a technique
access    how pods share a GPU, for scheduler backends
registry  list of the techniques

Each technique has a file. Its folder in module_utils has the code for hosts.
"""
