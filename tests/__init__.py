# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests and their helpers.

This file makes `tests` a package, so that an installed package of that name is not imported.
"""
