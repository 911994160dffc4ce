// The threads of a device. The leader of a list claims those that are looking for work, runs the dispatch
// with them and waits for them; a thread that sleeps or has lost its core is never waited for long. A host that
// waits for a list is one of them: it sits in the last of the workers' places, which has no thread of its own. A
// dispatch too small to be worth the handing over is run by the leader alone. All of this changes when
// results come, never what they are.
#include "mf_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Below this many touched bytes a dispatch is about as fast as handing it over (0.6 us with two threads).
// Sanitizer builds set 0, to see several threads in every dispatch.
#ifndef MF_SOLO_BYTES
#define MF_SOLO_BYTES 16384
#endif

enum {
  // Waiting for a thread to wake pays at one nanosecond for so many bytes, up to a usual wake.
  WAIT_BYTES_PER_NS = 16,
  WAIT_NS_MAX = 60000,
  // Who waited in vain does not wait again for this long.
  SHORT_NS = 200000,
  // Idle threads spin, then spin with yields between, then sleep. Waking takes 0.05 to 0.1 ms in a virtual machine.
  SPIN_NS = 20000,
  YIELD_NS = 1000000,
  ROUNDS_PER_LOOK = 64,
  // A host that computes between two waits is back within this; then no pool thread is woken in its place, for
  // which there would be no core.
  AWAY_NS = 1000000,
  // What is gained by members is worth so much patience when one has lost its core to another process. When it is
  // used up the leader works alone for a while: on a busy machine one thread is twice as fast as two that wait
  // for each other.
  GAIN_NS_MAX = 10000000,
  ALONE_NS_MIN = 4000000,
  ALONE_NS_MAX = 128000000,
  // A host that submits usually waits soon after and leads then: it is let go first.
  GRACE_NS = 15000,
};

// The pool thread that this one is; NULL in a host's.
static _Thread_local const mf_worker *own_worker;

static uint32_t count_bits(uint64_t bits) { return (uint32_t)__builtin_popcountll(bits); }

// --- The leader's side.

// Whether a host waits, or is about to.
static bool host_is_near(const mf_device *device) {
  const uint64_t until_ns = atomic_load_explicit(&device->host_until_ns, memory_order_relaxed);
  return until_ns == MF_FOREVER_NS || (until_ns != 0 && mf_now_ns() < until_ns);
}

// Pool threads that may sleep while a list runs: one where a host takes its place.
static uint32_t spare(const mf_device *device) { return host_is_near(device) ? 1 : 0; }

#ifdef __linux__
// Keeps pool threads off the core that runs this one. Left alone, the system wakes a thread where its waker runs, and
// finds out milliseconds later that another core is idle (two cores, Linux 6.18; docs/performance.md).
static void keep_apart(mf_device *device) {
  const int core = sched_getcpu();
  if (core < 0 || device->threads == 1 || (int)device->threads > CPU_COUNT(&device->cores)) return;
  for (uint32_t i = 0; i < device->worker_count; i++) {
    mf_worker *worker = &device->workers[i];
    if (worker == own_worker) continue;
    if (atomic_exchange_explicit(&worker->barred_core, core, memory_order_relaxed) == core) continue;
    cpu_set_t cores = device->cores;
    CPU_CLR(core, &cores);
    (void)pthread_setaffinity_np(worker->thread, sizeof cores, &cores);
  }
}
static void note_cores(mf_device *device) {
  if (sched_getaffinity(0, sizeof device->cores, &device->cores) != 0) CPU_ZERO(&device->cores);
}
#else
static void keep_apart(mf_device *device) { (void)device; }
static void note_cores(mf_device *device) { (void)device; }
#endif

// Wakes as many sleeping threads as the dispatch can use.
static void recruit(mf_device *device) {
  if (atomic_load_explicit(&device->sleeping, memory_order_relaxed) <= spare(device)) return;
  pthread_mutex_lock(&device->lock);
  const uint32_t sleeping = atomic_load(&device->sleeping), kept = spare(device);
  const uint32_t woken = sleeping > kept ? sleeping - kept : 0;
  atomic_fetch_sub(&device->sleeping, woken);
  device->tickets += woken;
  pthread_mutex_unlock(&device->lock);
  for (uint32_t i = 0; i < woken; i++) pthread_cond_signal(&device->work);
}

// Threads that are awake beside the leader and will look for work soon.
static uint32_t awake_members(const mf_device *device) {
  const uint32_t sleeping = atomic_load_explicit(&device->sleeping, memory_order_relaxed);
  const uint32_t awake = device->worker_count - sleeping - (own_worker != NULL ? 1 : 0);
  return awake + (atomic_load_explicit(&device->seated, memory_order_relaxed) ? 1 : 0);
}

static uint64_t lowest_bits(uint64_t bits, uint32_t count) {
  uint64_t chosen = 0;
  for (; count > 0 && bits != 0; count--) {
    chosen |= bits & -bits;
    bits &= bits - 1;
  }
  return chosen;
}

// Gives threads that are waking, or between two looks, a moment to come.
static uint64_t await_ready(mf_device *device, uint32_t wanted, double bytes) {
  const double limit_ns = bytes / WAIT_BYTES_PER_NS;
  const uint64_t end_ns = mf_now_ns() + (limit_ns < WAIT_NS_MAX ? (uint64_t)limit_ns : WAIT_NS_MAX);
  uint64_t ready;
  do {
    mf_relax();
    ready = atomic_load_explicit(&device->ready, memory_order_acquire);
  } while (count_bits(ready) < wanted && mf_now_ns() < end_ns);
  return ready;
}

// The pool threads that take part in a dispatch: theirs to leave only when they have run it.
static uint64_t claim(mf_device *device, double bytes) {
  if (own_worker == NULL || !host_is_near(device)) keep_apart(device);
  recruit(device);
  const uint32_t most = device->threads - 1, awake = awake_members(device);
  const uint32_t wanted = awake < most ? awake : most;
  uint64_t ready = atomic_load_explicit(&device->ready, memory_order_acquire);
  if (count_bits(ready) < wanted && mf_now_ns() >= device->short_until_ns) {
    ready = await_ready(device, wanted, bytes);
    if (count_bits(ready) < wanted) device->short_until_ns = mf_now_ns() + SHORT_NS;
  }
  const uint64_t chosen = lowest_bits(ready, most);
  if (chosen == 0) return 0;
  return chosen & atomic_fetch_and_explicit(&device->ready, ~chosen, memory_order_acq_rel);
}

static void call(mf_device *device, uint64_t members, mf_kernel_fn kernel, mf_task task) {
  for (; members != 0; members &= members - 1) {
    mf_worker *worker = &device->workers[__builtin_ctzll(members)];
    task.thread++;
    worker->task = task;
    worker->kernel = kernel;
    atomic_store_explicit(&worker->is_called, true, memory_order_release);
  }
}

static uint64_t finished_members(const mf_device *device) {
  return atomic_load_explicit(&device->finished_members, memory_order_acquire);
}

// Waits until every member has run its part, and keeps the account: members have spared the leader about as much
// as its own part took, less what it waited for them at the end.
static void join(mf_device *device, uint64_t members, uint64_t start_ns) {
  const uint64_t end_ns = mf_now_ns();
  mf_patience patience = {0};
  while (finished_members(device) != members) mf_patience_step(&patience);
  const uint64_t waited_ns = patience.rounds == 0 ? 0 : mf_now_ns() - end_ns;
  device->gain_ns += (int64_t)(end_ns - start_ns) - (int64_t)waited_ns;
  if (device->gain_ns > GAIN_NS_MAX) device->gain_ns = GAIN_NS_MAX;
  device->alone_ns -= device->alone_ns / 128;
  if (device->gain_ns >= 0) return;
  device->gain_ns = 0;
  device->alone_ns = 2 * device->alone_ns;
  if (device->alone_ns < ALONE_NS_MIN) device->alone_ns = ALONE_NS_MIN;
  if (device->alone_ns > ALONE_NS_MAX) device->alone_ns = ALONE_NS_MAX;
  device->alone_until_ns = end_ns + waited_ns + device->alone_ns;
}

static bool is_alone(mf_device *device, const mf_step *step) {
  if (device->threads == 1 || step->bytes < MF_SOLO_BYTES) return true;
  if (device->alone_until_ns == 0) return false;
  if (mf_now_ns() < device->alone_until_ns) return true;
  device->alone_until_ns = 0;
  return false;
}

static void reset(mf_dispatch *dispatch) {
  for (int i = 0; i < MF_PHASE_COUNT; i++)
    atomic_store_explicit(&dispatch->phases[i].next, 0, memory_order_relaxed);
  atomic_store_explicit(&dispatch->arrived, 0, memory_order_relaxed);
  atomic_store_explicit(&dispatch->broken, false, memory_order_relaxed);
  atomic_store_explicit(&dispatch->leader_left, false, memory_order_relaxed);
  atomic_store_explicit(&dispatch->shared_failed, false, memory_order_relaxed);
  atomic_store_explicit(&dispatch->device->finished_members, 0, memory_order_relaxed);
}

void mf_pool_run(mf_device *device, const mf_step *step) {
  mf_dispatch *dispatch = &device->dispatch;
  const mf_kernel_fn kernel = mf_kernel_function(step->kernel);
  const uint64_t members = is_alone(device, step) ? 0 : claim(device, step->bytes);
  const uint64_t start_ns = members == 0 ? 0 : mf_now_ns();
  const mf_task task = {
      .buffers = step->buffers,
      .params = step->params,
      .thread = 0,
      .threads = 1 + count_bits(members),
      .simd = device->simd,
      .dispatch = dispatch,
  };
  reset(dispatch);
  call(device, members, kernel, task);
  kernel(&task);
  if (members != 0) {
    atomic_store_explicit(&dispatch->leader_left, true, memory_order_release);
    join(device, members, start_ns);
  }
  atomic_fetch_add_explicit(&device->dispatches, 1, memory_order_relaxed);
}

// --- A pool thread's side.

static uint64_t bit_of(const mf_worker *worker) { return (uint64_t)1 << worker->index; }

// From now on a leader may claim this thread.
static void announce(mf_worker *worker) {
  atomic_fetch_or_explicit(&worker->device->ready, bit_of(worker), memory_order_release);
}

// Runs what this thread was called for, if anything; announces it again.
static bool serve(mf_worker *worker) {
  if (!atomic_load_explicit(&worker->is_called, memory_order_acquire)) return false;
  atomic_store_explicit(&worker->is_called, false, memory_order_relaxed);
  worker->kernel(&worker->task);
  // In this order: the leader that sees the end may claim the thread again at once.
  announce(worker);
  atomic_fetch_or_explicit(&worker->device->finished_members, bit_of(worker), memory_order_release);
  return true;
}

// Afterwards no leader counts on this thread; what it was claimed for it runs first.
static void withdraw(mf_worker *worker) {
  const uint64_t bit = bit_of(worker);
  while ((atomic_fetch_and_explicit(&worker->device->ready, ~bit, memory_order_acq_rel) & bit) == 0) {
    mf_patience patience = {0};
    while (!serve(worker)) mf_patience_step(&patience);
  }
}

// While a list runs, as many threads stay awake as a dispatch can use, however long one takes: who woke too late for
// one is there for the next. Asleep they came too late for up to a third of the dispatches.
static bool is_needed(const mf_device *device) {
  return atomic_load_explicit(&device->leading, memory_order_relaxed) &&
         atomic_load_explicit(&device->sleeping, memory_order_relaxed) >= spare(device);
}

// And no more than that: one too many takes a core from the others.
static bool is_surplus(const mf_device *device) {
  return atomic_load_explicit(&device->leading, memory_order_relaxed) && !is_needed(device);
}

static void sleep_for_work(mf_device *device) {
  pthread_mutex_lock(&device->lock);
  if (is_needed(device)) {
    pthread_mutex_unlock(&device->lock);
    sched_yield();
    return;
  }
  atomic_fetch_add(&device->sleeping, 1);
  while (device->tickets == 0 && !atomic_load(&device->stopping) && !mf_queue_can_lead(device))
    pthread_cond_wait(&device->work, &device->lock);
  // Who gives a ticket has already counted this thread as awake.
  if (device->tickets > 0)
    device->tickets--;
  else
    atomic_fetch_sub(&device->sleeping, 1);
  pthread_mutex_unlock(&device->lock);
}

static bool is_due(const mf_device *device) {
  if (!atomic_load_explicit(&device->runnable, memory_order_acquire)) return false;
  return mf_now_ns() - atomic_load_explicit(&device->runnable_ns, memory_order_relaxed) >= GRACE_NS;
}

static void lead(mf_worker *worker) {
  mf_device *device = worker->device;
  withdraw(worker);
  pthread_mutex_lock(&device->lock);
  if (mf_queue_can_lead(device)) mf_queue_lead(device, NULL);
  pthread_mutex_unlock(&device->lock);
  announce(worker);
}

// One more look without work. Between yields the thread cannot be claimed, because it may lose its core
// there for milliseconds. True, and it stays withdrawn, when it has looked for long enough.
static bool is_tired(mf_worker *worker, mf_patience *patience) {
  mf_relax();
  if (++patience->rounds % ROUNDS_PER_LOOK != 0) return false;
  const uint64_t now_ns = mf_now_ns();
  if (patience->start_ns == 0) patience->start_ns = now_ns;
  const uint64_t idle_ns = now_ns - patience->start_ns;
  if (idle_ns < SPIN_NS) return false;
  withdraw(worker);
  if (idle_ns >= YIELD_NS || is_surplus(worker->device)) return true;
  sched_yield();
  announce(worker);
  return false;
}

static void *worker_main(void *argument) {
  mf_worker *worker = argument;
  mf_device *device = worker->device;
  mf_patience patience = {0};
  own_worker = worker;
  announce(worker);
  while (!atomic_load_explicit(&device->stopping, memory_order_acquire)) {
    if (serve(worker)) {
      patience = (mf_patience){0};
    } else if (is_due(device)) {
      lead(worker);
      patience = (mf_patience){0};
    } else if (is_tired(worker, &patience)) {
      sleep_for_work(device);
      patience = (mf_patience){0};
      announce(worker);
    }
  }
  withdraw(worker);
  return NULL;
}

// --- A waiting host's side. With the device locked, but for mf_pool_sit.

void mf_pool_host_comes(mf_device *device) {
  if (device->closing) return;  // the pool's threads may have gone
  keep_apart(device);
  atomic_store_explicit(&device->host_until_ns, MF_FOREVER_NS, memory_order_relaxed);
}

void mf_pool_host_leaves(mf_device *device, bool is_asleep) {
  const uint64_t until_ns = is_asleep ? 0 : mf_now_ns() + AWAY_NS;
  atomic_store_explicit(&device->host_until_ns, until_ns, memory_order_relaxed);
}

bool mf_pool_take_seat(mf_device *device) {
  if (atomic_load(&device->seated) || device->closing || device->threads >= MF_THREADS_MAX) return false;
  atomic_store(&device->seated, true);
  return true;
}

void mf_pool_leave_seat(mf_device *device) {
  atomic_store(&device->seated, false);
  if (device->closing) pthread_cond_broadcast(&device->news);
}

bool mf_pool_sit(mf_device *device, const mf_goal *goal) {
  mf_worker *seat = &device->workers[device->threads];
  mf_patience patience = {0};
  announce(seat);
  while (!mf_queue_has_news(device, goal)) {
    if (serve(seat)) {
      patience = (mf_patience){0};
    } else if (is_tired(seat, &patience)) {
      if (!atomic_load_explicit(&device->leading, memory_order_acquire)) return false;
      patience = (mf_patience){0};
      sched_yield();
      announce(seat);
    }
  }
  withdraw(seat);
  return true;
}

// --- Life.

int32_t mf_pool_start(mf_device *device) {
  const uint32_t places = device->threads + 1;
  void *workers = NULL;
  if (posix_memalign(&workers, MF_LINE_BYTES, places * sizeof(mf_worker)) != 0)
    return mf_error(MF_ERR_MEMORY, "no memory is left for %u threads", device->threads);
  memset(workers, 0, places * sizeof(mf_worker));
  device->workers = workers;
  for (uint32_t i = 0; i < places; i++) {
    device->workers[i].index = i;
    device->workers[i].device = device;
    atomic_store(&device->workers[i].barred_core, -1);
  }
  note_cores(device);
  for (uint32_t i = 0; i < device->threads; i++) {
    mf_worker *worker = &device->workers[i];
    // The count is what mf_queue_changed compares with, under the lock.
    pthread_mutex_lock(&device->lock);
    const int code = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (code == 0) device->worker_count++;
    pthread_mutex_unlock(&device->lock);
    if (code != 0)
      return mf_error(MF_ERR_DEVICE, "thread %u of %u could not be started: %s", i + 1, device->threads,
                      strerror(code));
  }
  return MF_OK;
}

void mf_pool_stop(mf_device *device) {
  pthread_mutex_lock(&device->lock);
  atomic_store(&device->stopping, true);
  pthread_mutex_unlock(&device->lock);
  pthread_cond_broadcast(&device->work);
  for (uint32_t i = 0; i < device->worker_count; i++) pthread_join(device->workers[i].thread, NULL);
  free(device->workers);
  device->workers = NULL;
}

// --- What kernels may use.

uint32_t mf_take(const mf_task *task, uint32_t phase, uint32_t count) {
  (void)count;
  mf_counter *counter = &task->dispatch->phases[phase];
  if (task->threads > 1) return atomic_fetch_add_explicit(&counter->next, 1, memory_order_relaxed);
  const uint32_t unit = atomic_load_explicit(&counter->next, memory_order_relaxed);
  atomic_store_explicit(&counter->next, unit + 1, memory_order_relaxed);
  return unit;
}

// True when no further thread can come: the others have left the kernel, after a failure.
static bool is_deserted(const mf_task *task, uint32_t generation) {
  const mf_dispatch *dispatch = task->dispatch;
  const uint32_t arrived = atomic_load_explicit(&dispatch->arrived, memory_order_acquire);
  const uint32_t left = count_bits(finished_members(dispatch->device)) +
                        atomic_load_explicit(&dispatch->leader_left, memory_order_acquire);
  // While the last one is between its arrival and the new generation, all have arrived and none has left.
  return left > 0 && arrived + left >= task->threads &&
         atomic_load_explicit(&dispatch->generation, memory_order_acquire) == generation;
}

void mf_barrier(const mf_task *task) {
  mf_dispatch *dispatch = task->dispatch;
  if (task->threads == 1) return;
  const uint32_t generation = atomic_load_explicit(&dispatch->generation, memory_order_acquire);
  if (atomic_fetch_add_explicit(&dispatch->arrived, 1, memory_order_acq_rel) + 1 == task->threads) {
    atomic_store_explicit(&dispatch->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&dispatch->generation, generation + 1, memory_order_release);
    return;
  }
  mf_patience patience = {0};
  while (atomic_load_explicit(&dispatch->generation, memory_order_acquire) == generation) {
    if (atomic_load_explicit(&dispatch->broken, memory_order_acquire)) return;
    mf_patience_step(&patience);
    if (patience.rounds % 1024 != 0 || !is_deserted(task, generation)) continue;
    mf_fail(task, "a thread left a kernel before its barrier");
    atomic_store_explicit(&dispatch->broken, true, memory_order_release);
  }
}

void mf_fail(const mf_task *task, const char *format, ...) {
  char sentence[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  mf_queue_fail(task->dispatch->device, sentence);
}
