/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Run a command in a lab host like `runc exec`, in a tenth of its CPU time. A complete test run has 5,000 such commands.
 *
 * usage: enter STATE COMMAND [ARGUMENT...]
 *
 * STATE is runc's state.json of the container. The command gets the namespaces, cgroups, capability bounds and environment of
 * the container's first process. It starts a new session in /, with only the standard files open. Signals are passed on. The
 * exit status is that of the command, or 128 plus the number of the signal that ended it.
 *
 * Unlike with runc, system calls are not filtered. They are not filtered on a real host either.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* podman prints "Error:" and exits with 125. Ansible's connection then knows that the host is not running (tests/lab/connection). */
static void die(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs(status == 125 ? "Error: " : "enter: exec failed: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(status);
}

/* Return the bytes of a file, followed by two zero bytes. They are never freed. */
static char *contents(const char *path, size_t *length) {
    size_t size = 1 << 16, used = 0;
    char *text = malloc(size);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || !text) die(125, "the container is not running: %s: %s", path, strerror(errno));
    for (ssize_t got; (got = read(file, text + used, size - used - 2)) != 0;) {
        if (got < 0) die(125, "the container is not running: %s: %s", path, strerror(errno));
        used += got;
        if (used + 2 == size && !(text = realloc(text, size *= 2))) die(125, "no memory");
    }
    close(file);
    text[used] = text[used + 1] = 0;
    if (length) *length = used;
    return text;
}

static unsigned long long number_after(const char *text, const char *key, int base) {
    const char *found = strstr(text, key);
    if (!found) die(125, "the container is not running: no %s", key);
    return strtoull(found + strlen(key), NULL, base);
}

/* Return the start time of a process in clock ticks since boot. Together, the pid and this time identify a process. */
static unsigned long long start_of(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    char *field = strrchr(contents(path, NULL), ')');
    for (int i = 0; field && i < 20; i++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

/* Fail if the container is paused, because a process that enters it would be paused too. */
static void refuse_paused(const char *group) {
    char path[4096];
    snprintf(path, sizeof path, "/sys/fs/cgroup/freezer%s/freezer.state", group);
    if (strncmp(contents(path, NULL), "THAWED", 6) != 0) die(125, "the container is paused");
}

/* Open the process lists of the container's cgroups. Each cgroup path is cut after the container's id. */
static int open_groups(int pid, const char *id, int *groups, int most) {
    char path[64], *line, *rest;
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    for (line = strtok_r(contents(path, NULL), "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
        char *end = group ? strstr(group, id) : NULL;
        char list[4096];
        if (!end) continue;
        *group++ = 0;
        end[strlen(id)] = 0;
        if (strncmp(controllers, "name=", 5) == 0) controllers += 5;
        if (strcmp(controllers, "freezer") == 0) refuse_paused(group);
        if (!*controllers) controllers = "unified";
        snprintf(list, sizeof list, "/sys/fs/cgroup/%s%s/cgroup.procs", controllers, group);
        if (count == most || (groups[count] = open(list, O_WRONLY | O_CLOEXEC)) < 0)
            die(125, "%s: %s", list, strerror(errno));
        count++;
    }
    return count;
}

static void bound_capabilities(const char *status) {
    unsigned long long bound = number_after(status, "CapBnd:\t", 16);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (!(bound >> capability & 1) && prctl(PR_CAPBSET_DROP, capability) != 0) die(255, "%s", strerror(errno));
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capget, &header, sets) != 0) die(255, "%s", strerror(errno));
    sets[0].inheritable = sets[1].inheritable = 0;
    if (syscall(SYS_capset, &header, sets) != 0) die(255, "%s", strerror(errno));
    if (number_after(status, "NoNewPrivs:\t", 10)) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static char **environment_of(int pid) {
    char path[64];
    size_t length, count = 0;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    char *text = contents(path, &length);
    char **environment = calloc(length + 1, sizeof *environment);
    for (char *each = text; environment && each < text + length; each += strlen(each) + 1)
        if (strchr(each, '=')) environment[count++] = each;
    return environment;
}

/* The limits that podman sets for each container. Use the hard limits, because systemd changes its own soft limit of files. */
enum { LIMITS = 2 };
static struct {
    int which;
    struct rlimit most;
} limits[LIMITS] = {{RLIMIT_NOFILE, {0, 0}}, {RLIMIT_NPROC, {0, 0}}};

static void become(const int *groups, int group_count, const int *spaces, int space_count, const char *status) {
    for (int i = 0; i < group_count; i++)
        if (write(groups[i], "0", 1) != 1) die(125, "control group: %s", strerror(errno));
    for (int i = 0; i < space_count; i++)
        if (setns(spaces[i], 0) != 0) die(125, "namespace: %s", strerror(errno));
    setsid();
    umask(022);
    if (chdir("/") != 0) die(255, "/: %s", strerror(errno));
    for (int i = 0; i < LIMITS; i++) setrlimit(limits[i].which, &limits[i].most);
    bound_capabilities(status);
    if (syscall(SYS_close_range, 3U, ~0U, 0U) != 0)
        for (int file = 3; file < 1024; file++) close(file);
}

int main(int count, char **words) {
    /* The pid namespace is first, because it applies only to children. The mount namespace is last, because it hides this machine's paths. */
    static const char *const kinds[] = {"pid", "cgroup", "ipc", "uts", "net", "mnt"};
    enum { KINDS = sizeof kinds / sizeof *kinds, GROUPS = 32 };
    int groups[GROUPS], spaces[KINDS], group_count, status;
    char path[64];
    sigset_t all, before;
    if (count < 3) die(125, "usage: enter STATE COMMAND [ARGUMENT...]");

    char *state = contents(words[1], NULL);
    int pid = (int)number_after(state, "\"init_process_pid\":", 10);
    if (start_of(pid) != number_after(state, "\"init_process_start\":", 10)) die(125, "the container is not running");
    char *id = strstr(state, "\"id\":\""), *id_end = id ? strchr(id += 6, '"') : NULL;
    if (!id_end) die(125, "the container is not running: no id");
    *id_end = 0;
    group_count = open_groups(pid, id, groups, GROUPS);
    for (int i = 0; i < KINDS; i++) {
        snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kinds[i]);
        if ((spaces[i] = open(path, O_RDONLY | O_CLOEXEC)) < 0) die(125, "the container is not running: %s", strerror(errno));
    }
    for (int i = 0; i < LIMITS; i++) {
        if (prlimit(pid, limits[i].which, NULL, &limits[i].most) != 0)
            die(125, "the container is not running: %s", strerror(errno));
        limits[i].most.rlim_cur = limits[i].most.rlim_max;
    }
    char **environment = environment_of(pid);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    char *attributes = contents(path, NULL);

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    /* The child must never show this machine's /dev to processes of the container: they would take it for another container. */
    if (setns(spaces[KINDS - 1], CLONE_NEWNS) != 0 || setns(spaces[0], CLONE_NEWPID) != 0)
        die(125, "the container is not running: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0) die(125, "fork: %s", strerror(errno));
    if (child == 0) {
        become(groups, group_count, spaces + 1, KINDS - 2, attributes);
        sigprocmask(SIG_SETMASK, &before, NULL);
        environ = environment;
        execvp(words[2], words + 2);
        die(errno == ENOENT ? 127 : 126, "%s: %s", words[2], strerror(errno));
    }
    /* Close standard input, so that its writer does not wait for this process. */
    close(0);
    for (;;) {
        int number = sigwaitinfo(&all, NULL);
        if (number > 0 && number != SIGCHLD) kill(child, number);
        if (number == SIGCHLD && waitpid(child, &status, WNOHANG) == child) break;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
