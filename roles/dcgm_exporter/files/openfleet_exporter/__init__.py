# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An exporter of GPU metrics for hosts on which DCGM cannot run: nvitop-exporter, and what that lacks."""
