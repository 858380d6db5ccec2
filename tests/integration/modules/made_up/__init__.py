# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A technique that is not part of the collection: each GPU has lanes, stored in a file."""
