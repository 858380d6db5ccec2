# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: Slurm's generic resources (GRES). Pure: no I/O.

gres         the GRES of a node as text and as values
devices      devices that Slurm allocates, in Slurm's order
offer        GRES of a layout, and refused entries
gres_conf    lines of gres.conf for the current devices
record       current devices by number, from gres.conf
order        order of the devices that lets running jobs keep their devices
change       running jobs that must end before a change
answer       result of the filter `slurm_mapping`
backend      class for the registry
"""
