# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tool of the simulated GPUs: lays them out, loads them, breaks them, shows them."""
