# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A backend that does not exist, with whole GPUs for its pods."""
