/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char MAGIC[8] = "GPUSIM\r\n";

/* A library recognizes the layout of a file by the schema number. It also compares the size of a copy and the number of
 * functions, in case a change of the layout kept the schema number. */
typedef struct {
	char magic[8];
	uint32_t schema, functions;
	uint64_t host_bytes;
} head_t;

typedef struct {
	head_t head;
	_Atomic uint32_t generation;	/* host[generation % 2] is valid */
	traffic_t traffic;
	host_t host[2];
} file_t;

_Thread_local bool state_die_inside;

static struct {
	int descriptor;
	bool writable;
	file_t *file;
	_Atomic(traffic_t *) traffic;	/* counts in the file. NULL if the file is read-only. They need no mutex */
	dev_t device;
	ino_t inode;
} map = { .descriptor = -1 };

/* A flock belongs to the open file description, which threads share. So a mutex protects the state between the
 * process's threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Keep the old mapping, because another thread may be counting a call in it. This costs little, because a file is
 * rarely replaced. */
static void forget_file(void)
{
	if (map.descriptor >= 0)
		close(map.descriptor);
	atomic_store(&map.traffic, NULL);
	map.file = NULL;
	map.descriptor = -1;
}

/* A forked child shares its parent's open file and locks until it opens its own file. If opening fails, the child
 * has no file, and its next nvmlInit tries again. */
static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&mutex); }
static void fork_child(void)
{
	if (map.descriptor >= 0) {
		char name[32];
		snprintf(name, sizeof name, "/proc/self/fd/%d", map.descriptor);
		int own = open(name, (map.writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
		close(map.descriptor);
		map.descriptor = own;
		if (own < 0)
			forget_file();
	}
	pthread_mutex_unlock(&mutex);
}

__attribute__((constructor(202))) static void watch_forks(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

const char *state_path(void)
{
	const char *path = getenv("GPUSIM_STATE");
	return path && *path ? path : "/var/lib/gpusim/state";
}

static void lock(int descriptor, int how)
{
	while (flock(descriptor, how) != 0 && errno == EINTR)
		;
}

static bool is_ours(int descriptor)
{
	head_t head;
	struct stat status;
	return pread(descriptor, &head, sizeof head, 0) == (ssize_t)sizeof head
	    && memcmp(head.magic, MAGIC, sizeof MAGIC) == 0 && head.schema == STATE_SCHEMA
	    && head.functions == F_COUNT && head.host_bytes == sizeof(host_t)
	    && fstat(descriptor, &status) == 0 && status.st_size == (off_t)sizeof(file_t);
}

static nvmlReturn_t open_locked(void)
{
	struct stat status;
	if (stat(state_path(), &status) != 0) {
		forget_file();
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	if (map.file && status.st_dev == map.device && status.st_ino == map.inode)
		return NVML_SUCCESS;
	forget_file();
	/* A service whose file system is read-only (ProtectSystem=strict) can still read GPUs, as with a real GPU. */
	int descriptor = open(state_path(), O_RDWR | O_CLOEXEC);
	bool writable = descriptor >= 0;
	if (!writable)
		descriptor = open(state_path(), O_RDONLY | O_CLOEXEC);
	if (descriptor < 0)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (!is_ours(descriptor)) {
		static bool told;
		if (!told)
			fprintf(stderr, "gpusim: %s was not made by this version of the simulated NVML (state schema %d); "
			        "run `gpusim init` of the same installation again\n", state_path(), STATE_SCHEMA);
		told = true;
		close(descriptor);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	void *file = mmap(NULL, sizeof(file_t), PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, descriptor, 0);
	if (file == MAP_FAILED) {
		close(descriptor);
		return NVML_ERROR_OPERATING_SYSTEM;
	}
	fstat(descriptor, &status);
	map.descriptor = descriptor;
	map.writable = writable;
	map.file = file;
	atomic_store(&map.traffic, writable ? &map.file->traffic : NULL);
	map.device = status.st_dev;
	map.inode = status.st_ino;
	return NVML_SUCCESS;
}

nvmlReturn_t state_open(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t result = open_locked();
	pthread_mutex_unlock(&mutex);
	return result;
}

/* An empty host is all zeros, so the file is sparse after its head. */
static bool write_empty_file(const char *name)
{
	int descriptor = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (descriptor < 0)
		return false;
	head_t head = { .schema = STATE_SCHEMA, .functions = F_COUNT, .host_bytes = sizeof(host_t) };
	memcpy(head.magic, MAGIC, sizeof MAGIC);
	/* Clients of all users may change the state, as they may change a real GPU through the driver's device files. */
	bool done = fchmod(descriptor, 0666) == 0 && pwrite(descriptor, &head, sizeof head, 0) == (ssize_t)sizeof head
	         && ftruncate(descriptor, sizeof(file_t)) == 0;
	close(descriptor);
	return done;
}

static bool has_the_name(int descriptor)
{
	struct stat file, named;
	return fstat(descriptor, &file) == 0 && stat(state_path(), &named) == 0
	    && file.st_dev == named.st_dev && file.st_ino == named.st_ino;
}

/*
 * Ensures that the file with this name is usable. Only a complete file gets the name. If several processes try this,
 * exactly one succeeds: by link if there is no file, or under the file's lock if the file has another schema. The other
 * processes then use that file. Otherwise they would create GPUs in a file that no other process sees.
 */
static bool provide_file(const char *complete)
{
	for (int attempt = 0; attempt < 10; attempt++) {
		int descriptor = open(state_path(), O_RDONLY | O_CLOEXEC);
		if (descriptor < 0) {
			if (errno != ENOENT)
				return false;
			if (link(complete, state_path()) == 0)
				return true;
			if (errno != EEXIST)
				return false;
			continue;
		}
		lock(descriptor, LOCK_EX);
		bool current = has_the_name(descriptor);
		bool done = current && (is_ours(descriptor) || rename(complete, state_path()) == 0);
		close(descriptor);
		if (current)
			return done;
	}
	return false;
}

nvmlReturn_t state_create(void)
{
	char complete[4096];
	if (snprintf(complete, sizeof complete, "%s.%d", state_path(), (int)getpid()) >= (int)sizeof complete)
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&mutex);
	int descriptor = open(state_path(), O_RDONLY | O_CLOEXEC);
	bool provided = descriptor >= 0 && is_ours(descriptor);
	if (descriptor >= 0)
		close(descriptor);
	if (!provided) {
		provided = write_empty_file(complete) && provide_file(complete);
		unlink(complete);
	}
	nvmlReturn_t result = provided ? open_locked() : NVML_ERROR_UNKNOWN;
	pthread_mutex_unlock(&mutex);
	return result;
}

traffic_t *state_traffic(void)
{
	return atomic_load(&map.traffic);
}

traffic_t *state_faults(void)
{
	return map.file ? &map.file->traffic : NULL;
}

bool state_is_writable(void)
{
	return map.writable;
}

static host_t *enter(int how)
{
	pthread_mutex_lock(&mutex);
	if (!map.file || map.descriptor < 0 || (how == LOCK_EX && !map.writable)) {
		pthread_mutex_unlock(&mutex);
		return NULL;
	}
	lock(map.descriptor, how);
	return &map.file->host[atomic_load(&map.file->generation) % 2];
}

static void leave(void)
{
	lock(map.descriptor, LOCK_UN);
	pthread_mutex_unlock(&mutex);
}

host_t *state_read(void)
{
	return enter(LOCK_SH);
}

void state_read_end(host_t **host)
{
	if (*host)
		leave();
}

/* Copies only the used part. For a host with two GPUs, this is the part with two GPUs. */
static void copy_host(host_t *to, const host_t *from)
{
	memcpy(to, from, offsetof(host_t, gpus) + from->gpu_count * sizeof(gpu_t));
	memcpy(to->samples, from->samples, from->sample_count * sizeof(sample_t));
}

host_t *state_begin(void)
{
	host_t *valid = enter(LOCK_EX);
	if (!valid)
		return NULL;
	host_t *spare = valid == &map.file->host[0] ? &map.file->host[1] : &map.file->host[0];
	copy_host(spare, valid);
	return spare;
}

void state_die(void)
{
	int on_death_of_parent = 0;
	if (prctl(PR_GET_PDEATHSIG, &on_death_of_parent) == 0 && on_death_of_parent == SIGKILL)
		kill(getppid(), SIGKILL);
	raise(SIGKILL);
}

nvmlReturn_t state_commit(void)
{
	if (state_die_inside)
		state_die();
	atomic_fetch_add(&map.file->generation, 1);
	/* The futex must not be private, because waiting processes map the same page. */
	syscall(SYS_futex, &map.file->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return NVML_SUCCESS;
}

bool state_wait(uint32_t *seen, unsigned timeout_ms)
{
	pthread_mutex_lock(&mutex);
	/* The mapping stays valid after the mutex is released (see forget_file). */
	file_t *file = map.file;
	pthread_mutex_unlock(&mutex);
	if (!file)
		return false;
	uint32_t before = *seen;
	struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
	if (atomic_load(&file->generation) == before)
		syscall(SYS_futex, &file->generation, FUTEX_WAIT, before, &timeout, NULL, 0);
	*seen = atomic_load(&file->generation);
	return *seen != before;
}

void state_end(host_t **host)
{
	if (*host)
		leave();
}
