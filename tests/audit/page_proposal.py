# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a proposal for a made-up fleet with the real code and a real Prometheus.

Functions return HTML for the cases of test_page.py.
"""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState, Price
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import Thresholds
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import report_html
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.make import Request, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import Proposal
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.wishes import wishes
from tests.audit.fleet_history import AT_REST, CLEAR, NOBODY, Device, device, prometheus, use
from tests.audit.rightsize_hosts import gpu, state

#: A verdict needs a day of history. The history is not longer, because promtool takes time for every two hours of
#: history.
HOURS = 30

#: The workloads are: some that move, one that gets another part of its GPU, one that works, idle ones that may or may
#: not be stopped, and batch jobs that share a card. One GPU has no history.
HISTORY = [
    device("train-01", 0, use(8, 0.05)),
    device("train-01", 1, use(15, 0.2)),
    device("train-01", 2),
    device("train-01", 3, AT_REST),
    device("train-01", 4, AT_REST),
    Device("train-01", 5, series=NOBODY, labelled=CLEAR),
    device("batch-01", 0, use(8, 0.05, 48)),
    device("batch-01", 1, use(8, 0.3, 48)),
    Device("parts-01", 0, series=NOBODY, labelled=CLEAR),
    device("parts-01", 0, use(6, 0.1, 40), "1", "3g.40gb"),
    Device("parts-01", 1, series=NOBODY, labelled=CLEAR),
    device("parts-01", 1, use(6, 0.1, 40), "1", "4g.40gb"),
]
STATES = {
    "train-01": state(
        gpu("train-01", 0, "H100-80GB", "chat.service"),
        gpu("train-01", 1, "H100-80GB", "search.service"),
        gpu("train-01", 2, "H100-80GB", "train.service"),
        gpu("train-01", 3, "H100-80GB", "jupyter.service"),
        gpu("train-01", 4, "H100-80GB", "user@1000.service"),
        gpu("train-01", 5, "H100-80GB"),
    ),
    "batch-01": state(
        gpu("batch-01", 0, "L40S-48GB", "batch-a.service"), gpu("batch-01", 1, "L40S-48GB", "batch-b.service")
    ),
    "parts-01": state(
        gpu("parts-01", 0, "H100-80GB", instances=[(1, "3g.40gb", 4, "embed.service")]),
        gpu("parts-01", 1, "H100-80GB", instances=[(1, "4g.40gb", 0, "rank.service")]),
        gpu("parts-01", 2, "H100-80GB", "new.service"),
    ),
}
LAYOUTS = {
    "parts-01": [
        {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]},
        {"gpus": [1], "sharing": "mig", "mig": [{"profile": "4g.40gb"}]},
        {"gpus": [2], "sharing": "exclusive"},
    ],
}
WISHES = {"batch-01": [{"match": "batch-*", "isolation": "none", "latency": "batch"}]}


@functools.lru_cache
def proposal() -> Proposal:
    """Return a real proposal for three hosts and one host that did not respond."""
    hosts = {name: HostState(found["gpus"], (), LAYOUTS.get(name, ())) for name, found in STATES.items()}
    with tempfile.TemporaryDirectory() as folder, prometheus(HISTORY, HOURS, Path(folder)) as url:
        order = Order(
            (HOURS - 1) * 3600.0,
            access=Access(url),
            hosts=hosts,
            hosts_asked=[*STATES, "gone-01"],
            prices=[Price("H100*", 2.0), Price("*", 1.0)],
            currency="EUR",
            # The history has little more than a day.
            thresholds=Thresholds(idle_hours=20, new_holder_hours=0),
        )
        said = {name: wishes(rows, name) for name, rows in WISHES.items()}
        return make(Request(order, STATES, LAYOUTS, said, reclaim_grace_seconds=24 * 3600.0), time.time())


def usual():
    return report_html.to_text(proposal())


def stretched(long):
    return report_html.to_text(_renamed(proposal(), lambda name: "%s-%s" % (long, name), long * 3))


def hostile(texts):
    made = [_renamed(proposal(), lambda name, text=text: text, text) for text in texts]
    return report_html.to_text(replace(_together(made), prometheus=texts[1], currency=texts[0]))


def large():
    """Return a page about more than a thousand hosts."""
    made = [_renamed(proposal(), lambda name, number=number: "%s-%03d" % (name, number), "") for number in range(334)]
    return report_html.to_text(_together(made))


def empty():
    return report_html.to_text(replace(proposal(), hosts=(), workloads=(), reclaim=(), notes=(), saved_per_month=None))


def _renamed(made, called, text):
    """Return the proposal with other host and workload names.

    If `text` is not empty, it replaces all free texts.
    """

    def words(given):
        return text or given

    return replace(
        made,
        hosts=tuple(
            replace(
                one,
                host=called(one.host),
                plan=tuple(map(words, one.plan)),
                disturbs=tuple({"what": words(row["what"]), "who": [words(who) for who in row["who"]]} for row in one.disturbs),
            )
            for one in made.hosts
        ),
        workloads=tuple(
            replace(
                one,
                name=called(one.name),
                host=called(one.host),
                then_host=called(one.then_host),
                verdict=words(one.verdict),
                today=words(one.today),
                then=words(one.then),
                reason=words(one.reason),
                risks=tuple(map(words, one.risks)),
                need=one.need and replace(one.need, reason=words(one.need.reason)),
            )
            for one in made.workloads
        ),
        reclaim=tuple(
            replace(
                one, name=called(one.name), host=called(one.host), gpus=tuple(map(words, one.gpus)),
                spared=one.spared and words(one.spared),
            )
            for one in made.reclaim
        ),
        notes=tuple(map(words, made.notes)),
    )  # fmt: skip


def _together(made):
    """Combine several proposals.

    The sums come from the first one.
    """
    return replace(
        made[0],
        hosts=tuple(one for each in made for one in each.hosts),
        workloads=tuple(one for each in made for one in each.workloads),
        reclaim=tuple(one for each in made for one in each.reclaim),
        notes=tuple(note for each in made for note in each.notes),
    )
