# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose a better layout of the fleet, from an audit and histories.

The proposal is not applied. docs/rightsize.md describes it.

model      frozen values
wishes     workload settings from the inventory
observed   conversion of gpu_info results to the types of the planners
today      current workloads of each GPU, and excluded GPUs
series     histories of the workloads that may change
mode       how a workload can share a GPU, with the reason
teams      workloads that can share a card by time slicing
rearrange  packing problems and their solutions
overlay    new `gpu_layout` of a changed host, with its plan
risk       risks of a change for a workload
reclaim    idle units and containers that may be stopped
make       entry point: a proposal from a request
sums       totals and one-line summary
write      inventory overlay, YAML, JSON and HTML
"""
