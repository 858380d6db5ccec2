# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's GPUs for the hardware check. Changes nothing.

The sources are NVML, the kernel's files and nvidia-smi.
"""
