# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leave out tests that are marked `thorough`, unless `make test-thorough` runs them."""

from __future__ import annotations

from thorough import THOROUGH


def pytest_collection_modifyitems(config, items):
    """Deselect the tests that take long, here and in the scenarios of molecule."""
    left_out = [] if THOROUGH else [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
