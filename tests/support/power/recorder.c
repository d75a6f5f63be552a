/* Writes down, in order, what a process asks the disk to keep under one folder: LD_PRELOAD, for tests of lost power.
 *
 * POWER_FOLDER   the folder
 * POWER_RECORD   the file to append to, outside of it
 *
 * A record is one line of text, "KIND OFFSET LENGTH PATH", and LENGTH bytes after it.
 *
 *   made    a file that was not there is there       write   bytes are in the file, for others who read it
 *   cut     the file has this length                 sync    a sync begins, of a file or of a folder
 *   moved   a file has another name, in the bytes    gone    a name was removed
 *
 * What is written is recorded after it is done, and a sync before it is begun: so a sync is credited with nothing that it
 * might have missed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int record_fd = -1;

static void record(const char *kind, off_t offset, const void *bytes, size_t length, const char *path) {
    static const char *folder;
    if (!folder) folder = getenv("POWER_FOLDER");
    if (!folder || strncmp(path, folder, strlen(folder)) != 0) return;
    int error = errno;
    if (record_fd < 0) record_fd = REAL(open)(getenv("POWER_RECORD"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char head[PATH_MAX + 64];
    int size = snprintf(head, sizeof head, "%s %lld %zu %s\n", kind, (long long)offset, length, path);
    struct iovec parts[2] = {{head, size}, {(void *)bytes, length}};
    if (record_fd < 0 || REAL(writev)(record_fd, parts, 2) != (ssize_t)(size + length)) abort();
    errno = error;
}

static void record_fd_of(const char *kind, off_t offset, const void *bytes, size_t length, int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    record(kind, offset, bytes, length, path);
}

static void absolute(int dir, const char *name, char *path) {
    path[0] = 0;
    if (name[0] != '/') {
        char link[64];
        if (dir == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t size = readlink(link, path, PATH_MAX - 2);
        if (size <= 0) return;
        path[size] = '/';
        path[size + 1] = 0;
    }
    strncat(path, name, PATH_MAX - strlen(path) - 1);
}

static int opened(int dir, const char *name, int flags, mode_t mode, int (*open_it)(int, const char *, int, mode_t)) {
    char path[PATH_MAX];
    struct stat found;
    int is_new = (flags & O_CREAT) && fstatat(dir, name, &found, 0) != 0;
    int fd = open_it(dir, name, flags, mode);
    if (fd >= 0 && is_new) {
        absolute(dir, name, path);
        record("made", 0, "", 0, path);
    }
    if (fd >= 0 && (flags & O_TRUNC)) record_fd_of("cut", 0, "", 0, fd);
    return fd;
}

static int real_open(int dir, const char *name, int flags, mode_t mode) {
    return REAL(openat)(dir, name, flags, mode);
}

#define MODE_OF(flags)                                                                                                 \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *name, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, name, flags, mode, real_open); }
int open64(const char *name, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, name, flags, mode, real_open); }
int openat(int dir, const char *name, int flags, ...) { MODE_OF(flags) return opened(dir, name, flags, mode, real_open); }
int openat64(int dir, const char *name, int flags, ...) { MODE_OF(flags) return opened(dir, name, flags, mode, real_open); }

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    ssize_t done = REAL(pwrite64)(fd, bytes, length, offset);
    if (done > 0) record_fd_of("write", offset, bytes, done, fd);
    return done;
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return pwrite64(fd, bytes, length, offset); }

ssize_t write(int fd, const void *bytes, size_t length) {
    struct stat found;
    int is_file = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
    ssize_t done = REAL(write)(fd, bytes, length);
    if (done > 0 && is_file) record_fd_of("write", lseek(fd, 0, SEEK_CUR) - done, bytes, done, fd); /* it may append */
    return done;
}

int ftruncate64(int fd, off64_t length) {
    int done = REAL(ftruncate64)(fd, length);
    if (done == 0) record_fd_of("cut", length, "", 0, fd);
    return done;
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int fsync(int fd) { record_fd_of("sync", 0, "", 0, fd); return REAL(fsync)(fd); }
int fdatasync(int fd) { record_fd_of("sync", 0, "", 0, fd); return REAL(fdatasync)(fd); }

int unlink(const char *name) {
    char path[PATH_MAX];
    absolute(AT_FDCWD, name, path);
    int done = REAL(unlink)(name);
    if (done == 0) record("gone", 0, "", 0, path);
    return done;
}

int rename(const char *from, const char *to) {
    char path[PATH_MAX], target[PATH_MAX];
    absolute(AT_FDCWD, from, path);
    absolute(AT_FDCWD, to, target);
    int done = REAL(rename)(from, to);
    if (done == 0) record("moved", 0, target, strlen(target), path);
    return done;
}
