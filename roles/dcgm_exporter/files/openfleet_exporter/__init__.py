# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export GPU metrics on hosts without DCGM, based on nvitop-exporter."""
