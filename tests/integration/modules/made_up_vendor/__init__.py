# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A vendor that is not part of the collection.

Its two devices split into 1, 2 or 4 slices. A change takes effect when the driver is reloaded, for all devices of the host.
"""
