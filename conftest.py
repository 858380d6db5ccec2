# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leave out tests that are marked `thorough` unless `make test-thorough` runs them, and give pytest a PID namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apart import enter_namespace
from tests.thorough import THOROUGH


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Run tests on simulated GPUs in a PID namespace (tests/apart.py)."""
    enter_namespace(Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)


def pytest_collection_modifyitems(config, items):
    """Deselect the tests that take long, here and in the scenarios of molecule."""
    left_out = [] if THOROUGH else [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
