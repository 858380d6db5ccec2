# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the techniques' subcommands of gpu-layout.

This module imports no technique. A technique is loaded when its subcommand runs.
"""

#: (name of the subcommand, module and function that run it, help text).
COMMANDS = (
    (
        "vgpu-agent",
        "..techniques.vgpu.serve:serve",
        "the service for shared memory of vGPU tenants (started by systemd)",
    ),
)
