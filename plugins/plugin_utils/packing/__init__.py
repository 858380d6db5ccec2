# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack workloads onto GPUs with the least change, from demands, a fleet and its current layout. docs/packing.md.

model      problems and results, as frozen values
case       a checked problem, prepared for both solvers
geometry   what fits on one GPU, by the MIG planner's search and the catalogue
greedy     heuristic: the start of the search, and the result without OR-Tools
exact      CP-SAT over patterns of whole GPUs
pack       entry point
check      verifies a result against its problem and the planners
layouts    a result as `gpu_layout` of each host
"""
