# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand export."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
import sys
from argparse import Namespace

from ..export.look import export_host
from ..layout.yaml_text import layout_yaml
from ..techniques.forms import layout_to_data


def export(options: Namespace) -> int:
    """Print the state of the GPUs as gpu_layout."""
    found = export_host(options.state_directory, options.pin_placements, options.select_by)
    data = layout_to_data(found.layout)
    if options.json:
        print(json.dumps({"gpu_layout": data, "left_out": list(found.left_out)}, indent=2))
    else:
        print(layout_yaml(data), end="")
    for sentence in found.left_out:
        print("gpu-layout: %s" % sentence, file=sys.stderr, flush=True)
    return 0
