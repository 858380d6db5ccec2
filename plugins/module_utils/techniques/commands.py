# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the techniques' subcommands of gpu-layout. Imports none of them: each is loaded when it runs."""

#: (name, function as `main` in cli names it, help).
COMMANDS = (
    (
        "vgpu-agent",
        "..techniques.vgpu.serve:serve",
        "the service for shared memory of vGPU tenants (started by systemd)",
    ),
)
