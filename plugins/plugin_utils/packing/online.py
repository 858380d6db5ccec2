# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Place one request at a time on hosts with CPU, memory and GPUs.

Pure, but needs NumPy. No workload moves. A request gets the place after which the usual requests of the fleet can use the
most of the remaining GPUs. Two amounts say how much of a host's free GPUs is lost, both in thousandths of a GPU:

fragments  free GPU share that a usual request cannot use, as a mean of the usual requests (FGD: Weng et al., USENIX ATC 2023)
stranded   free GPU share for which CPU or memory is missing, if requests need the usual CPU and memory for each GPU

Fragments see a lack of CPU only when a host is almost full. Stranded shares see it from the first request on, so requests with
much CPU go to hosts with much CPU.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from ..numerics import np
from .model import PackingError

#: Free thousandths of an unused GPU.
WHOLE = 1000
#: Weight of stranded shares. Chosen on request lists that are not in the published table.
STRANDED = 0.5
#: Weight of the free share that remains on the chosen GPU. It decides between places with equal losses.
FULLEST = 1e-6
#: The usual requests are the most frequent ones with this share of all requests.
USUAL_SHARE = 0.95


@dataclass(frozen=True, order=True)
class Demand:
    """A request for `gpus` GPUs of one host, with `thousandths` of each.

    CPU is in thousandths of a core. `models`: allowed GPU models, or empty if all are allowed.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    thousandths: int = WHOLE
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        share = "%s %% of a GPU" % format(self.thousandths / 10, "g")
        gpus = share if self.thousandths < WHOLE and self.gpus == 1 else "%d GPU%s" % (self.gpus, "s"[self.gpus == 1 :])
        return "%s%s, %s cores and %d MiB" % (
            gpus,
            " (%s)" % " or ".join(self.models) if self.models else "",
            format(self.cpu_milli / 1000, "g"),
            self.memory_mib,
        )


@dataclass(frozen=True)
class Host:
    """A host with its free CPU, memory and GPU shares.

    `gpus` has the free thousandths of each GPU, by index.
    """

    name: str
    model: str
    cpu_milli: int
    memory_mib: int
    gpus: tuple[int, ...]


class Place(NamedTuple):
    """The host, and the indices of the GPUs, that a request gets."""

    host: str
    gpus: tuple[int, ...]


class _Scores:
    """Each host's loss if it gets a demand.

    `seen` is the number of changes that the scores include.
    """

    def __init__(self, count: int) -> None:
        self.seen = 0
        self.losses = np.full(count, np.inf)
        self.first = np.full(count, -1)


class Online:
    """The free room of a fleet.

    `usual` has how often each demand occurs, for example in the last weeks. If it is empty, `place` chooses the host
    with the least remaining room.
    """

    def __init__(self, hosts: Sequence[Host], usual: Mapping[Demand, int]) -> None:
        self._hosts = list(hosts)
        _check(self._hosts)
        widest = max([len(host.gpus) for host in hosts], default=0)
        self._cpu = np.array([host.cpu_milli for host in hosts], dtype=np.int64)
        self._memory = np.array([host.memory_mib for host in hosts], dtype=np.int64)
        #: Free thousandths. A GPU that does not exist has none.
        self._free = np.array([[*host.gpus, *[0] * (widest - len(host.gpus))] for host in hosts], dtype=np.int64)
        self._free = self._free.reshape(len(self._hosts), widest)
        self._usual = _Usual(usual, [host.model for host in hosts])
        self._scores: dict[Demand, _Scores] = {}
        #: Positions of changed hosts, in the order of changes.
        self._changes: list[int] = []

    def place(self, demand: Demand) -> Place | None:
        """Reserve the best place for a demand. Return None if no host has room."""
        _check_demand(demand)
        scores = self._current(demand)
        number = int(np.argmin(scores.losses)) if len(self._hosts) else 0
        if not len(self._hosts) or np.isinf(scores.losses[number]):
            return None
        chosen = self._chosen(demand, number, int(scores.first[number]))
        self._change(demand, number, chosen, -1)
        return Place(self._hosts[number].name, chosen)

    def release(self, demand: Demand, place: Place) -> None:
        """Free the place of an ended workload."""
        number = next(n for n, host in enumerate(self._hosts) if host.name == place.host)
        self._change(demand, number, place.gpus, 1)

    def why_not(self, demand: Demand) -> str:
        """Return why no host has room for a demand, and the fix."""
        models = np.array([not demand.models or host.model in demand.models for host in self._hosts], dtype=bool)
        if not models.any():
            return "no host has a GPU of the models %s. Allow another model." % ", ".join(demand.models)
        large = models & np.array([len(host.gpus) >= demand.gpus for host in self._hosts])
        if not large.any():
            most = max(len(host.gpus) for host, able in zip(self._hosts, models) if able)
            return "it needs %d GPUs of one host, which has at most %d. Reduce the GPUs." % (demand.gpus, most)
        room = large & ((self._free >= demand.thousandths).sum(axis=1) >= demand.gpus)
        if not room.any():
            return "none of %d hosts has room on its GPUs. Add GPUs, or wait until a workload ends." % int(large.sum())
        return "%d of %d hosts have room on their GPUs, but %s. Reduce the request, or add hosts." % (
            int(room.sum()),
            int(large.sum()),
            "at most %s free cores, and at most %d MiB of free memory, or not both"
            % (format(int(self._cpu[room].max()) / 1000, "g"), int(self._memory[room].max())),
        )

    def _current(self, demand: Demand) -> _Scores:
        """Return all hosts' losses. Computes only the values of changed hosts."""
        scores = self._scores.get(demand)
        if scores is None:
            scores = self._scores[demand] = _Scores(len(self._hosts))
            stale = np.arange(len(self._hosts))
        else:
            stale = np.unique(np.array(self._changes[scores.seen :], dtype=np.int64))
        scores.seen = len(self._changes)
        if len(stale):
            scores.losses[stale], scores.first[stale] = self._rated(demand, stale)
        return scores

    def _rated(self, demand: Demand, hosts: Any) -> tuple[Any, Any]:
        """Return (loss of each of these hosts, the first GPU that the demand gets or -1)."""
        cpu, memory, free = (
            self._cpu[hosts] - demand.cpu_milli,
            self._memory[hosts] - demand.memory_mib,
            self._free[hosts],
        )
        losses, first = np.full(len(hosts), np.inf), np.full(len(hosts), -1)
        able = (cpu >= 0) & (memory >= 0) & ((free >= demand.thousandths).sum(axis=1) >= demand.gpus)
        if demand.models:
            able &= np.array([self._hosts[number].model in demand.models for number in hosts])
        before = np.zeros(len(hosts))
        if self._usual:
            before[able] = self._usual.lost(hosts[able], self._cpu[hosts[able]], self._memory[hosts[able]], free[able])
        for gpu in range(free.shape[1]) if demand.gpus == 1 else (-1,):
            here = able.copy()
            if gpu >= 0:
                here &= (free[:, gpu] >= demand.thousandths) & ~(free[:, :gpu] == free[:, gpu : gpu + 1]).any(axis=1)
            at = np.flatnonzero(here)
            if not len(at):
                continue
            after = free[at].copy()
            tie: Any = 0
            if gpu >= 0:
                after[:, gpu] -= demand.thousandths
                tie = FULLEST * after[:, gpu]
            elif demand.gpus:
                after -= demand.thousandths * _fullest(after, demand)
            loss = self._usual.lost(hosts[at], cpu[at], memory[at], after) - before[at] + tie
            better = loss < losses[at]
            losses[at[better]], first[at[better]] = loss[better], gpu
        return losses, first

    def _chosen(self, demand: Demand, number: int, first: int) -> tuple[int, ...]:
        if first >= 0:
            return (first,)
        if not demand.gpus:
            return ()
        return tuple(int(gpu) for gpu in np.flatnonzero(_fullest(self._free[number : number + 1], demand)[0]))

    def _change(self, demand: Demand, number: int, gpus: Iterable[int], sign: int) -> None:
        self._cpu[number] += sign * demand.cpu_milli
        self._memory[number] += sign * demand.memory_mib
        for gpu in gpus:
            self._free[number, gpu] += sign * demand.thousandths
        self._changes.append(number)


def _fullest(free: Any, demand: Demand) -> Any:
    """Return a mask of each host's GPUs for the demand.

    These are the GPUs with the least free share that suffices.
    """
    order = np.argsort(np.where(free >= demand.thousandths, free, WHOLE + 1), axis=1, kind="stable")
    mask = np.zeros(free.shape, dtype=bool)
    np.put_along_axis(mask, order[:, : demand.gpus], True, axis=1)
    return mask


class _Usual:
    """The usual requests for GPUs, and the losses that they cause."""

    def __init__(self, usual: Mapping[Demand, int], models: Sequence[str]) -> None:
        total, count, chosen = sum(usual.values()), 0, []
        for demand, times in Counter(usual).most_common():
            if count >= USUAL_SHARE * total:
                break
            count += times
            if demand.gpus:
                chosen.append((demand, times))
        weight = sum(times for _demand, times in chosen) or 1
        self._weights = np.array([times / weight for _demand, times in chosen])
        self._cpu = np.array([demand.cpu_milli for demand, _times in chosen])
        self._memory = np.array([demand.memory_mib for demand, _times in chosen])
        self._gpus = np.array([demand.gpus for demand, _times in chosen])
        #: The different shares of GPUs, in ascending order, and the position of each request's share.
        shares = [demand.thousandths for demand, _times in chosen]
        self._shares, self._share_of = np.unique(np.array(shares, dtype=np.int64), return_inverse=True)
        self._model = np.array(
            [[not demand.models or model in demand.models for demand, _times in chosen] for model in models], dtype=bool
        ).reshape(len(models), len(chosen))
        # CPU and memory per thousandth of a GPU, over all requests, including those without a GPU.
        gpus = sum(times * demand.gpus * demand.thousandths for demand, times in usual.items())
        self._cpu_each = sum(times * demand.cpu_milli for demand, times in usual.items()) / gpus if gpus else 0
        self._memory_each = sum(times * demand.memory_mib for demand, times in usual.items()) / gpus if gpus else 0

    def __bool__(self) -> bool:
        return bool(len(self._weights))

    def lost(self, hosts: Any, cpu: Any, memory: Any, free: Any) -> Any:
        """Return each host's loss, in thousandths of a GPU.

        Without usual requests, this is its free share.
        """
        total = free.sum(axis=1)
        usable = total.astype(float)
        for amounts, each in ((cpu, self._cpu_each), (memory, self._memory_each)):
            if each:
                usable = np.minimum(usable, amounts / each)
        if not self:
            return total.astype(float)
        fits = free[:, None, :] >= self._shares[None, :, None]
        able = fits.sum(axis=2)[:, self._share_of] >= self._gpus
        able &= (cpu[:, None] >= self._cpu) & (memory[:, None] >= self._memory) & self._model[hosts]
        used = (fits * free[:, None, :]).sum(axis=2)[:, self._share_of]
        return (total - (used * able) @ self._weights) + STRANDED * (total - usable)


def _check(hosts: Sequence[Host]) -> None:
    names = Counter(host.name for host in hosts)
    for host in hosts:
        if names[host.name] > 1:
            raise PackingError("host %s" % host.name, "it is listed twice", "List it once.")
        if min(host.cpu_milli, host.memory_mib) < 0 or not all(0 <= free <= WHOLE for free in host.gpus):
            raise PackingError(
                "host %s" % host.name,
                "its free CPU, memory or GPU shares are out of range",
                "Give 0 or more, and 0 to %d thousandths of each GPU." % WHOLE,
            )


def _check_demand(demand: Demand) -> None:
    amounts = (demand.cpu_milli, demand.memory_mib, demand.gpus)
    if min(amounts) < 0 or not 0 < demand.thousandths <= WHOLE:
        raise PackingError(
            "request for %s" % demand, "an amount is out of range", "Give 0 or more, and 1 to %d thousandths." % WHOLE
        )
