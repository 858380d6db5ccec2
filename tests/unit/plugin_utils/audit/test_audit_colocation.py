# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the offline work that colocation made possible."""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.asking import Asking
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.colocation import colocation
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Colocation
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Answer, Sample

DAY = 86400.0


class Server:
    """A server that returns these samples for every query."""

    name = "http://p"

    def __init__(self, *rows) -> None:
        self.rows, self.queries = rows, []

    def query(self, expression, at):
        self.queries.append((expression, at))
        samples = [
            Sample({"host": host, "gpu_uuid": gpu, "latency": latency}, value)
            for host, gpu, latency, value in self.rows
        ]
        return Answer(samples, ())


def gain(*rows, selector=""):
    server = Server(*rows)
    return colocation(Asking(server, 1.0e9, selector, []), DAY), server


def test_gpu_hours_of_gpus_with_online_and_offline_work():
    found, server = gain(
        ("a", "u0", "online", 0.25 * DAY),
        ("a", "u0", "offline", 0.5 * DAY),
        ("b", "u0", "online", 0.5 * DAY),
        ("b", "u0", "offline", 0.25 * DAY),
        # On a GPU without an online tenant, offline work is no gain.
        ("c", "u1", "offline", DAY),
        selector='cluster="x"',
    )
    assert found == Colocation(2, 18.0, 18.0)
    ((query, at),) = server.queries
    assert 'cluster="x"' in query and "[86400s]" in query and at == 1.0e9


def test_a_forged_counter_counts_for_all_of_the_time_at_most():
    found, _server = gain(("a", "u0", "online", -5.0), ("a", "u0", "offline", 1e18))
    assert found == Colocation(1, 0.0, 24.0)


def test_no_colocation_has_no_gain():
    assert gain()[0] is None
    assert gain(("a", "u0", "online", 5.0))[0] is None
