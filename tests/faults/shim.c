// Faults on demand, for a program that knows nothing of them: LD_PRELOAD=shim.so and
//
//   FAULTS="PATH|CALLS|AT|TIMES|ACTION;..."     up to 8 rules, each with a count of its own
//     PATH    counts are calls that touch a path containing this text
//     CALLS   names between commas, or * for all but reads: open (for reading), create (for writing), write, read,
//     fsync, close,
//             ftruncate, rename, renameat2, link, unlink, mkdir; variants of a call go by the same name
//     AT      the first call that is struck, from 1; 0: never, only counted
//     TIMES   how many from there on; 0: all
//     ACTION  crash (SIGKILL to the process group: a power cut), die (SIGKILL to this process),
//     crash_after:MICROSECONDS,
//             signal:NUMBER, signal:NUMBER:MICROSECONDS (that much later), pause:MICROSECONDS, short (half of a write),
//             zero (a write that takes nothing), or an error: ENOSPC EIO EINTR EINVAL EROFS EMFILE
//   FAULTS_LOG=FILE     a line "PID CALL PATH" for every call that a rule counts
//   FAULTS_CLOCK=N      after N looks at the wall clock it stands an hour back
//   FAULTS_MALLOC=AT:TIMES   the allocation that fails, from 1, and how many from there on (0: all); 0: none. With
//                       FAULTS_LOG, their number is written at the end: "PID malloc NUMBER"
//
// Linux and glibc; not for builds with sanitizers, whose runtime wants to come first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// ---- rules ----

enum { kMaxRules = 8, kMaxPath = 4096 };

struct Rule {
  char path[256], calls[256], action[64];
  long at, times;
  atomic_long seen;
};

static struct Rule rules[kMaxRules];
static int rule_count;
static int log_descriptor = -1;
static long clock_limit = -1;
static atomic_long clock_looks;
static long malloc_at = -1, malloc_times;
static atomic_long mallocs;

static void add_rule(const char* text) {
  struct Rule* rule = &rules[rule_count];
  if (sscanf(text, "%255[^|]|%255[^|]|%ld|%ld|%63s", rule->path, rule->calls, &rule->at, &rule->times, rule->action) !=
      5) {
    fprintf(stderr, "shim: not a rule: %s\n", text);
    _exit(99);
  }
  rule_count += 1;
}

__attribute__((constructor)) static void read_environment(void) {
  if (getenv("FAULTS")) {
    char* text = strdup(getenv("FAULTS"));
    char* rest = NULL;
    for (char* rule = strtok_r(text, ";", &rest); rule && rule_count < kMaxRules; rule = strtok_r(NULL, ";", &rest))
      add_rule(rule);
    free(text);
  }
  if (getenv("FAULTS_MALLOC")) sscanf(getenv("FAULTS_MALLOC"), "%ld:%ld", &malloc_at, &malloc_times);
  if (getenv("FAULTS_CLOCK")) clock_limit = atol(getenv("FAULTS_CLOCK"));
  if (getenv("FAULTS_LOG")) // by number: open() below is ours
    log_descriptor =
        (int)syscall(SYS_openat, AT_FDCWD, getenv("FAULTS_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static int names(const char* list, const char* call, int reads) {
  if (strcmp(list, "*") == 0) return !reads;
  const size_t length = strlen(call);
  for (const char* at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, call, length) == 0 && (at[length] == 0 || at[length] == ',')) return 1;
  return 0;
}

struct Later {
  int target, signal; // as kill(2) wants them
  useconds_t delay;   // microseconds
};

static void* kill_later(void* argument) {
  const struct Later later = *(struct Later*)argument;
  free(argument);
  usleep(later.delay);
  kill(later.target, later.signal);
  return NULL;
}

static void start_kill(int target, int number, long delay) {
  struct Later* later = malloc(sizeof *later);
  *later = (struct Later){target, number, (useconds_t)delay};
  sigset_t all, before; // the program's handlers belong on its own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, NULL, kill_later, later) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int error_of(const char* action) {
  static const struct {
    const char* name;
    int number;
  } kErrors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},     {"EINTR", EINTR},
                 {"EINVAL", EINVAL}, {"EROFS", EROFS}, {"EMFILE", EMFILE}};
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i)
    if (strcmp(action, kErrors[i].name) == 0) return kErrors[i].number;
  fprintf(stderr, "shim: unknown action %s\n", action);
  _exit(99);
}

enum { kGoOn = 0, kShort = -1, kZero = -2 }; // or an errno

static int apply(const char* action) {
  if (strcmp(action, "crash") == 0) kill(0, SIGKILL), pause();
  if (strcmp(action, "die") == 0) kill(getpid(), SIGKILL), pause();
  if (strcmp(action, "short") == 0) return kShort;
  if (strcmp(action, "zero") == 0) return kZero;
  if (strncmp(action, "signal:", 7) == 0) {
    const char* delay = strchr(action + 7, ':');
    if (delay)
      start_kill(getpid(), atoi(action + 7), atol(delay + 1));
    else
      kill(getpid(), atoi(action + 7));
    return kGoOn;
  }
  if (strncmp(action, "pause:", 6) == 0) return usleep((useconds_t)atol(action + 6)), kGoOn;
  if (strncmp(action, "crash_after:", 12) == 0) return start_kill(0, SIGKILL, atol(action + 12)), kGoOn;
  return error_of(action);
}

static int strike(const char* call, const char* path, int reads) {
  const int saved_errno = errno;
  int verdict = kGoOn;
  int counted = 0;
  for (int i = 0; i < rule_count; ++i) {
    struct Rule* rule = &rules[i];
    if (!strstr(path, rule->path) || !names(rule->calls, call, reads)) continue;
    if (!counted && log_descriptor >= 0) {
      char line[kMaxPath + 64];
      const int length = snprintf(line, sizeof line, "%d %s %s\n", (int)getpid(), call, path);
      syscall(SYS_write, log_descriptor, line, (size_t)length < sizeof line ? (size_t)length : sizeof line);
    }
    counted = 1;
    const long seen = atomic_fetch_add(&rule->seen, 1) + 1;
    if (rule->at == 0 || seen < rule->at || (rule->times > 0 && seen >= rule->at + rule->times)) continue;
    const int mine = apply(rule->action);
    if (mine != kGoOn) verdict = mine;
  }
  errno = verdict > 0 ? verdict : saved_errno;
  return verdict;
}

// ---- what a call touches ----

static int on_descriptor(const char* call, int descriptor, int reads) {
  if (rule_count == 0 || descriptor < 0) return kGoOn;
  char link[64], path[kMaxPath];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return kGoOn;
  path[length] = 0;
  return strike(call, path, reads);
}

static int on_path(const char* call, int folder, const char* name) {
  if (rule_count == 0 || !name) return kGoOn;
  if (folder == AT_FDCWD || name[0] == '/') return strike(call, name, 0);
  char link[64], path[2 * kMaxPath];
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  const ssize_t length = readlink(link, path, kMaxPath - 1);
  if (length < 0) return strike(call, name, 0);
  snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
  return strike(call, path, 0);
}

static int on_two_paths(const char* call, const char* from, const char* to) {
  if (rule_count == 0) return kGoOn;
  char both[2 * kMaxPath];
  snprintf(both, sizeof both, "%s -> %s", from, to);
  return strike(call, both, 0);
}

// ---- the calls ----

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static const char* opening(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT) ? "create" : "open"; }

#define OPEN(name)                                                                     \
  int name(const char* path, int flags, ...) {                                         \
    REAL(int, name, const char*, int, ...);                                            \
    va_list rest;                                                                      \
    va_start(rest, flags);                                                             \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;      \
    va_end(rest);                                                                      \
    return on_path(opening(flags), AT_FDCWD, path) > 0 ? -1 : real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                         \
  int name(int folder, const char* path, int flags, ...) {                                   \
    REAL(int, name, int, const char*, int, ...);                                             \
    va_list rest;                                                                            \
    va_start(rest, flags);                                                                   \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;            \
    va_end(rest);                                                                            \
    return on_path(opening(flags), folder, path) > 0 ? -1 : real(folder, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

#define CREAT(name)                                                       \
  int name(const char* path, mode_t mode) {                               \
    REAL(int, name, const char*, mode_t);                                 \
    return on_path("create", AT_FDCWD, path) > 0 ? -1 : real(path, mode); \
  }
CREAT(creat)
CREAT(creat64)

static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

ssize_t write(int descriptor, const void* bytes, size_t count) {
  REAL(ssize_t, write, int, const void*, size_t);
  const int verdict = on_descriptor("write", descriptor, 0);
  if (verdict == kZero) return 0;
  return verdict > 0 ? -1 : real(descriptor, bytes, verdict == kShort ? half(count) : count);
}

#define PWRITE(name, offset_type)                                                                       \
  ssize_t name(int descriptor, const void* bytes, size_t count, offset_type offset) {                   \
    REAL(ssize_t, name, int, const void*, size_t, offset_type);                                         \
    const int verdict = on_descriptor("write", descriptor, 0);                                          \
    if (verdict == kZero) return 0;                                                                     \
    return verdict > 0 ? -1 : real(descriptor, bytes, verdict == kShort ? half(count) : count, offset); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  REAL(ssize_t, writev, int, const struct iovec*, int);
  const int verdict = on_descriptor("write", descriptor, 0);
  if (verdict == kZero) return 0;
  if (verdict == kShort && count > 0) return write(descriptor, parts[0].iov_base, half(parts[0].iov_len));
  return verdict > 0 ? -1 : real(descriptor, parts, count);
}

ssize_t read(int descriptor, void* bytes, size_t count) {
  REAL(ssize_t, read, int, void*, size_t);
  const int verdict = on_descriptor("read", descriptor, 1);
  return verdict > 0 ? -1 : real(descriptor, bytes, verdict == kShort ? half(count) : count);
}

#define PREAD(name, offset_type)                                                                        \
  ssize_t name(int descriptor, void* bytes, size_t count, offset_type offset) {                         \
    REAL(ssize_t, name, int, void*, size_t, offset_type);                                               \
    const int verdict = on_descriptor("read", descriptor, 1);                                           \
    return verdict > 0 ? -1 : real(descriptor, bytes, verdict == kShort ? half(count) : count, offset); \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define ON_DESCRIPTOR(name, call)                                          \
  int name(int descriptor) {                                               \
    REAL(int, name, int);                                                  \
    return on_descriptor(call, descriptor, 0) > 0 ? -1 : real(descriptor); \
  }
ON_DESCRIPTOR(fsync, "fsync")
ON_DESCRIPTOR(fdatasync, "fsync")

int close(int descriptor) { // Linux has closed the file, whatever it answers
  REAL(int, close, int);
  const int verdict = on_descriptor("close", descriptor, 0);
  const int result = real(descriptor);
  if (verdict <= 0) return result;
  errno = verdict;
  return -1;
}

#define TRUNCATE(name, offset_type)                                                       \
  int name(int descriptor, offset_type length) {                                          \
    REAL(int, name, int, offset_type);                                                    \
    return on_descriptor("ftruncate", descriptor, 0) > 0 ? -1 : real(descriptor, length); \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define TWO_PATHS(name, call)                                      \
  int name(const char* from, const char* to) {                     \
    REAL(int, name, const char*, const char*);                     \
    return on_two_paths(call, from, to) > 0 ? -1 : real(from, to); \
  }
TWO_PATHS(rename, "rename")
TWO_PATHS(link, "link")
TWO_PATHS(symlink, "link")

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  REAL(int, renameat, int, const char*, int, const char*);
  return on_two_paths("rename", from, to) > 0 ? -1 : real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  REAL(int, renameat2, int, const char*, int, const char*, unsigned);
  return on_two_paths("renameat2", from, to) > 0 ? -1 : real(from_folder, from, to_folder, to, flags);
}

long syscall(long number, ...) {
  REAL(long, syscall, long, ...);
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_renameat2 && on_two_paths("renameat2", (const char*)a[1], (const char*)a[3]) > 0) return -1;
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#define ON_PATH(name, call)                                     \
  int name(const char* path) {                                  \
    REAL(int, name, const char*);                               \
    return on_path(call, AT_FDCWD, path) > 0 ? -1 : real(path); \
  }
ON_PATH(unlink, "unlink")
ON_PATH(rmdir, "unlink")
ON_PATH(remove, "unlink")

int unlinkat(int folder, const char* path, int flags) {
  REAL(int, unlinkat, int, const char*, int);
  return on_path("unlink", folder, path) > 0 ? -1 : real(folder, path, flags);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  return on_path("mkdir", AT_FDCWD, path) > 0 ? -1 : real(path, mode);
}

int mkdirat(int folder, const char* path, mode_t mode) {
  REAL(int, mkdirat, int, const char*, mode_t);
  return on_path("mkdir", folder, path) > 0 ? -1 : real(folder, path, mode);
}

// ---- memory ----

// glibc's own names: looking up the usual ones would allocate.
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t),
    *__libc_memalign(size_t, size_t);

static int is_refused(void) {
  if (malloc_at < 0) return 0; // before the environment is read, or not asked for
  const long number = atomic_fetch_add(&mallocs, 1) + 1;
  if (malloc_at == 0 || number < malloc_at || (malloc_times > 0 && number >= malloc_at + malloc_times)) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return is_refused() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return is_refused() ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return is_refused() ? NULL : __libc_realloc(old, size); }
void* memalign(size_t alignment, size_t size) { return is_refused() ? NULL : __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return is_refused() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void** where, size_t alignment, size_t size) {
  void* const memory = is_refused() ? NULL : __libc_memalign(alignment, size);
  if (memory) *where = memory;
  return memory ? 0 : ENOMEM;
}

__attribute__((destructor)) static void log_mallocs(void) {
  if (malloc_at < 0 || log_descriptor < 0) return;
  char line[64];
  const int length = snprintf(line, sizeof line, "%d malloc %ld\n", (int)getpid(), atomic_load(&mallocs));
  syscall(SYS_write, log_descriptor, line, (size_t)length);
}

// ---- the wall clock ----

static long seconds_back(void) {
  return clock_limit >= 0 && atomic_fetch_add(&clock_looks, 1) >= clock_limit ? 3600 : 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  REAL(int, clock_gettime, clockid_t, struct timespec*);
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec -= seconds_back();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  REAL(int, gettimeofday, struct timeval*, void*);
  const int result = real(now, zone);
  now->tv_sec -= seconds_back();
  return result;
}

time_t time(time_t* where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
