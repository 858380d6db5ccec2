# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fleet should look like instead: an audit and histories in, a proposal out, which is not applied. docs/rightsize.md.

model      what all of them speak of, as frozen values
wishes     what the inventory says of workloads, checked
observed   a host's GPUs as the planners know them
today      hosts' own word and the audit: which workload is on which GPU, and which GPUs stay out of it
series     the histories of those that may change, in bounded amounts
mode       how a workload could share a GPU, with the reason
teams      who takes turns on a card, by their histories together
rearrange  problems for the packing, and what came of them
overlay    the `gpu_layout` of a host that changes, and what the planner makes of it
risk       what could go wrong for each workload
reclaim    units and containers that hold GPUs and use none
make       one proposal, from what is asked to the finished object
sums       the proposal in numbers, and in one line
write      the proposal as an inventory overlay, YAML, JSON and a page
"""
