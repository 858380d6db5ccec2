# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a technique that is not part of the collection.

A file stores each GPU's number of lanes.
"""
