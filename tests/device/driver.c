// A stand-in for CUDA's driver, shared by the processes of a test, which tells wrong orders of calls.
//
// "Device memory" is an arena in a file that all processes map twice: what a process allocates has
// an address in its first map, and what it opens by a handle one in its second. Copies are done as
// late as CUDA may do them: when the host waits for their stream, or reads with a kernel. Whether
// two uses of memory are ordered is told from clocks, as in tests/device/machine.py: each stream
// counts its work, and knows how much of the others' is done before its own.
//
// STANDIN_FILE names the file; STANDIN_DEVICES the UUIDs that the process sees, a letter each;
// STANDIN_FAIL calls that fail, as NAME=CODE,NAME=CODE.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STREAMS = 64, EVENTS = 4096, BLOCKS = 4096, WORKS = 8192, USES = 512, FAULTS = 64 };
enum { ARENA = 256 << 20, HOSTS = 16, DEVICES = 4 };

typedef struct { uint32_t at[STREAMS]; } Clock;
typedef struct { int pid; int64_t handle; Clock clock; uint32_t tick; } Stream;
typedef struct { int pid; Clock done; } Process;
typedef struct { int stream; uint32_t tick; size_t from, to; int writes; } Use;
typedef struct {
  int pid, device, is_live;
  size_t at, size;
  int opened_by[HOSTS];
  int uses_count;
  Use uses[USES];
} Block;
typedef struct {
  int pid, is_live, flags, records, stream, opened_by;
  uint32_t tick;
  Clock clock;
} Event;
// A copy inside the arena, or (size 0) a wait for the work of another stream.
typedef struct { int stream, is_done, other; uint32_t tick, other_tick; size_t to, from, size; } Work;

typedef struct {
  Stream streams[STREAMS];
  Process processes[HOSTS];
  Event events[EVENTS];
  Block blocks[BLOCKS];
  Work works[WORKS];
  int works_count, streams_count, blocks_count, events_count, faults_count;
  uint64_t copies, late;
  size_t used;
  char faults[FAULTS][512];
} Shared;

static Shared *shared;
static char *own, *opened;
static int file = -1, self_pid;
static __thread int depth;
static int is_initialised, contexts[64];

// What is copied to the host: there when the host has waited.
typedef struct { int stream; uint32_t tick; char *host; char *data; size_t size; } Delivery;
static Delivery deliveries[1024];
static int deliveries_count;
static struct { char *at; size_t size; } pinned[16];

static void fault(const char *format, ...) {
  if (shared->faults_count == FAULTS) return;
  char *text = shared->faults[shared->faults_count++];
  int size = snprintf(text, 512, "process %d: ", getpid());
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + size, 512 - size, format, arguments);
  va_end(arguments);
}

static void map(void) {
  if (shared && self_pid == getpid()) return;
  self_pid = getpid();
  size_t head = (sizeof(Shared) + 4095) / 4096 * 4096;
  file = open(getenv("STANDIN_FILE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  flock(file, LOCK_EX);
  struct stat found;
  fstat(file, &found);
  if (found.st_size == 0 && ftruncate(file, head + ARENA)) abort();
  shared = mmap(0, head, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  own = mmap(0, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, file, head);
  opened = mmap(0, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, file, head);
  flock(file, LOCK_UN);
}

static void unlock(int *unused) { flock(file, LOCK_UN); }
static int fails(const char *name) {
  const char *text = getenv("STANDIN_FAIL");
  size_t size = strlen(name);
  for (text = text ? text : ""; *text; text += strcspn(text, ",") + (strchr(text, ',') != NULL))
    if (!strncmp(text, name, size) && text[size] == '=') return atoi(text + size + 1);
  return 0;
}
#define CALL                                                 \
  map();                                                     \
  flock(file, LOCK_EX);                                      \
  int locked __attribute__((cleanup(unlock), unused)) = 0;   \
  if (fails(__func__)) return fails(__func__);               \
  if (!is_initialised) return 3
#define IN_CONTEXT \
  CALL;            \
  if (!depth) {    \
    fault("%s without a current context", __func__); \
    return 201;    \
  }

static Process *process(void) {
  for (int i = 0; i < HOSTS; i++)
    if (shared->processes[i].pid == getpid()) return &shared->processes[i];
  for (int i = 0; i < HOSTS; i++)
    if (!shared->processes[i].pid) {
      shared->processes[i].pid = getpid();
      return &shared->processes[i];
    }
  abort();
}

static int stream_of(int64_t handle) {
  if (handle == 0) handle = 1;
  for (int i = 0; i < shared->streams_count; i++)
    if (shared->streams[i].pid == getpid() && shared->streams[i].handle == handle) return i;
  if (shared->streams_count == STREAMS) abort();
  shared->streams[shared->streams_count] = (Stream){getpid(), handle};
  return shared->streams_count++;
}

static void join(Clock *one, const Clock *other) {
  for (int i = 0; i < STREAMS; i++)
    if (one->at[i] < other->at[i]) one->at[i] = other->at[i];
}

// The next work of a stream: it begins after all that this process has waited for.
static uint32_t next(int stream) {
  join(&shared->streams[stream].clock, &process()->done);
  return ++shared->streams[stream].tick;
}

static void force(int stream, uint32_t tick) {
  for (int i = 0; i < shared->works_count; i++) {
    Work *work = &shared->works[i];
    if (work->stream != stream || work->is_done || work->tick > tick) continue;
    work->is_done = 1;
    if (work->size) memmove(own + work->to, own + work->from, work->size);
    else force(work->other, work->other_tick);
  }
}

static Work *new_work(int stream, uint32_t tick) {
  if (shared->works_count == WORKS) {  // forget what is done
    int left = 0;
    for (int i = 0; i < WORKS; i++)
      if (!shared->works[i].is_done) shared->works[left++] = shared->works[i];
    if (left > WORKS / 2) {  // nobody waits for these
      for (int i = 0; i < left; i++) force(shared->works[i].stream, shared->works[i].tick);
      left = 0;
    }
    shared->works_count = left;
  }
  Work *work = &shared->works[shared->works_count++];
  *work = (Work){stream, 0, 0, tick};
  return work;
}

// The host waits until a stream has done its work up to a tick.
static void wait_for(int stream, uint32_t tick, const Clock *clock) {
  force(stream, tick);
  Process *me = process();
  join(&me->done, clock);
  if (me->done.at[stream] < tick) me->done.at[stream] = tick;
  int left = 0;
  for (int i = 0; i < deliveries_count; i++) {
    Delivery *each = &deliveries[i];
    if (me->done.at[each->stream] >= each->tick) {
      memcpy(each->host, each->data, each->size);
      free(each->data);
    } else deliveries[left++] = *each;
  }
  deliveries_count = left;
}

// The block of an address; NULL if it is memory of another library in this process.
static Block *block_of(uint64_t address, size_t size, size_t *at) {
  char *pointer = (char *)address;
  int is_own = pointer >= own && pointer < own + ARENA;
  if (!is_own && !(pointer >= opened && pointer < opened + ARENA)) return NULL;
  *at = pointer - (is_own ? own : opened);
  for (int i = 0; i < shared->blocks_count; i++) {
    Block *block = &shared->blocks[i];
    if (!block->is_live || *at < block->at || *at + size > block->at + block->size) continue;
    if (is_own && block->pid == getpid()) return block;
    for (int k = 0; k < HOSTS && !is_own; k++)
      if (block->opened_by[k] == getpid()) return block;
  }
  fault("memory that is not this process's, freed, or closed is used: %zu bytes", size);
  return NULL;
}

static void use(Block *block, int stream, uint32_t tick, size_t at, size_t size, int writes) {
  int left = 0;
  for (int i = 0; i < block->uses_count; i++) {
    Use *before = &block->uses[i];
    int meets = at < before->to && before->from < at + size;
    int is_known = before->stream == stream ||
                   shared->streams[stream].clock.at[before->stream] >= before->tick;
    if (meets && (writes || before->writes) && !is_known)
      fault("work of stream %d %s bytes %zu to %zu, which stream %d of process %d %s, "
            "and nothing lets it wait",
            (int)shared->streams[stream].handle, writes ? "writes" : "reads", at, at + size,
            (int)shared->streams[before->stream].handle, shared->streams[before->stream].pid,
            before->writes ? "writes" : "reads");
    int is_covered = at <= before->from && before->to <= at + size && is_known &&
                     (writes || !before->writes);
    if (!is_covered) block->uses[left++] = *before;
  }
  block->uses_count = left;
  if (left == USES) abort();
  block->uses[block->uses_count++] = (Use){stream, tick, at, at + size, writes};
}

// ---- the driver -------------------------------------------------------------------------------

int cuInit(unsigned flags) {
  map();
  if (fails("cuInit")) return fails("cuInit");
  is_initialised = 1;
  return flags ? 1 : 0;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : code == 101 ? "CUDA_ERROR_INVALID_DEVICE"
        : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
        : code == 3 ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
static const char *seen(void) { return getenv("STANDIN_DEVICES") ? getenv("STANDIN_DEVICES") : "a"; }
int cuDeviceGetCount(int *count) { CALL; *count = strlen(seen()); return 0; }
int cuDeviceGet(int *device, int ordinal) {
  CALL;
  if (ordinal < 0 || ordinal >= (int)strlen(seen())) return 101;
  *device = ordinal;
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { CALL; memset(uuid, seen()[device], 16); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
  CALL;
  *context = (void *)(intptr_t)(device + 1);
  return 0;
}
int cuCtxPushCurrent_v2(void *context) { CALL; if (!context) return 201; contexts[depth++] = (intptr_t)context - 1; return 0; }
int cuCtxPopCurrent_v2(void **context) { IN_CONTEXT; *context = (void *)(intptr_t)(contexts[--depth] + 1); return 0; }
int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) {
  CALL;
  *(int *)data = 0;
  const char *current = getenv("STANDIN_CURRENT");  // where other libraries' arrays are
  if (current) *(int *)data = atoi(current);
  return attribute == 9 && pointer ? 0 : 1;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
  IN_CONTEXT;
  size = (size + 511) / 512 * 512;
  if (shared->used + size > ARENA || shared->blocks_count == BLOCKS) return 2;
  Block *block = &shared->blocks[shared->blocks_count++];
  *block = (Block){.pid = getpid(), .device = seen()[contexts[depth - 1]], .is_live = 1, .at = shared->used, .size = size};
  shared->used += size;
  memset(own + block->at, 0xFF, size);
  *pointer = (uint64_t)(own + block->at);
  return 0;
}
// Work of this process that it has not waited for.
static int is_used(Block *block) {
  Process *me = process();
  for (int i = 0; i < block->uses_count; i++) {
    Use *each = &block->uses[i];
    if (shared->streams[each->stream].pid == getpid() && me->done.at[each->stream] < each->tick) return 1;
  }
  return 0;
}
static int is_running(int pid) {
  char path[64], state = 'X';
  snprintf(path, 64, "/proc/%d/stat", pid);
  FILE *stat = fopen(path, "r");
  if (!stat) return 0;
  unsigned flags = 0;
  if (fscanf(stat, "%*d (%*[^)]) %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2) state = 'X';
  fclose(stat);
  const unsigned exiting = 4;  // PF_EXITING of Linux: its files are closed before it is a zombie
  return state != 'Z' && state != 'X' && !(flags & exiting);
}
int cuMemFree_v2(uint64_t pointer) {
  IN_CONTEXT;
  size_t at;
  Block *block = block_of(pointer, 1, &at);
  if (!block || block->pid != getpid()) return 1;
  if (is_used(block)) fault("memory is freed while it is used");
  for (int i = 0; i < HOSTS; i++)
    if (block->opened_by[i] && is_running(block->opened_by[i]))
      fault("memory is freed before process %d has closed it", block->opened_by[i]);
  block->is_live = 0;
  return 0;
}

typedef struct { int kind, index; char rest[56]; } Handle;
int cuIpcGetMemHandle(Handle *handle, uint64_t pointer) {
  IN_CONTEXT;
  size_t at;
  Block *block = block_of(pointer, 1, &at);
  if (!block || block->pid != getpid()) return 1;
  *handle = (Handle){1, block - shared->blocks};
  memset(handle->rest, 0, sizeof handle->rest);
  return 0;
}
int cuIpcOpenMemHandle_v2(uint64_t *pointer, Handle handle, unsigned flags) {
  IN_CONTEXT;
  if (handle.kind != 1 || handle.index < 0 || handle.index >= shared->blocks_count || flags != 1) return 1;
  Block *block = &shared->blocks[handle.index];
  if (!block->is_live || block->pid == getpid()) return 1;
  if (block->device != seen()[contexts[depth - 1]]) return 101;
  for (int i = 0; i < HOSTS; i++)
    if (block->opened_by[i] == getpid()) { fault("memory is opened twice"); return 1; }
  for (int i = 0; i < HOSTS; i++)
    if (!block->opened_by[i]) { block->opened_by[i] = getpid(); break; }
  *pointer = (uint64_t)(opened + block->at);
  return 0;
}
int cuIpcCloseMemHandle(uint64_t pointer) {
  IN_CONTEXT;
  size_t at;
  Block *block = block_of(pointer, 1, &at);
  if (!block || block->pid == getpid()) return 1;
  if (is_used(block)) fault("memory is closed while it is used");
  for (int i = 0; i < HOSTS; i++)
    if (block->opened_by[i] == getpid()) block->opened_by[i] = 0;
  return 0;
}

static void *pointer_of(int index) { return (void *)(intptr_t)(index + 1); }
static Event *event_of(void *event, const char *what) {
  intptr_t index = (intptr_t)event - 1;
  if (index < 0 || index >= shared->events_count || !shared->events[index].is_live ||
      (shared->events[index].pid != getpid() && shared->events[index].opened_by != getpid())) {
    fault("%s of an event that is none, or is destroyed", what);
    return NULL;
  }
  return &shared->events[index];
}
int cuEventCreate(void **event, unsigned flags) {
  IN_CONTEXT;
  int index = 0;
  while (index < shared->events_count && shared->events[index].is_live) index++;
  if (index == EVENTS) return 2;
  if (index == shared->events_count) shared->events_count++;
  shared->events[index] = (Event){.pid = getpid(), .is_live = 1, .flags = flags};
  *event = pointer_of(index);
  return 0;
}
int cuEventRecord(void *event, int64_t handle) {
  IN_CONTEXT;
  Event *found = event_of(event, "a record");
  if (!found) return 1;
  if (found->pid != getpid()) fault("the other process's event is recorded");
  int stream = stream_of(handle);
  found->clock = shared->streams[stream].clock;
  join(&found->clock, &process()->done);
  found->stream = stream;
  found->tick = found->clock.at[stream] = shared->streams[stream].tick;
  found->records++;
  return 0;
}
int cuStreamWaitEvent(int64_t handle, void *event, unsigned flags) {
  IN_CONTEXT;
  Event *found = event_of(event, "a wait");
  if (!found) return 1;
  if (!found->records) fault("an event is waited for before it is recorded");
  int stream = stream_of(handle);
  join(&shared->streams[stream].clock, &found->clock);
  if (found->stream != stream) {
    Work *work = new_work(stream, next(stream));
    work->other = found->stream;
    work->other_tick = found->tick;
  }
  return flags;
}
int cuEventDestroy_v2(void *event) {
  IN_CONTEXT;
  Event *found = event_of(event, "an end");
  if (!found) return 1;
  if (found->pid != getpid()) { found->opened_by = 0; return 0; }
  if (found->opened_by && is_running(found->opened_by))
    fault("an event is destroyed before process %d has closed it", found->opened_by);
  found->is_live = 0;
  return 0;
}
int cuIpcGetEventHandle(Handle *handle, void *event) {
  IN_CONTEXT;
  Event *found = event_of(event, "a handle");
  if (!found || found->flags != 6) return 1;  // INTERPROCESS | DISABLE_TIMING
  memset(handle, 0, sizeof *handle);
  *handle = (Handle){2, found - shared->events};
  return 0;
}
int cuIpcOpenEventHandle(void **event, Handle handle) {
  IN_CONTEXT;
  if (handle.kind != 2 || handle.index < 0 || handle.index >= shared->events_count) return 1;
  Event *found = &shared->events[handle.index];
  if (!found->is_live || found->pid == getpid()) return 1;
  if (found->opened_by == getpid()) fault("an event is opened twice");
  found->opened_by = getpid();
  *event = pointer_of(handle.index);
  return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, int64_t handle) {
  IN_CONTEXT;
  size_t to_at = 0, from_at = 0;
  int stream = stream_of(handle);
  uint32_t tick = next(stream);
  Block *target = block_of(to, size, &to_at), *source = block_of(from, size, &from_at);
  if (source) use(source, stream, tick, from_at, size, 0);
  if (target) use(target, stream, tick, to_at, size, 1);
  shared->copies++;
  if (target && source) {
    Work *work = new_work(stream, tick);
    work->to = to_at, work->from = from_at, work->size = size;
    shared->late++;
  } else if (target) {  // from memory of another library: its values of now, which arrive late
    if (shared->used + size > ARENA) return 2;
    size_t staged = shared->used;
    shared->used += (size + 511) / 512 * 512;
    memcpy(own + staged, (char *)from, size);
    Work *work = new_work(stream, tick);
    work->to = to_at, work->from = staged, work->size = size;
    shared->late++;
  } else {
    force(stream, tick);
    memcpy((char *)to, (char *)from, size);
  }
  return 0;
}
int cuMemcpyDtoHAsync_v2(char *to, uint64_t from, size_t size, int64_t handle) {
  IN_CONTEXT;
  size_t at = 0;
  int stream = stream_of(handle);
  uint32_t tick = next(stream);
  Block *source = block_of(from, size, &at);
  if (source) use(source, stream, tick, at, size, 0);
  force(stream, tick);
  if (deliveries_count == 1024) return 2;
  Delivery *each = &deliveries[deliveries_count++];
  *each = (Delivery){stream, tick, to, malloc(size), size};
  memcpy(each->data, (char *)from, size);
  memset(to, 0xFF, size);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, char *from, size_t size, int64_t handle) {
  IN_CONTEXT;
  size_t at = 0;
  int stream = stream_of(handle);
  uint32_t tick = next(stream);
  Block *target = block_of(to, size, &at);
  if (target) use(target, stream, tick, at, size, 1);
  force(stream, tick);
  memcpy((char *)to, from, size);
  return 0;
}
int cuStreamSynchronize(int64_t handle) {
  IN_CONTEXT;
  int stream = stream_of(handle);
  wait_for(stream, shared->streams[stream].tick, &shared->streams[stream].clock);
  return 0;
}
int cuCtxSynchronize(void) {
  IN_CONTEXT;
  for (int i = 0; i < shared->streams_count; i++)
    if (shared->streams[i].pid == getpid()) wait_for(i, shared->streams[i].tick, &shared->streams[i].clock);
  return 0;
}
int cuMemHostRegister_v2(char *at, size_t size, unsigned flags) {
  IN_CONTEXT;
  for (int i = 0; i < 16; i++)
    if (pinned[i].at && at < pinned[i].at + pinned[i].size && pinned[i].at < at + size) {
      fault("memory of the host is registered twice");
      return 1;
    }
  for (int i = 0; i < 16; i++)
    if (!pinned[i].at) { pinned[i].at = at; pinned[i].size = size; return 0; }
  return 2;
}
int cuMemHostUnregister(char *at) {
  IN_CONTEXT;
  for (int i = 0; i < 16; i++)
    if (pinned[i].at == at) { pinned[i].at = 0; return 0; }
  fault("memory of the host is unregistered that was not registered");
  return 1;
}

// ---- for tests --------------------------------------------------------------------------------

// A kernel of the test's process that uses memory now: as a real one might, at the latest.
void standin_use(int64_t handle, uint64_t pointer, size_t size, int writes) {
  map();
  flock(file, LOCK_EX);
  int locked __attribute__((cleanup(unlock), unused)) = 0;
  int stream = stream_of(handle);
  uint32_t tick = next(stream);
  size_t at;
  Block *block = block_of(pointer, size, &at);
  force(stream, tick);
  if (block) use(block, stream, tick, at, size, writes);
}
int standin_faults(void) { map(); return shared->faults_count; }
const char *standin_fault(int i) { return shared->faults[i]; }
void standin_forgive(void) { map(); shared->faults_count = 0; }
uint64_t standin_copies(void) { map(); return shared->copies; }
uint64_t standin_late(void) { map(); return shared->late; }
// Memory and events that running processes have, and memory that they have opened.
int standin_left(void) {
  map();
  int found = 0;
  for (int i = 0; i < shared->blocks_count; i++) {
    Block *block = &shared->blocks[i];
    found += block->is_live && is_running(block->pid);
    for (int k = 0; k < HOSTS; k++) found += block->opened_by[k] && is_running(block->opened_by[k]);
  }
  for (int i = 0; i < shared->events_count; i++)
    found += shared->events[i].is_live && is_running(shared->events[i].pid);
  return found;
}
