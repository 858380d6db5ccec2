# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take leases on this host, and print the seconds of each as JSON.

Usage: time_leases.py FOLDER COUNT. The program first applies the layout in FOLDER. Each lease has another size than the
one before it, so that every lease creates and removes instances. bench_lease.py runs this file in the environment of a
simulated host.
"""

from __future__ import annotations

import json
import sys
import time

from ansible_collections.openfleet.gpu.plugins.module_utils.change.converge import Request as Run
from ansible_collections.openfleet.gpu.plugins.module_utils.change.converge import converge
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.files import read_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.host import LeaseHost
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Request, Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.schedule import Schedule, book
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout

GIB = 1 << 30
SHAPES = {
    "mig": [Shape(profile="7g.80gb"), Shape(profile="3g.40gb")],
    "vgpu": [Shape(8 * GIB, 20), Shape(16 * GIB, 40)],
}


def main() -> None:
    """Print {kind: seconds of each lease}."""
    directory, layout, count = sys.argv[1] + "/state.d", sys.argv[1] + "/layout.json", int(sys.argv[2])
    converge(Run(parse_layout(read_layout(layout)), directory, "fail"), 0)
    host = LeaseHost(directory, layout)
    seconds: dict[str, list[float]] = {}
    number = 0
    for kind, shapes in SHAPES.items():
        for turn in range(count):
            number += 1
            offers = host.offers()
            request = Request(number, "root", shapes[turn % 2], 3600.0)
            booking = book(Schedule(offers), request, offers, 1.0).booking(number)
            begin = time.monotonic()
            host.take(booking)
            host.give_back(number)
            seconds.setdefault(kind, []).append(time.monotonic() - begin)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
