/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: see turnstile.h.
 */
#include "turnstile.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t turnstile_wall(int64_t busy, unsigned percent)
{
	percent = percent == 0 ? 1 : percent > 100 ? 100 : percent;
	busy = earlier(later(busy, -DEBT_MAX_NS), DEBT_MAX_NS);
	return busy * 100 / percent;
}

int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most)
{
	int64_t next = later(paid_until, asked - IDLE_CREDIT_NS) + turnstile_wall(busy, percent);
	return earlier(next, later(paid_until, now + most));
}

int64_t turnstile_resume(unsigned percent) { return earlier(turnstile_wall(RESUME_NS, percent), RESUME_MOST_NS); }

int turnstile_order(struct claim a, struct claim b)
{
	if (a.credit != b.credit) return a.credit ? 1 : -1;
	if (a.priority != b.priority) return a.priority < b.priority ? 1 : -1;
	if (a.place != b.place) return a.place < b.place ? 1 : -1;
	return 0;
}

uint32_t turnstile_place(const char *tenant, int64_t now)
{
	uint64_t slot = (uint64_t)now / QUANTUM_NS, hash = UINT64_C(14695981039346656037) ^ (slot >> 1);
	for (int i = 0; i < TURNSTILE_TENANT && tenant[i]; i++) hash = (hash ^ (unsigned char)tenant[i]) * UINT64_C(1099511628211);
	hash ^= hash >> 29;
	hash *= UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(hash >> 32) ^ (slot & 1 ? UINT32_MAX : 0);
}

bool turnstile_before(struct claim a, struct claim b)
{
	int order = turnstile_order(a, b);
	return order ? order > 0 : a.paid_until < b.paid_until;
}

bool turnstile_adopt(struct turnstile_file *t)
{
	if (atomic_load(&t->magic) == 0) {
		/* Several processes may do this at once: all write the same. */
		atomic_store(&t->version, TURNSTILE_VERSION);
		atomic_store(&t->size, sizeof *t);
		atomic_store(&t->magic, TURNSTILE_MAGIC);
	}
	return atomic_load(&t->magic) == TURNSTILE_MAGIC && atomic_load(&t->version) == TURNSTILE_VERSION &&
		atomic_load(&t->size) == sizeof *t;
}

/* --- words of seats, bounded --- */

void turnstile_show(struct seat *s, struct terms terms)
{
	/* Looked at often and seldom changed: a store would take the cache line from all others. */
	if (atomic_load(&s->percent) != terms.percent) atomic_store(&s->percent, terms.percent);
	if (atomic_load(&s->policy) != terms.policy) atomic_store(&s->policy, terms.policy);
	if (atomic_load(&s->priority) != terms.priority) atomic_store(&s->priority, terms.priority);
}

static int64_t believable_debt(int64_t paid_until, int64_t now)
{
	return paid_until > now + DEBT_MAX_NS + SKEW_NS ? now : later(paid_until, 0);
}

int64_t turnstile_paid(const struct seat *s, int64_t now) { return believable_debt(atomic_load(&s->paid_until), now); }

static bool is_ahead(const _Atomic int64_t *word, int64_t now, int64_t most)
{
	int64_t until = atomic_load_explicit(word, memory_order_relaxed);
	return until > now && until <= most + SKEW_NS;
}

/* Who owes says that it will want the GPU again when it has paid. */
static int64_t active_at_most(const struct seat *s, int64_t now)
{
	return later(now, turnstile_paid(s, now) + RESUME_MOST_NS) + ACTIVE_NS;
}

bool turnstile_is_active(const struct seat *s, int64_t now)
{
	return atomic_load_explicit(&s->active_until, memory_order_relaxed) > now
		&& is_ahead(&s->active_until, now, active_at_most(s, now));
}

bool turnstile_is_waiting(const struct seat *s, int64_t now) { return is_ahead(&s->waiting_until, now, now + GRACE_NS); }

bool turnstile_is_overdue(const struct seat *s, int64_t now)
{
	int64_t due = atomic_load_explicit(&s->due, memory_order_relaxed);
	return due > now - OVERDUE_MOST_NS && due < now - OVERDUE_NS;
}

bool turnstile_is_working(const struct seat *s, int64_t now)
{
	int64_t due = atomic_load_explicit(&s->due, memory_order_relaxed);
	return due > now && due < now + OVERDUE_MOST_NS;
}

static void raise_to(_Atomic int64_t *word, int64_t value, int64_t most)
{
	int64_t old = atomic_load_explicit(word, memory_order_relaxed);
	if (old < value || old > most + SKEW_NS) atomic_store_explicit(word, value, memory_order_relaxed);
}

void turnstile_set_active(struct seat *s, int64_t now, int64_t until)
{
	raise_to(&s->active_until, until, later(until, active_at_most(s, now)));
}

void turnstile_set_waiting(struct seat *s, int64_t now, int64_t until) { raise_to(&s->waiting_until, until, now + GRACE_NS); }

int64_t turnstile_limit_debt(struct seat *s, int64_t now, int64_t most)
{
	int64_t old = atomic_load(&s->paid_until), paid;
	do {
		paid = earlier(believable_debt(old, now), most);
		if (old <= paid) return later(old, 0);
	} while (!atomic_compare_exchange_weak(&s->paid_until, &old, paid));
	return paid;
}

int64_t turnstile_most_debt(struct terms terms) { return terms.policy == POLICY_BURST ? BORROW_MAX_NS : DEBT_MAX_NS; }

void turnstile_spend(struct seat *s, struct terms terms, int64_t asked, int64_t now, int64_t busy)
{
	int64_t old = atomic_load(&s->paid_until), new;
	do
		new = turnstile_charge(believable_debt(old, now), asked, now, busy, terms.percent, turnstile_most_debt(terms));
	while (!atomic_compare_exchange_weak(&s->paid_until, &old, new));
}

/* --- a seat among the others --- */

static const char *tenant_of(const struct turnstile *t, int seat)
{
	return t->terms ? t->terms->seats[seat].tenant : t->seats[seat]->tenant;
}

void turnstile_count(struct turnstile *t)
{
	int count = TURNSTILE_SEATS;
	while (count > 0 && !(t->seats[count - 1] && tenant_of(t, count - 1)[0])) count--;
	t->count = count;
}

/* Another's seat, and nothing speaks against it. */
static bool counts(const struct turnstile *t, int seat, int own, int64_t now)
{
	return seat != own && t->seats[seat] && now >= t->doubts[seat].until_ns;
}

struct terms turnstile_terms(const struct turnstile *t, int seat)
{
	const struct seat *s = t->seats[seat];
	struct terms terms = {atomic_load(&s->percent), atomic_load(&s->policy), atomic_load(&s->priority)};
	if (t->terms)
		terms = (struct terms){atomic_load(&t->terms->seats[seat].percent), atomic_load(&t->terms->seats[seat].policy),
			atomic_load(&t->terms->seats[seat].priority)};
	if (terms.percent < 1 || terms.percent > 100) terms.percent = 1;
	if (terms.policy > POLICY_BURST) terms.policy = POLICY_FIXED;
	if (terms.priority == INT32_MIN) terms.priority = INT32_MAX; /* no quota can say it */
	return terms;
}

bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now)
{
	uint32_t place = turnstile_place(tenant_of(t, seat), now);
	for (int i = 0; i < t->count; i++)
		if (counts(t, i, seat, now) && turnstile_is_active(t->seats[i], now) && turnstile_place(tenant_of(t, i), now) < place)
			return false;
	return true;
}

struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds)
{
	const struct seat *s = t->seats[seat];
	int64_t paid_until = turnstile_paid(s, now) - earlier(later(atomic_load(&s->lead), 0), LEAD_MAX_NS);
	int64_t needs = !holds && terms.policy == POLICY_BURST ? turnstile_resume(terms.percent) : 0;
	return (struct claim){paid_until + needs <= now, terms.priority, paid_until, turnstile_place(tenant_of(t, seat), now)};
}

int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival)
{
	int found = -1;
	for (int i = 0; i < t->count; i++) {
		if (!counts(t, i, seat, now) || !turnstile_is_waiting(t->seats[i], now)) continue;
		struct claim claim = turnstile_claim(t, i, turnstile_terms(t, i), now, false);
		if (found >= 0 && !turnstile_before(claim, *rival)) continue;
		*rival = claim;
		found = i;
	}
	return found;
}

bool turnstile_contended(const struct turnstile *t, int seat, int64_t now)
{
	for (int i = 0; i < t->count; i++)
		if (counts(t, i, seat, now) && turnstile_is_active(t->seats[i], now)) return true;
	return false;
}

uint64_t turnstile_passes(const struct turnstile *t)
{
	uint64_t sum = 0;
	for (int i = 0; i < t->count; i++)
		if (t->seats[i]) sum += atomic_load_explicit(&t->seats[i]->passes, memory_order_relaxed);
	return sum;
}

/* --- the lease --- */

#define MICROSECONDS ((UINT64_C(1) << 48) - 1)

static uint64_t lease_word(unsigned process, int64_t now, int64_t until)
{
	return (uint64_t)process << 48 | ((uint64_t)(earlier(until, now + LEASE_MAX_NS) / 1000) & MICROSECONDS);
}

static int64_t lease_end(uint64_t word) { return (int64_t)(word & MICROSECONDS) * 1000; }

static unsigned lease_process(uint64_t word, int64_t now)
{
	/* One that ends in the far future was written by a broken hand, or before the clock was reset. */
	return lease_end(word) > now && lease_end(word) <= now + LEASE_MAX_NS + SKEW_NS ? (unsigned)(word >> 48) : 0;
}

/* A futex has 32 bits. The upper half of a lease changes with its process, and so when it is given back; the lower one with
 * each renewal too. */
static const void *naming_half(const _Atomic uint64_t *lease)
{
	return (const char *)lease + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 4 : 0);
}

unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now)
{
	uint64_t word = atomic_load(&t->seats[seat]->lease);
	return word == t->doubts[seat].dead ? 0 : lease_process(word, now);
}

unsigned turnstile_last_process(const struct turnstile *t, int seat)
{
	return (unsigned)(atomic_load_explicit(&t->seats[seat]->lease, memory_order_relaxed) >> 48);
}

int turnstile_holder(const struct turnstile *t, int except, int64_t now)
{
	for (int i = 0; i < t->count; i++)
		if (counts(t, i, except, now) && turnstile_process(t, i, now)) return i;
	return -1;
}

bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease);
	unsigned sibling = old == t->doubts[seat].dead ? 0 : lease_process(old, now);
	if ((sibling != 0 && sibling != process) || turnstile_holder(t, seat, now) >= 0) return false;
	if (!atomic_compare_exchange_strong(lease, &old, lease_word(process, now, until))) return false;
	atomic_store(&t->seats[seat]->lease_since, now);
	if (turnstile_holder(t, seat, now) < 0) return true;
	turnstile_give(t, seat, process);
	return false;
}

bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease), new = lease_word(process, now, until);
	if (old >> 48 != process) return false;
	if (lease_process(old, now + LEASE_EDGE_NS) != process) return turnstile_take(t, seat, process, now, until);
	if (old >= new) return true;
	return atomic_compare_exchange_strong(lease, &old, new);
}

void turnstile_give(struct turnstile *t, int seat, unsigned process)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease);
	if (old >> 48 != process || !atomic_compare_exchange_strong(lease, &old, 0)) return;
	int error = errno;
	syscall(SYS_futex, naming_half(lease), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = error;
}

bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now)
{
	int64_t since = atomic_load(&t->seats[seat]->lease_since);
	for (int i = 0; i < t->count; i++) {
		if (!counts(t, i, seat, now) || !turnstile_process(t, i, now)) continue;
		int64_t others = atomic_load(&t->seats[i]->lease_since);
		if (others < since || (others == since && i < seat)) return true;
	}
	return false;
}

void turnstile_bury(struct turnstile *t, int seat, unsigned process)
{
	uint64_t word = atomic_load(&t->seats[seat]->lease);
	if (word >> 48 == process) t->doubts[seat].dead = word;
}

/* --- waiting for a lease --- */

struct watch turnstile_watch(const struct turnstile *t, int seat)
{
	const _Atomic uint64_t *lease = &t->seats[seat]->lease;
	return (struct watch){naming_half(lease), (uint32_t)(atomic_load(lease) >> 32)};
}

int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most)
{
	return later(1000, earlier(most, lease_end(atomic_load(&t->seats[seat]->lease)) + 1000 - now));
}

/* The word may be a neighbour's, which this process can only read: the kernel waits for such words too. The neighbour may
 * wake nobody, or wake all the time, or write other values. None of that is trusted: a sleep ends after WATCH_NS at the latest,
 * who is woken looks at the lease as at any other time, and who was woken for nothing, or could not sleep, naps next. */
enum watched turnstile_sleep(struct watch watch, int64_t ns)
{
	int error = errno;
	struct timespec time = {0, (long)earlier(ns, WATCH_NS)};
	enum watched result = WATCHED_GIVEN;
	if (syscall(SYS_futex, watch.half, FUTEX_WAIT, watch.value, &time, NULL, 0) != 0)
		result = errno == ETIMEDOUT || errno == EINTR ? WATCHED_LONG : WATCHED_NOT;
	errno = error;
	return result;
}

/* --- doubts --- */

static int64_t since_last_look(struct turnstile *t, int64_t now)
{
	int64_t gap = now - t->waited_ns;
	t->waited_ns = now;
	return gap > 0 && gap <= DOUBT_GAP_NS ? gap : 0;
}

/* For how long a tenant may have the GPU while another of this priority waits with credit: a lease and a turn, and where it is
 * the more urgent one also as long as what it can have saved lasts. */
static int64_t turn_at_most(struct terms terms, int32_t priority)
{
	int64_t saved = IDLE_CREDIT_NS * terms.percent / (terms.percent < 100 ? 100 - terms.percent : 1);
	return LEASE_MAX_NS + QUANTUM_NS + (terms.priority < priority ? saved : 0);
}

void turnstile_waits_for(struct turnstile *t, int seat, int other, struct claim own, int64_t now)
{
	struct doubt *d = &t->doubts[other];
	struct terms terms = turnstile_terms(t, other);
	int64_t gap = since_last_look(t, now);
	/* More urgent tenants may keep this one waiting turn by turn, the others for one turn each. */
	if (t->holder != other + 1 && terms.priority < own.priority) d->waited_ns = 0;
	t->holder = other + 1;
	t->yielded_ns = 0;
	if (other == seat || !own.credit) return;
	d->waited_ns += gap;
	if (d->waited_ns <= turn_at_most(terms, own.priority)) return;
	d->until_ns = now + DOUBT_NS;
	d->waited_ns = 0;
}

/* Whether some tenant's lease is believed by others and not here. */
static bool leaves_out_any(const struct turnstile *t, int64_t now)
{
	for (int i = 0; i < t->count; i++) {
		const struct doubt *d = &t->doubts[i];
		if (t->seats[i] && (now < d->until_ns || (d->dead && atomic_load(&t->seats[i]->lease) == d->dead))) return true;
	}
	return false;
}

bool turnstile_yields_to(struct turnstile *t, int other, int64_t now)
{
	t->yielded_ns += since_last_look(t, now);
	t->holder = 0;
	if (t->yielded_ns <= QUANTUM_NS) return true;
	t->yielded_ns = 0;
	/* One that waits for a tenant which is left out here is not to blame. */
	if (!leaves_out_any(t, now)) t->doubts[other].until_ns = now + DOUBT_NS;
	return false;
}

void turnstile_had_turn(struct turnstile *t, int64_t now)
{
	t->holder = 0;
	t->yielded_ns = 0;
	/* What takes the lease away each time is not settled by another turn. */
	if (t->lost_ns && now - t->lost_ns < LEASE_MAX_NS) return;
	for (int i = 0; i < TURNSTILE_SEATS; i++) t->doubts[i].waited_ns = 0;
}
