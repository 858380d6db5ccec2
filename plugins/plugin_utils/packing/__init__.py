# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack workloads onto GPUs with the least change. docs/packing.md.

The input has the demands of workloads, the GPUs of the fleet and the current layout.

model      dataclasses of problems and results
case       checks of a problem, and its data for both solvers
geometry   rules for what fits on one GPU, from the MIG planner and the catalogue
fill       patterns for empty GPUs, with a local search, for the heuristic
greedy     heuristic: it is the start of the exact search, and the only search without OR-Tools
cells      groups of equal GPUs and of equal workloads, for the exact search
exact      exact search with CP-SAT over patterns of whole GPUs
read       conversion of solutions between the heuristic and the exact search
answer     construction of a result from the workloads on each GPU
pack       entry point
check      verification of a result against its problem and the planners
online     one request at a time on hosts with CPU and memory, without moves
layouts    conversion of a result to the `gpu_layout` of each host
"""
