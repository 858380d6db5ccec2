/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The table and the JSON of vgpu-top.
 */
#include "top/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/turnstile.h"

static char *page;
static size_t page_size, page_room;

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *format, ...)
{
	va_list arguments;
	if (page_room - page_size < 4096) {
		char *more = realloc(page, page_room += 65536);
		if (!more)
			exit(1);
		page = more;
	}
	va_start(arguments, format);
	int length = vsnprintf(page + page_size, page_room - page_size, format, arguments);
	va_end(arguments);
	if (length > 0)
		page_size += (size_t)length < page_room - page_size ? (size_t)length : page_room - page_size - 1;
}

static const char *bytes(char to[16], uint64_t n)
{
	const char *units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double value = (double)n;
	int unit = 0;
	for (; value >= 1000 && unit < 4; unit++)
		value /= 1024;
	snprintf(to, 16, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return to;
}

static const char *policy(const struct quota *quota)
{
	static const char *const names[] = { [POLICY_FIXED] = "fixed", [POLICY_CONTENDED] = "contended", [POLICY_BURST] = "burst",
		[POLICY_COLOCATE] = "colocate" };
	return names[quota->policy];
}

/* Return the policy, or the latency of a tenant with the policy `colocate`. */
static const char *policy_column(const struct quota *quota)
{
	if (quota->policy != POLICY_COLOCATE)
		return policy(quota);
	return quota->priority == 0 ? "online" : "offline";
}

static void put_gpu(const struct top_tenant *tenant, int i)
{
	const struct quota_gpu *quota = &tenant->quota.gpus[i];
	const struct top_gpu *gpu = &tenant->gpus[i];
	char used[16], limit[16], peak[16], actual[16] = "-", throttled[16] = "-";
	if (gpu->actual_percent >= 0 && quota->sm_percent < 100)
		snprintf(actual, sizeof actual, "%.1f%%", gpu->actual_percent);
	if (gpu->seated)
		snprintf(throttled, sizeof throttled, "%.1f s", (double)gpu->throttled_ns / 1e9);
	put("%-20.20s %-12.12s %11s %11s %11s %7llu %5d%% %6s %10s  %-9s %4d %5d\n", i ? "" : tenant->name, quota->name,
	    bytes(used, gpu->used), quota->memory_bytes ? bytes(limit, quota->memory_bytes) : "-", bytes(peak, gpu->peak),
	    (unsigned long long)gpu->refused, quota->sm_percent, actual, throttled, policy_column(&tenant->quota),
	    tenant->quota.priority, tenant->process_count);
}

/* A running kernel is not interrupted, so the length of offline kernels bounds how long online work waits. */
static void put_waits(const struct top_tenant *tenant, const struct top_gpu *gpu)
{
	if (tenant->quota.policy != POLICY_COLOCATE || !gpu->seated)
		return;
	if (tenant->quota.priority != 0)
		put("  pauses for online tenants: %llu\n", (unsigned long long)gpu->gave_way);
	else if (gpu->waits)
		put("  waits for the rest of an offline kernel: %llu, %.1f ms on average, longer than 20 ms: %llu\n",
		    (unsigned long long)gpu->waits, (double)gpu->waits_ns / (double)gpu->waits / 1e6,
		    (unsigned long long)gpu->late);
	else
		put("  has not waited for offline kernels\n");
}

static void put_processes(const struct top_tenant *tenant)
{
	for (int i = 0; i < tenant->process_count; i++) {
		const struct top_process *process = &tenant->processes[i];
		char used[16];
		uint64_t sum = 0;
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++)
			sum += process->used[gpu];
		put("  %9lld%s %-21s %11s\n", (long long)(process->pid ? process->pid : process->own_pid), process->pid ? " " : "*",
		    process->name, bytes(used, sum));
	}
}

void print_table(const struct top *top, const char *root, bool processes)
{
	if (!top->tenant_count) {
		put("No tenants on this host: %s/etc/openfleet-gpu/vgpu has no folders.\n"
		    "Add tenants to gpu_layout, in an entry with `sharing: vgpu`.\n", root);
		return;
	}
	put("%-20s %-12s %11s %11s %11s %7s %6s %6s %10s  %-9s %4s %5s\n", "TENANT", "GPU", "USED", "QUOTA", "PEAK", "REFUSED",
	    "SHARE", "ACTUAL", "THROTTLED", "POLICY", "PRIO", "PROCS");
	for (int i = 0; i < top->tenant_count; i++) {
		const struct top_tenant *tenant = &top->tenants[i];
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++)
			put_gpu(tenant, gpu);
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++)
			put_waits(tenant, &tenant->gpus[gpu]);
		if (!tenant->quota.gpu_count)
			put("%-20.20s %s\n", tenant->name, tenant->has_quota ? "has no GPU" : "");
		if (tenant->problem[0])
			put("  ! %s\n", tenant->problem);
		if (processes)
			put_processes(tenant);
	}
}

/* --- JSON --- */

static void put_string(const char *text)
{
	put("\"");
	for (const unsigned char *c = (const unsigned char *)text; *c; c++)
		if (*c == '"' || *c == '\\')
			put("\\%c", *c);
		else if (*c < 0x20 || *c >= 0x7f)
			put("\\u%04x", *c);
		else
			put("%c", *c);
	put("\"");
}

static void put_json_tenant(const struct top_tenant *tenant)
{
	put("{\"name\": ");
	put_string(tenant->name);
	put(", \"problem\": ");
	tenant->problem[0] ? put_string(tenant->problem) : put("null");
	put(", \"policy\": \"%s\", \"priority\": %d, \"gpus\": [", policy(&tenant->quota), tenant->quota.priority);
	for (int i = 0; i < tenant->quota.gpu_count; i++) {
		const struct quota_gpu *quota = &tenant->quota.gpus[i];
		const struct top_gpu *gpu = &tenant->gpus[i];
		put("%s{\"uuid\": ", i ? ", " : "");
		put_string(quota->name);
		put(", \"used_bytes\": %llu, \"quota_bytes\": %llu, \"peak_bytes\": %llu, \"refused\": %llu, \"sm_percent\": %d",
		    (unsigned long long)gpu->used, (unsigned long long)quota->memory_bytes, (unsigned long long)gpu->peak,
		    (unsigned long long)gpu->refused, quota->sm_percent);
		gpu->actual_percent >= 0 && quota->sm_percent < 100 ? put(", \"actual_percent\": %.2f", gpu->actual_percent)
								    : put(", \"actual_percent\": null");
		gpu->seated ? put(", \"busy_seconds\": %.6f, \"throttled_seconds\": %.6f", (double)gpu->busy_ns / 1e9,
				  (double)gpu->throttled_ns / 1e9)
			    : put(", \"busy_seconds\": null, \"throttled_seconds\": null");
		if (tenant->quota.policy == POLICY_COLOCATE && gpu->seated)
			put(", \"gave_way\": %llu, \"waits\": %llu, \"waits_seconds\": %.6f, \"late\": %llu",
			    (unsigned long long)gpu->gave_way, (unsigned long long)gpu->waits, (double)gpu->waits_ns / 1e9,
			    (unsigned long long)gpu->late);
		put("}");
	}
	put("], \"processes\": [");
	for (int i = 0; i < tenant->process_count; i++) {
		const struct top_process *process = &tenant->processes[i];
		put("%s{\"pid\": ", i ? ", " : "");
		process->pid ? put("%lld", (long long)process->pid) : put("null");
		put(", \"own_pid\": %lld, \"name\": ", (long long)process->own_pid);
		put_string(process->name);
		put(", \"used_bytes\": [");
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++)
			put("%s%llu", gpu ? ", " : "", (unsigned long long)process->used[gpu]);
		put("]}");
	}
	put("]}");
}

void print_json(const struct top *top)
{
	put("{\"version\": 1, \"tenants\": [");
	for (int i = 0; i < top->tenant_count; i++) {
		put("%s\n  ", i ? "," : "");
		put_json_tenant(&top->tenants[i]);
	}
	put("%s]}\n", top->tenant_count ? "\n" : "");
}

/* --- the page --- */

void print_again(void) { page_size = 0; }

const char *printed(size_t *size)
{
	*size = page_size;
	return page;
}
