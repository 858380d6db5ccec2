/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "dump.h"

#include "fault.h"
#include "health.h"
#include "keys.h"
#include "mig.h"
#include "process.h"
#include "telemetry.h"

static void string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			fprintf(out, "\\u%04x", *text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

static void integer(FILE *out, int64_t value)
{
	if (value == UNKNOWN)
		fputs("null", out);
	else
		fprintf(out, "%lld", (long long)value);
}

static void span(FILE *out, span_t at)
{
	fprintf(out, "{\"start\": %d, \"size\": %d}", at.start, at.size);
}

static void peers(FILE *out, const int32_t *links, int64_t count)
{
	fputc('[', out);
	for (int i = 0; i < count; i++) {
		fputs(i ? ", " : "", out);
		if (links[i] == PEER_SWITCH)
			fputs("\"switch\"", out);
		else
			integer(out, links[i]);
	}
	fputc(']', out);
}

static void clocks(FILE *out, const clock_ranges_t *ranges)
{
	fputc('[', out);
	for (int i = 0; i < ranges->count; i++)
		fprintf(out, "%s{\"memory\": %d, \"graphics\": [%d, %d]}", i ? ", " : "", ranges->at[i].memory_mhz,
		        ranges->at[i].lowest_mhz, ranges->at[i].highest_mhz);
	fputc(']', out);
}

/* Writes the configured members of an object, without the braces. */
static void members(FILE *out, const section_t *section, const void *object)
{
	for (size_t i = 0; i < section->count; i++) {
		const config_key_t *key = &section->keys[i];
		const char *member = (const char *)object + key->offset;
		fprintf(out, "%s\"%s\": ", i ? ", " : "", key->name);
		if (key->kind == KEY_INTEGER) {
			integer(out, *(const int64_t *)member);
		} else if (key->kind == KEY_TEXT) {
			string(out, member);
		} else if (key->kind == KEY_PEERS) {
			peers(out, (const int32_t *)member, ((const gpu_t *)object)->nvlink_links);
		} else if (key->kind == KEY_CLOCKS) {
			clocks(out, (const clock_ranges_t *)member);
		} else {
			const spans_t *spans = (const spans_t *)member;
			fputc('[', out);
			for (int n = 0; n < spans->count; n++) {
				fputs(n ? ", " : "", out);
				span(out, spans->at[n]);
			}
			fputc(']', out);
		}
	}
}

static const char *compute_mode(int64_t mode)
{
	static const char *const names[] = { "DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS" };
	return names[mode];
}

static void load(FILE *out, const host_t *host, const load_t *load)
{
	static const char *const names[] = { "none", "constant", "square", "sine", "samples" };
	if (load->pattern == LOAD_NONE) {
		fputs("null", out);
		return;
	}
	int64_t now = load_now_ns();
	level_t level = load_level(host, load, now);
	fprintf(out, "{\"pattern\": \"%s\", \"age_seconds\": %.3f, \"%s\": %.3f, \"utilization_percent\": %.1f, \"memory_mib\": %lld",
	        names[load->pattern], (now - load->since_ns) / 1e9,
	        load->pattern == LOAD_SAMPLES ? "interval_seconds" : "period_seconds", load->period_ns / 1e9,
	        level.utilization_percent, (long long)level.memory_mib);
	if (load->pattern == LOAD_SAMPLES)
		fprintf(out, ", \"samples\": %d", load->sample_count);
	else
		fprintf(out, ", \"utilization_high_percent\": %g, \"utilization_low_percent\": %g, \"memory_high_mib\": %d, \"memory_low_mib\": %d",
		        load->high.utilization_percent, load->low.utilization_percent, load->high.memory_mib, load->low.memory_mib);
	fputs(", \"power_mw\": ", out);
	integer(out, (int64_t)level.power_mw);
	fputc('}', out);
}

static void compute_instances(FILE *out, const gpu_t *gpu, const gi_t *gi, int *mig_index)
{
	const char *comma = "";
	fputc('[', out);
	for (int i = 0; i < MAX_CIS; i++) {
		const ci_t *ci = &gi->cis[i];
		if (!ci->serial)
			continue;
		const ci_profile_t *profile = &gpu->ci_profiles[ci->profile];
		fprintf(out, "%s{\"id\": %d, \"profile_id\": %d, \"slices\": %d, \"placement\": ", comma, i, (int)profile->id, (int)profile->slices);
		span(out, ci->placement);
		fprintf(out, ", \"uuid\": \"%s\", \"mig_index\": %d, \"compute_mode\": \"%s\"}", ci->uuid, (*mig_index)++,
		        compute_mode(ci->compute_mode));
		comma = ", ";
	}
	fputc(']', out);
}

static void gpu_instances(FILE *out, const host_t *host, const gpu_t *gpu)
{
	const char *comma = "";
	int mig_index = 0;
	fputc('[', out);
	for (int i = 0; i < MAX_GIS; i++) {
		const gi_t *gi = &gpu->gis[i];
		if (!gi->serial)
			continue;
		const gi_profile_t *profile = &gpu->gi_profiles[gi->profile];
		fprintf(out, "%s{\"id\": %d, \"profile_id\": %d, \"profile\": ", comma, i, (int)profile->id);
		string(out, profile->name);
		fputs(", \"placement\": ", out);
		span(out, gi->placement);
		fprintf(out, ", \"memory_mib\": %lld, \"load\": ", (long long)profile->memory_mib);
		load(out, host, &gi->load);
		fputs(", \"compute_instances\": ", out);
		compute_instances(out, gpu, gi, &mig_index);
		fputc('}', out);
		comma = ", ";
	}
	fputc(']', out);
}

static void health(FILE *out, const gpu_t *gpu)
{
	const health_t *h = &gpu->health;
	char names[128];
	health_throttle_names(h->throttle, names);
	fprintf(out, "{\"throttle\": \"%s\", \"temperature_c\": %d, \"ecc_corrected\": %lld, \"ecc_uncorrected\": %lld, "
	        "\"remapped_rows_correctable\": %d, \"remapped_rows_uncorrectable\": %d, \"remap_pending\": %d, \"remap_failed\": %d}",
	        names, (int)h->temperature_c, (long long)h->ecc[0].volatile_count, (long long)h->ecc[1].volatile_count,
	        (int)h->remapped_correctable, (int)h->remapped_uncorrectable, (int)h->remap_pending, (int)h->remap_failed);
}

static void gpu(FILE *out, const host_t *host, int index)
{
	const gpu_t *gpu = &host->gpus[index];
	target_t on = { .gpu = (gpu_t *)gpu, .gpu_index = index };
	telemetry_t now = telemetry_of(host, index);
	framebuffer_t memory = telemetry_framebuffer(host, &on);
	fprintf(out, "{\"index\": %d, ", index);
	members(out, &SECTION_GPU, gpu);
	fputs(", \"profiles\": [", out);
	for (int i = 0; i < gpu->gi_profile_count; i++) {
		fputs(i ? ", {" : "{", out);
		members(out, &SECTION_GI_PROFILE, &gpu->gi_profiles[i]);
		fputc('}', out);
	}
	fputs("], \"compute_profiles\": [", out);
	for (int i = 0; i < gpu->ci_profile_count; i++) {
		fputs(i ? ", {" : "{", out);
		members(out, &SECTION_CI_PROFILE, &gpu->ci_profiles[i]);
		fputc('}', out);
	}
	fprintf(out, "], \"mig\": {\"current\": %d, \"pending\": %d}, \"compute_mode\": \"%s\", \"timeslice\": %d, \"persistence_mode\": %d, \"lost\": %d, ",
	        (int)gpu->mig_current, (int)gpu->mig_pending, compute_mode(gpu->compute_mode), (int)gpu->timeslice,
	        (int)gpu->persistence_mode, (int)gpu->lost);
	fprintf(out, "\"power_limit_mw\": %lld, \"power_mw\": %lld, \"energy_mj\": %lld, \"temperature_c\": %lld, \"utilization_percent\": %.1f, ",
	        (long long)gpu->power_limit_mw, (long long)now.power_mw, (long long)telemetry_energy_mj(host, gpu),
	        (long long)now.temperature_c, now.utilization_percent);
	fprintf(out, "\"memory\": {\"total_bytes\": %llu, \"reserved_bytes\": %llu, \"used_bytes\": %llu, \"free_bytes\": %llu}, \"load\": ",
	        (unsigned long long)memory.total, (unsigned long long)memory.reserved, (unsigned long long)memory.used,
	        (unsigned long long)memory.free);
	load(out, host, &gpu->load);
	fputs(", \"health\": ", out);
	health(out, gpu);
	fputs(", \"gpu_instances\": ", out);
	gpu_instances(out, host, gpu);
	fputc('}', out);
}

static void processes(FILE *out, const host_t *host)
{
	const char *comma = "";
	fputc('[', out);
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (!process_is_alive(p))
			continue;
		fprintf(out, "%s{\"pid\": %d, \"gpu\": %d, \"gpu_instance\": ", comma, p->pid, p->gpu);
		integer(out, p->gi);
		fputs(", \"compute_instance\": ", out);
		integer(out, p->ci);
		fprintf(out, ", \"type\": \"%s\", \"memory_bytes\": %lld}", process_type_name(p->type), (long long)p->memory_bytes);
		comma = ", ";
	}
	fputc(']', out);
}

static void events(FILE *out, const host_t *host)
{
	const char *comma = "";
	uint64_t first = host->event_count > MAX_EVENTS ? host->event_count - MAX_EVENTS : 0;
	fputc('[', out);
	for (uint64_t n = first; n < host->event_count; n++) {
		const event_t *event = &host->events[n % MAX_EVENTS];
		if (event->gpu == UNKNOWN)
			continue;
		fprintf(out, "%s{\"number\": %llu, \"xid\": %llu, \"gpu\": %d, \"gpu_instance\": ", comma, (unsigned long long)n,
		        (unsigned long long)event->data, event->gpu);
		integer(out, event->gi);
		fputs(", \"compute_instance\": ", out);
		integer(out, event->ci);
		fputc('}', out);
		comma = ", ";
	}
	fputc(']', out);
}

static void faults(FILE *out, traffic_t *traffic)
{
	const char *comma = "";
	fputc('[', out);
	for (int i = 0; traffic && i < MAX_FAULTS; i++) {
		const fault_t *fault = &traffic->faults[i];
		int32_t function = atomic_load(&fault->function);
		if (function <= 0)
			continue;
		fprintf(out, "%s{\"function\": \"%s\", ", comma, function_name(function - 1));
		if (fault->gpu != UNKNOWN)
			fprintf(out, "\"gpu\": %d, ", (int)fault->gpu);
		int32_t remaining = atomic_load(&fault->remaining);
		fprintf(out, "\"nth\": %d, ", remaining < 1 ? 1 : (int)remaining);
		if (fault->lasts)
			fputs("\"lasting\": 1, ", out);
		fputs("\"action\": ", out);
		char words[32];
		string(out, fault_action_name(fault->action, words));
		fputc('}', out);
		comma = ", ";
	}
	fputc(']', out);
}

static void calls(FILE *out, traffic_t *traffic)
{
	const char *comma = "";
	fputc('{', out);
	for (int i = 0; traffic && i < F_COUNT; i++) {
		uint32_t count = atomic_load(&traffic->calls[i]);
		if (!count)
			continue;
		fprintf(out, "%s\"%s\": %u", comma, function_name(i), count);
		comma = ", ";
	}
	fputc('}', out);
}

void dump_host(FILE *out, const host_t *host, traffic_t *traffic)
{
	fprintf(out, "{\"schema\": %d, \"boot\": ", STATE_SCHEMA);
	string(out, host->boot);
	fputs(", \"host\": {", out);
	members(out, &SECTION_HOST, host);
	fputs("}, \"gpus\": [", out);
	for (int i = 0; i < host->gpu_count; i++) {
		fputs(i ? ",\n" : "\n", out);
		gpu(out, host, i);
	}
	fputs("],\n\"processes\": ", out);
	processes(out, host);
	fputs(",\n\"events\": ", out);
	events(out, host);
	fputs(",\n\"faults\": ", out);
	faults(out, traffic);
	fputs(",\n\"calls\": ", out);
	calls(out, traffic);
	fputs("}\n", out);
}
