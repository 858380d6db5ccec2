/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "mig.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int mig_gi_profile_by_id(const gpu_t *gpu, unsigned id)
{
	for (int i = 0; i < gpu->gi_profile_count; i++)
		if (gpu->gi_profiles[i].id == id)
			return i;
	return -1;
}

int mig_ci_profile_by_id(const gpu_t *gpu, int64_t slices, unsigned id)
{
	for (int i = 0; i < gpu->ci_profile_count; i++)
		if (gpu->ci_profiles[i].gi_slices == slices && gpu->ci_profiles[i].id == id)
			return i;
	return -1;
}

int64_t mig_gi_slices(const gpu_t *gpu, const gi_t *gi)
{
	return gpu->gi_profiles[gi->profile].compute_slices;
}

/*
 * A compute instance that covers the whole GPU instance has all its SMs. A smaller compute instance has, per slice, as
 * many SMs as the smallest GPU instance, as on A100 (MIG User Guide: 14 in 1c.3g.20gb). For other models this is
 * unconfirmed, so a configuration may set the number.
 */
int64_t mig_ci_multiprocessors(const gpu_t *gpu, const gi_t *gi, const ci_profile_t *profile)
{
	if (profile->multiprocessors != UNKNOWN)
		return profile->multiprocessors;
	int64_t whole = gpu->gi_profiles[gi->profile].multiprocessors, part = whole * profile->slices / profile->gi_slices;
	for (int i = 0; i < gpu->gi_profile_count; i++)
		if (gpu->gi_profiles[i].compute_slices == 1 && gpu->gi_profiles[i].multiprocessors * profile->slices < part)
			part = gpu->gi_profiles[i].multiprocessors * profile->slices;
	return profile->slices == profile->gi_slices ? whole : part;
}

static uint64_t units(span_t at)
{
	return ((UINT64_C(1) << at.size) - 1) << at.start;
}

/* Resources that a GPU's instances use. */
typedef struct {
	uint64_t units;
	int64_t slices, engines[4];
	int instances[MAX_GI_PROFILES];
} usage_t;

/* Returns the number of media engines. Copy engines do not count, because instances share them if there are too few. */
static int64_t media_engines(const gi_profile_t *profile, int kind)
{
	const int64_t counts[] = { profile->decoders, profile->encoders, profile->jpeg, profile->ofa };
	return counts[kind];
}

static int64_t media_engines_of_gpu(const gpu_t *gpu, int kind)
{
	int64_t most = 0;
	for (int i = 0; i < gpu->gi_profile_count; i++) {
		const gi_profile_t *profile = &gpu->gi_profiles[i];
		int64_t together = media_engines(profile, kind) * profile->max_instances;
		if (together > most)
			most = together;
	}
	return most;
}

static void take(const gpu_t *gpu, usage_t *usage, int profile, span_t at)
{
	usage->units |= units(at);
	usage->slices += gpu->gi_profiles[profile].compute_slices;
	usage->instances[profile]++;
	for (int kind = 0; kind < 4; kind++)
		usage->engines[kind] += media_engines(&gpu->gi_profiles[profile], kind);
}

static usage_t usage_of(const gpu_t *gpu)
{
	usage_t usage = { 0 };
	for (int i = 0; i < MAX_GIS; i++)
		if (gpu->gis[i].serial)
			take(gpu, &usage, gpu->gis[i].profile, gpu->gis[i].placement);
	return usage;
}

static bool fits(const gpu_t *gpu, const usage_t *usage, int index, span_t at)
{
	const gi_profile_t *profile = &gpu->gi_profiles[index];
	if (usage->units & units(at) || usage->slices + profile->compute_slices > gpu->compute_slices
	    || usage->instances[index] >= profile->max_instances)
		return false;
	for (int kind = 0; kind < 4; kind++)
		if (usage->engines[kind] + media_engines(profile, kind) > media_engines_of_gpu(gpu, kind))
			return false;
	return true;
}

bool mig_gi_fits(const gpu_t *gpu, int profile, span_t at)
{
	usage_t usage = usage_of(gpu);
	return fits(gpu, &usage, profile, at);
}

/* Returns how many free placements, of all profiles, an instance at `at` would block. */
static int harm(const gpu_t *gpu, uint64_t taken, span_t at)
{
	int lost = 0;
	for (int p = 0; p < gpu->gi_profile_count; p++) {
		const spans_t *places = &gpu->gi_profiles[p].placements;
		for (int i = 0; i < places->count; i++)
			lost += !(units(places->at[i]) & taken) && units(places->at[i]) & units(at);
	}
	return lost;
}

/*
 * The driver chooses the placement that blocks the fewest other placements. If several block equally few, it chooses
 * the first. Outputs in NVIDIA's MIG User Guide suggest this rule: the driver places seven 1g instances of an A100 at
 * 6, 4, 5, 0, 1, 2, 3. It places the first 3g at 4. Creating 1g 1g 2g 3g (19,19,14,9) fails, but 3g 1g 1g 2g succeeds.
 */
int mig_gi_best_placement(const gpu_t *gpu, int profile)
{
	usage_t usage = usage_of(gpu);
	const spans_t *places = &gpu->gi_profiles[profile].placements;
	int best = -1, least = 0;
	for (int i = 0; i < places->count; i++) {
		if (!fits(gpu, &usage, profile, places->at[i]))
			continue;
		int lost = harm(gpu, usage.units, places->at[i]);
		if (best < 0 || lost < least) {
			best = i;
			least = lost;
		}
	}
	return best;
}

/* A profile's placements have the same size and ascending starts. So always taking the first one that fits leaves room
 * for the most instances. */
int mig_gi_remaining(const gpu_t *gpu, int profile)
{
	usage_t usage = usage_of(gpu);
	const spans_t *places = &gpu->gi_profiles[profile].placements;
	int count = 0;
	for (int i = 0; i < places->count; i++) {
		if (fits(gpu, &usage, profile, places->at[i])) {
			take(gpu, &usage, profile, places->at[i]);
			count++;
		}
	}
	return count;
}

/*
 * IDs number the halves, quarters and eighths of a GPU in order. The whole GPU is 0, halves are 1 and 2, quarters 3 to
 * 6, and eighths 7 to 14 (outputs in the MIG User Guide). Other placements get the lowest free ID. So does a placement
 * whose number another instance already has.
 */
static int free_gi_id(const gpu_t *gpu, span_t at)
{
	int parts = gpu->placement_units / at.size, natural = parts - 1 + at.start / at.size;
	if (gpu->placement_units % at.size == 0 && at.start % at.size == 0 && natural < MAX_GIS && !gpu->gis[natural].serial)
		return natural;
	int id = 0;
	while (gpu->gis[id].serial)
		id++;
	return id;
}

int mig_gi_create(host_t *host, gpu_t *gpu, int profile, span_t at)
{
	int id = free_gi_id(gpu, at);
	gpu->gis[id] = (gi_t){ .serial = ++host->next_serial, .profile = profile, .placement = at };
	return id;
}

static bool ci_slices_free(const gi_t *gi, span_t at)
{
	for (int i = 0; i < MAX_CIS; i++)
		if (gi->cis[i].serial && units(gi->cis[i].placement) & units(at))
			return false;
	return true;
}

static int ci_instances(const gi_t *gi, int profile)
{
	int count = 0;
	for (int i = 0; i < MAX_CIS; i++)
		count += gi->cis[i].serial && gi->cis[i].profile == profile;
	return count;
}

bool mig_ci_fits(const gpu_t *gpu, const gi_t *gi, int profile, span_t at)
{
	return ci_slices_free(gi, at) && ci_instances(gi, profile) < gpu->ci_profiles[profile].max_instances;
}

int mig_ci_first_placement(const gpu_t *gpu, const gi_t *gi, int profile)
{
	const spans_t *places = &gpu->ci_profiles[profile].placements;
	for (int i = 0; i < places->count; i++)
		if (mig_ci_fits(gpu, gi, profile, places->at[i]))
			return i;
	return -1;
}

int mig_ci_remaining(const gpu_t *gpu, const gi_t *gi, int profile)
{
	const spans_t *places = &gpu->ci_profiles[profile].placements;
	int count = 0, most = gpu->ci_profiles[profile].max_instances - ci_instances(gi, profile), end = 0;
	for (int i = 0; i < places->count && count < most; i++) {
		if (places->at[i].start >= end && ci_slices_free(gi, places->at[i])) {
			end = places->at[i].start + places->at[i].size;
			count++;
		}
	}
	return count;
}

static bool new_uuid(char out[48])
{
	unsigned char b[16];
	if (getrandom(b, sizeof b, 0) != sizeof b)
		return false;
	b[6] = (b[6] & 0x0f) | 0x50;
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(out, 48, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
	         b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return true;
}

int mig_ci_create(host_t *host, gi_t *gi, int profile, span_t at)
{
	int id = 0;
	while (gi->cis[id].serial)
		id++;
	ci_t *ci = &gi->cis[id];
	*ci = (ci_t){ .profile = profile, .placement = at };
	if (!new_uuid(ci->uuid))
		return -1;
	ci->serial = ++host->next_serial;
	return id;
}

bool mig_gi_has_compute_instances(const gi_t *gi)
{
	for (int i = 0; i < MAX_CIS; i++)
		if (gi->cis[i].serial)
			return true;
	return false;
}

bool mig_has_instances(const gpu_t *gpu)
{
	for (int i = 0; i < MAX_GIS; i++)
		if (gpu->gis[i].serial)
			return true;
	return false;
}

void mig_drop_instances(gpu_t *gpu)
{
	memset(gpu->gis, 0, sizeof gpu->gis);
}

bool mig_device_at(const gpu_t *gpu, int index, int *gi, int *ci)
{
	for (*gi = 0; *gi < MAX_GIS; ++*gi)
		for (*ci = 0; *ci < MAX_CIS; ++*ci)
			if (gpu->gis[*gi].serial && gpu->gis[*gi].cis[*ci].serial && index-- == 0)
				return true;
	return false;
}
