# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which workload stands on which GPU: demands, a fleet and today's layout in, a layout with least churn out. docs/packing.md.

model      what is asked and what is answered, as frozen values
case       a problem, checked and sorted for the two ways to solve it
geometry   what fits on one GPU: asked of the MIG planner's own search and of the catalogue
greedy     a heuristic: the warm start, and the answer where OR-Tools is missing
exact      CP-SAT over patterns of whole GPUs; states, builds and reads the solver's model
pack       the way in
check      an answer held against its problem and against the planners that would apply it
layouts    an answer as `gpu_layout` of each host
"""
