# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A technique that is not part of the collection.

Each GPU has a number of lanes, which is stored in a file.
"""
