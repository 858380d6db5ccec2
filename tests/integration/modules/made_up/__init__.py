# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A technique that the collection does not have: each GPU has a number of lanes in a file."""
