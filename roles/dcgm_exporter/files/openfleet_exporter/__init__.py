# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exporter of GPU metrics for hosts without DCGM, based on nvitop-exporter."""
