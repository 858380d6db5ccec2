/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How this library works, in the order in which to read it.
 *
 * It is preloaded into processes that use CUDA. It exports the names in hooks.h and so stands between
 * the program and the driver: a program gets our function where it links with the driver, asks dlsym
 * or asks cuGetProcAddress. Each of them does what it must and calls the driver's own, REAL(name).
 *
 *   hooks.h        the one list of what is intercepted and called
 *   resolve.c      dlsym and cuGetProcAddress: who gets our function, who the untouched pointer; REAL
 *   state.c        what a process keeps: one page that fork empties, so that a child begins anew
 *   identity.c     which tenant the process belongs to
 *   quota.c        the tenant's file, looked at again once a second
 *   region.c       the tenant's shared memory: what each process of it has allocated on each GPU
 *   region_lock.c  its lock, which a killed holder does not keep
 *   shared.c       opening shared files; the byte that tells the living from the dead
 *   allocations.c  the process's own tables: what each pointer and handle has cost
 *   charge.c       reserve before the driver is asked, give back when it refuses; which GPU is meant
 *   memory.c arrays.c pools.c vmm.c graphs.c   the hooks that allocate and free
 *   contexts.c     the hooks that make contexts and set their limits
 *   report.c nvml.c                    the hooks that tell free and total; what NVML says of us
 *   launch.c throttle.c turnstile.c    the hooks that launch, and the share of the SMs
 *   seat.c busy.c cover.c              a place at the turnstile; how long the GPU worked for us
 *   agent.c                            memory that the host's agent hands out
 *   front.c                            a libcuda.so.1 for containers, in front of the driver's
 *   vgpu-top.c top_read.c              a program of its own, which shows it all
 *   log.c
 *
 * Rules that hold everywhere:
 *   - A process of no tenant (identity.c) has the driver's function behind every hook and nothing else.
 *   - What has a quota and cannot be counted is refused.
 *   - Nothing happens when the library is loaded. It starts no thread, handles no signal, registers
 *     no atexit or atfork handler, keeps no descriptor open, changes no environment, and prints nothing.
 *     (A second after its first call, or before its second context, it loads NVML into a process that uses
 *     CUDA, and what NVML opens stays open.)
 *   - It never ends the process and never waits for anything but a lock that is held for microseconds.
 *   - A process may be killed at any instruction. What others then find is put right by the next of
 *     them that needs it (region.h says how).
 *   - The driver is asked first what only it knows; an error of its own is passed on as it is.
 */
#ifndef INTERNAL_H
#define INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <syslog.h>

#include "cuda_abi.h"
#include "throttle.h"

#ifndef __OPTIMIZE__
#error "dlsym here must end in a jump to the real one, which -O0 makes a call: build with -O1 or more"
#endif

#define LIKELY(condition)   __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* --- resolve.c: the real functions ------------------------------------------------------------- */

enum real {
#define HOOK(symbol, name, version, per_thread) REAL_##symbol,
#define HOOK_NVML(symbol) REAL_##symbol,
#define CALLED(symbol) REAL_##symbol,
#define CALLED_NVML(symbol) REAL_##symbol,
#include "hooks.h"
	REAL_COUNT
};

extern _Atomic(void *) vgpu_reals[REAL_COUNT];
bool vgpu_load_nvml(void);		/* false: it is not in the process and cannot be loaded */
void *vgpu_find_real(enum real);	/* NULL where the driver has no such function, or is not loaded */
void *vgpu_real_or_refusal(enum real);	/* a function that returns an error in its place */

static inline void *vgpu_real(enum real which)
{
	void *found = atomic_load_explicit(&vgpu_reals[which], memory_order_acquire);
	return LIKELY(found) ? found : vgpu_real_or_refusal(which);
}

/* The driver's (or NVML's) own function, to be called at once: REAL(cuMemFree_v2)(pointer). */
#define REAL(symbol) ((__typeof__(&symbol))vgpu_real(REAL_##symbol))
/* Whether there is one: older drivers lack some. */
#define HAVE(symbol) (vgpu_find_real(REAL_##symbol) != NULL)

/* --- quota.c: what the tenant may use ---------------------------------------------------------- */

enum { QUOTA_GPUS = 16, TENANT_NAME = 64 };

struct quota_gpu {
	CUuuid uuid;
	uint64_t memory_bytes;		/* 0: limited by somebody else, so only counted here */
	int sm_percent;			/* 100: never throttled */
	int seat;			/* in this GPU's turnstile */
	int region;			/* the GPU's place in the tenant's region, -1: none, so that nothing fits */
	char name[48];			/* GPU-..., as in the file and in the turnstile's name */
};

/* A quota is never changed: a new file makes a new one, and the old one stays readable for whoever
 * has a pointer to it. */
struct quota {
	char tenant[TENANT_NAME];	/* the name that the process has */
	char counted_as[TENANT_NAME];	/* the tenant's key: the name of its region, of its agent's folder, and on its seats */
	int policy;			/* enum policy, turnstile.h */
	int priority;
	bool managed_oversubscribed;	/* managed memory does not count */
	bool refuses_all;		/* in place of a quota that must be there and is not: no memory on any GPU */
	int gpu_count;
	struct quota_gpu gpus[QUOTA_GPUS];
};

/* The quota of this process, NULL: passive. vgpu_quota() looks at the file once a second, and then
 * also at what NVML says; vgpu_quota_now() is one load or two and does neither. Both start the
 * process's state when they are first called (also in a child of fork). */
const struct quota *vgpu_quota(void);
static inline const struct quota *vgpu_quota_now(void);

/* --- identity.c: whose process this is --- */

enum identity {
	IDENTITY_NONE,			/* no tenant's */
	IDENTITY_VARIABLE,		/* as OPENFLEET_VGPU says */
	IDENTITY_MOUNTED,		/* the one whose quota folder is mounted, as in containers */
	IDENTITY_UNCLEAR,		/* one of several that are mounted: nothing may be allocated */
};
struct state;
/* Fills in state->name and state->root. */
enum identity vgpu_identify(struct state *);

/* Index into quota->gpus, -1: not in the quota, or the thread has no context. */
int vgpu_gpu_of_device(const struct quota *, CUdevice);
int vgpu_gpu_of_current_context(const struct quota *);

/* --- state.c: what a process keeps -------------------------------------------------------------- */

/* Between the threads of a process. All zero: unlocked. */
struct mutex { _Atomic uint32_t word; };
void mutex_lock(struct mutex *);
void mutex_unlock(struct mutex *);

/* state->pools. A thread that has it may take it again: a profiler's callback (CUPTI's) runs within the driver's call, on
 * the thread that made it, and may call hooked functions. So nothing that was read before a call to the driver may be
 * relied on after it. */
struct state;
void pools_lock(struct state *);
void pools_unlock(struct state *);

/* allocations.h */
struct table {
	struct entry *entries;		/* NULL: empty */
	uint32_t capacity, count;
};
enum table_kind { T_POINTER, T_ARRAY, T_MIPMAP, T_POOL, T_HANDLE, T_BLOCK, T_MAPPING, T_GRAPH, T_CONTEXT, TABLE_COUNT };

enum { DEVICES = 64 };

/* It lies in memory of its own that is all zero at first, and again in a child of fork. */
struct state {
	_Atomic uint32_t phase;			/* PHASE_* */
	struct mutex starting;			/* held while the state is made and the quota file is read */
	_Atomic(const struct quota *) quota;	/* NULL: passive */
	_Atomic int64_t look_again_ns;		/* when to look at the file again (CLOCK_MONOTONIC_COARSE) */
	struct { uint64_t device, inode; int64_t changed_ns, size; } file;	/* the quota's, as it was read */
	bool looked;				/* for it, at least once */
	char name[TENANT_NAME];			/* of the tenant (identity.c) */
	char root[128];				/* OPENFLEET_VGPU_ROOT */
	bool mounted;				/* the quota folder is: without a quota in it everything is refused */

	struct mutex memory;			/* held with the region's lock */
	struct region *region;			/* NULL: not opened yet */
	char region_name[TENANT_NAME];		/* quota->counted_as, when the region was opened */
	uint64_t region_device, region_inode;	/* of the file that is mapped */
	bool uncounted;				/* the shared region cannot be used: what has a quota is refused */
	int slot;				/* in region->slots */
	uint32_t nonce;				/* tells this process from others that had the slot */

	struct mutex tables_lock;
	struct table tables[TABLE_COUNT];
	uint64_t last_block;

	struct pools_lock {			/* held over the driver's answer and what follows from it */
		struct mutex mutex;
		_Atomic(const char *) owner;	/* a thread, by the address of something of its own */
		unsigned depth;
	} pools;
	uint64_t graph_bytes[QUOTA_GPUS];	/* by place in the region: charged for the graphs' memory */

	/* contexts.c, by place in the region too */
	_Atomic unsigned contexts[QUOTA_GPUS];		/* made since there is a quota, and not gone */
	_Atomic uint64_t context_charged[QUOTA_GPUS];	/* what was reserved for them and for those that are being made */
	_Atomic uint64_t context_pending[QUOTA_GPUS];	/* of it for those: NVML cannot name that yet */
	_Atomic unsigned contexts_begun, contexts_ended;	/* calls that make or destroy some: equal while there is none */
	_Atomic bool has_managed;			/* memory that is counted in full, wherever it lies, or not at all */
	_Atomic unsigned learned;			/* GPUs, by place, of which NVML was asked for the cost of a context */

	/* nvml.c; one thread at a time, by `settling` */
	_Atomic bool settling;
	bool nvml_started;
	int64_t nvml_again_ns;

	_Atomic uint32_t device_known[DEVICES];
	CUuuid device_uuid[DEVICES];

	struct throttle_state throttle;		/* throttle.c alone reads and writes it */
};

enum { PHASE_NEW, PHASE_OFF, PHASE_ON };

extern _Atomic(struct state *) vgpu_state_page;
/* The process's state, made where there is none. NULL: it is no tenant's process. */
struct state *vgpu_state_start(void);

static inline struct state *vgpu_state(void)
{
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	if (LIKELY(state)) {
		uint32_t phase = atomic_load_explicit(&state->phase, memory_order_acquire);
		if (LIKELY(phase == PHASE_ON))
			return state;
		if (phase == PHASE_OFF)
			return NULL;
	}
	return vgpu_state_start();
}

static inline const struct quota *vgpu_quota_now(void)
{
	struct state *state = vgpu_state();
	return state ? atomic_load_explicit(&state->quota, memory_order_acquire) : NULL;
}

/* Whether a quota was read, now or before. */
static inline bool vgpu_has_quota(const struct state *state)
{
	const struct quota *quota = atomic_load_explicit(&state->quota, memory_order_acquire);
	return quota && !quota->refuses_all;
}

/* Nanoseconds of CLOCK_MONOTONIC_COARSE: a few milliseconds old, and cheap. */
int64_t vgpu_coarse_ns(void);

/* --- shared.c: files between processes ---------------------------------------------------------- */

/* `suffix` below the root that OPENFLEET_VGPU_ROOT names (none in production). False: too long. */
bool vgpu_path(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Maps the file, which may be empty, and makes it `size` bytes long where it is shorter. The mapping
 * does not pass to a child of fork. *descriptor is of the same open file: what vgpu_take_byte locks
 * through it stays locked as long as the mapping is there, so the caller closes it when it has its
 * byte. NULL: errno says why. */
void *vgpu_open_shared(const char *path, size_t size, int *descriptor);
/* True: the byte is now ours, for as long as the process lives and keeps the mapping. */
bool vgpu_take_byte(int descriptor, int64_t offset);
/* Asked through any descriptor of the file (vgpu_reopen): whether a living process has the byte,
 * this one included. True where it cannot be told. */
bool vgpu_byte_is_taken(int descriptor, int64_t offset);
/* For a moment: waits until it is ours, and gives it back. */
bool vgpu_wait_for_byte(int descriptor, int64_t offset);
void vgpu_leave_byte(int descriptor, int64_t offset);
int vgpu_reopen(const char *path);	/* O_RDWR | O_CLOEXEC, -1: cannot */

/* The kernel's own calls. Those of the C library are points at which a thread that was cancelled ends
 * (pthread_cancel), which must not happen with a lock held. */
int vgpu_openat(const char *path, int flags, unsigned mode);
long vgpu_read(int descriptor, void *, size_t);
void vgpu_close(int descriptor);

/* The number of this process's pid namespace, 0 where it cannot be told. NVML's numbers of processes are the host's,
 * and mean something only in the initial one: elsewhere the same number may be a stranger's. */
#define INITIAL_PID_NAMESPACE UINT64_C(0xeffffffc)	/* PROC_PID_INIT_INO of linux/proc_ns.h, the same on every host */
uint64_t vgpu_pid_namespace(void);

struct stat;
/* Of the path, or of the descriptor where the path is "". */
int file_status(int descriptor, const char *path, struct stat *);

/* --- log.c -------------------------------------------------------------------------------------- */

/* One line, at LOG_ERR to LOG_DEBUG. Keeps errno, never waits, drops lines when there are too many. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- charge.c ----------------------------------------------------------------------------------- */

/* Which GPU a call means. */
enum { NOT_COUNTED = -1, NO_PLACE = -2 };
struct target {
	int gpu;			/* place in the region; NOT_COUNTED; NO_PLACE: cannot be counted, so nothing fits */
	CUdevice device;
	uint64_t limit_bytes;		/* UINT64_MAX: only counted */
};
struct target target_of_context(void);
struct target target_of_device(CUdevice);
/* What a stream is given is done in its own context, on its own GPU, whatever context the thread has. */
struct target target_of_stream(CUstream);
/* Makes the stream's context the thread's, where it is another; vgpu_leave_stream is told what this returned. */
bool vgpu_enter_stream(CUstream);
bool vgpu_enter_context(CUcontext);
void vgpu_leave_stream(bool entered);

/* Reserves, or is false: out of memory. Exact, and seen by all processes of the tenant at once. */
bool charge(const struct target *, uint64_t bytes);
void uncharge(int gpu, uint64_t bytes);

/* Whether what is given to the stream becomes part of a graph (pools.c). */
bool vgpu_is_capturing(CUstream, bool per_thread);

/* --- contexts.c, memory.c --- */

void vgpu_context_is_gone(struct state *, CUcontext);
bool vgpu_primary_is_active(CUdevice);

/* --- graphs.c ----------------------------------------------------------------------------------- */

/* Before a graph is launched: CUDA_ERROR_OUT_OF_MEMORY where its memory does not fit. */
CUresult vgpu_graph_admit(CUgraphExec, CUstream, bool per_thread);
/* After a graph was launched: charges what the device's graphs hold now. */
void vgpu_graph_memory(CUdevice device);

#endif
