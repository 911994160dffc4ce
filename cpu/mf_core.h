// Inside the CPU device: its objects and what its files offer one another. Kernels see mf_cpu.h only.
//
// Locks, outermost first: the handle table's, then a device's. A device's lock guards its queue, the
// sleeping of its threads and every change of its events' values; what is read without it is atomic.
#ifndef MF_CORE_H
#define MF_CORE_H
// Included before any system header, so that this counts.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mf_cpu.h"

enum {
  MF_LINE_BYTES = 64,
  MF_THREADS_MAX = 64,  // one bit each in a device's `ready`
  MF_SLAB_ALIGN = 2 << 20,
};
#define MF_FOREVER_NS UINT64_MAX

typedef struct mf_device mf_device;
typedef struct mf_event mf_event;
typedef struct mf_list mf_list;

// --- error.c: the calling thread's sentence. Returns `status`, so that a check is one line.
__attribute__((format(printf, 2, 3))) int32_t mf_error(int32_t status, const char *format, ...);

// --- handles.c: objects behind handles. An object lives while anything refers to it.
typedef enum { MF_KIND_DEVICE = 1, MF_KIND_MEMORY, MF_KIND_BUFFER, MF_KIND_EVENT } mf_kind;
typedef struct {
  mf_kind kind;
  _Atomic uint32_t references;
  void (*destroy)(void *object);
} mf_object;

// The new handle takes over the caller's reference; on failure the object is released.
int32_t mf_handle_create(mf_object *object, mf_handle *handle);
// The object with one more reference, or NULL and a sentence (MF_ERR_HANDLE).
void *mf_handle_acquire(mf_handle handle, mf_kind kind);
// With the table locked: the object without a further reference; and removal, which leaves the handle's
// reference to the caller.
void mf_handles_lock(void);
void mf_handles_unlock(void);
void *mf_handle_find(mf_handle handle, mf_kind kind);
void mf_handle_remove(mf_handle handle);
void mf_object_retain(void *object);
void mf_object_release(void *object);

// --- memory.c
typedef struct {
  mf_object object;
  uint8_t *contents;
  size_t bytes;
  bool read_only;
  bool mapped;  // munmap, else free
} mf_memory;

// A byte count or offset from across the ABI: refuses NaN, negative and fractional values.
int32_t mf_size(double value, const char *what, size_t *size);
// Zeroed memory of one reference; NULL and a sentence (MF_ERR_MEMORY).
mf_memory *mf_memory_new(size_t bytes, bool slab);

// --- fault.c: mapped files whose bytes vanish while they are in use.
void mf_fault_watch(const void *contents, size_t bytes);
void mf_fault_forget(const void *contents);
// Whether any watched file, or the one mapped there, has lost bytes: what was computed on it may be wrong.
bool mf_fault_seen(void);
bool mf_fault_lost(const void *contents);

// --- buffers.c
typedef struct {
  mf_object object;
  mf_device *device;
  mf_memory *memory;
  uint8_t *contents;
  size_t bytes;
  bool owns_memory;       // counted in the device's buffer_bytes
  _Atomic uint32_t pins;  // submitted lists that use it; rises only with the handle table locked
} mf_buffer;

// --- events.c
struct mf_event {
  mf_object object;
  mf_device *device;
  _Atomic uint64_t value;       // changes only with the device's lock
  _Atomic bool destroyed;
  _Atomic uint32_t list_waits;  // submitted lists that still have to wait for it
};
void mf_event_raise(mf_event *event, uint64_t value);
// A value or a timeout from across the ABI.
int32_t mf_event_number(double value, uint64_t *number);
int32_t mf_deadline(double timeout_seconds, uint64_t *deadline_ns);

// --- list.c: a command list, checked and resolved.
typedef struct {
  uint32_t kind;
  uint32_t kernel;
  void *const *buffers;
  const void *params;
  double bytes;  // touched: how much work it may be
  mf_event *event;
  uint64_t value;
} mf_step;

struct mf_list {
  mf_list *next;
  uint64_t sequence;
  uint32_t step_count;
  uint32_t step_index;    // the next step; the leader's alone
  uint32_t pinned_steps;  // buffers are let go once this many steps are done
  uint32_t binding_count;
  bool begun;
  bool blocked;        // its next step is a wait that was not satisfied; device lock
  _Atomic bool skip;   // cancelled or failed: dispatches and waits are passed over
  bool unpinned;
  uint64_t blocked_ns;
  mf_step *steps;
  void **pointers;     // [binding_count]
  mf_buffer **buffers; // [binding_count]
  uint8_t *commands;
};
int32_t mf_list_create(mf_device *device, const uint8_t *commands, size_t bytes, mf_list **list);
void mf_list_unpin(mf_list *list);
void mf_list_destroy(mf_list *list);
mf_kernel_fn mf_kernel_function(uint32_t kernel);

// --- pool.c: the dispatch in execution. Several kernels' threads write these counters: a line each.
typedef struct {
  _Alignas(MF_LINE_BYTES) _Atomic uint32_t next;
} mf_counter;
typedef struct {
  void *contents;
  size_t bytes;
} mf_region;

struct mf_dispatch {
  mf_counter phases[MF_PHASE_COUNT];
  _Alignas(MF_LINE_BYTES) _Atomic uint32_t arrived;
  _Atomic uint32_t generation;
  _Atomic bool broken;         // a thread has left without its barriers
  _Atomic bool leader_left;
  _Atomic bool failed;
  _Atomic bool shared_failed;  // one thread got no shared scratch: none may
  _Alignas(MF_LINE_BYTES) mf_device *device;
  mf_kernel_fn kernel;
  void *const *buffers;
  const void *params;
  uint32_t threads;
  uint64_t members;            // the pool threads that take part, beside the leader
  mf_region scratch[MF_THREADS_MAX];
  _Atomic(void *) shared;
  _Atomic size_t shared_bytes;
  pthread_mutex_t shared_lock;
};

// The first line carries a call from the leader to the thread: one transfer between their caches.
typedef struct {
  _Alignas(MF_LINE_BYTES) _Atomic bool is_called;
  mf_kernel_fn kernel;
  mf_task task;
  _Alignas(MF_LINE_BYTES) uint32_t index;
  _Atomic int barred_core;  // on which it does not run, because a host or a leader does; -1: none
  mf_device *device;
  pthread_t thread;
} mf_worker;

int32_t mf_pool_start(mf_device *device);
void mf_pool_stop(mf_device *device);
void mf_pool_run(mf_device *device, const mf_step *step);
void mf_dispatch_destroy(mf_dispatch *dispatch);

// --- device.c
struct mf_device {
  mf_object object;
  char name[64];
  mf_simd simd;
  uint32_t threads;

  pthread_mutex_t lock;
  pthread_cond_t work;   // for sleeping pool threads
  pthread_cond_t news;   // for waiting hosts
  mf_list *head;         // in execution or next
  mf_list *tail;
  uint64_t submitted;
  bool closing;
  uint32_t host_waiters;
  uint32_t tickets;      // threads woken that have not noticed yet
  char failure[256];
  double busy_seconds;
  double event_seconds;

  _Atomic uint64_t finished;
  _Atomic uint64_t dispatches;
  _Atomic uint64_t buffer_bytes;
  _Atomic bool cancelled;
  _Atomic bool failed;
  _Atomic bool stopping;  // pool threads end
  _Atomic bool leading;   // a thread executes the head
  _Atomic bool runnable;  // the head can run and nobody leads
  _Atomic uint64_t runnable_ns;
  _Atomic uint32_t sleeping;
  _Atomic bool seated;             // a waiting host looks for work
  _Atomic uint64_t host_until_ns;  // until then a host is counted on
  // The leader's alone: whether it waited for threads in vain, what members have gained lately, and until
  // when and for how long it does without them.
  uint64_t short_until_ns;    // until then nobody waits for threads that are not ready
  int64_t gain_ns;
  uint64_t alone_until_ns;
  uint64_t alone_ns;

  uint32_t worker_count;
  mf_worker *workers;  // and a place more, for a waiting host
#ifdef __linux__
  cpu_set_t cores;     // on which the process may run
#endif
  // A bit for each pool thread and the waiting host: can be claimed; has run its part of the dispatch.
  _Alignas(MF_LINE_BYTES) _Atomic uint64_t ready;
  _Atomic uint64_t finished_members;
  mf_dispatch dispatch;
};

// --- queue.c: who leads, and how hosts wait.
typedef struct {
  const mf_event *event;  // wait for its value, or
  uint64_t value;
  uint64_t sequence;      // for this many lists, where event is NULL
  uint64_t deadline_ns;
} mf_goal;
// These three with the device locked.
void mf_queue_changed(mf_device *device);
bool mf_queue_can_lead(const mf_device *device);
void mf_queue_lead(mf_device *device, const mf_goal *goal);
void mf_queue_close(mf_device *device);  // unlocked: ends the running list, drops the others
int32_t mf_queue_wait(mf_device *device, const mf_goal *goal);
bool mf_queue_has_news(const mf_device *device, const mf_goal *goal);  // unlocked: something to do or to say
void mf_queue_fail(mf_device *device, const char *sentence);

// --- pool.c: hosts that wait. With the device locked, but for mf_pool_sit.
void mf_pool_host_comes(mf_device *device);
void mf_pool_host_leaves(mf_device *device, bool is_asleep);
bool mf_pool_take_seat(mf_device *device);
void mf_pool_leave_seat(mf_device *device);
// Takes part in dispatches as a pool thread does, until there is news; false: nothing has come for long.
bool mf_pool_sit(mf_device *device, const mf_goal *goal);

// --- simd.c
int32_t mf_simd_choose(const char *name, mf_simd *simd);
const char *mf_simd_name(mf_simd simd);
void mf_processor_name(char *name, size_t capacity);
uint32_t mf_processor_count(void);
double mf_processor_memory_bytes(void);

// --- wait.c: time and patience.
uint64_t mf_now_ns(void);
int mf_condition_create(pthread_cond_t *condition);
// False when the deadline has passed. With the mutex held, as pthread_cond_wait.
bool mf_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns);
void mf_relax(void);
// Between two looks at something that another thread will do soon: spins, then yields, then naps.
typedef struct {
  uint32_t rounds;
  uint64_t start_ns;
} mf_patience;
void mf_patience_step(mf_patience *patience);
#endif
