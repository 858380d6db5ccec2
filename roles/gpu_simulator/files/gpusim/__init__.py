# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create and show simulated GPUs, put load on them, and inject faults."""
