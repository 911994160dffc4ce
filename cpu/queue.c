// The queue of a device: lists run one after another, led by one thread at a time. The leader may be a
// thread of the pool or a host that waits: a waiting host takes the lead or a place among the pool's threads, so
// that it neither steals a core from them nor has to be woken. A list that waits for an event has no leader.
#include "mf_core.h"

#include <stdio.h>
#include <string.h>

enum { UNDECIDED = 1 };

typedef enum { RUN_ENDED, RUN_BLOCKED, RUN_LEFT } run_end;

static bool goal_reached(const mf_device *device, const mf_goal *goal) {
  if (goal->event != NULL)
    return atomic_load_explicit(&goal->event->value, memory_order_acquire) >= goal->value;
  return atomic_load_explicit(&device->finished, memory_order_acquire) >= goal->sequence;
}

static bool has_passed(uint64_t deadline_ns) {
  return deadline_ns != MF_FOREVER_NS && mf_now_ns() >= deadline_ns;
}

// Whether a host that leads should leave between two commands.
static bool must_leave(const mf_device *device, const mf_goal *goal) {
  return goal != NULL && (goal_reached(device, goal) || has_passed(goal->deadline_ns));
}

// Whether a blocked list may go on.
static bool is_open(const mf_device *device, const mf_list *list) {
  const mf_step *step = &list->steps[list->step_index];
  return device->closing || atomic_load(&list->skip) ||
         atomic_load_explicit(&step->event->value, memory_order_relaxed) >= step->value;
}

bool mf_queue_can_lead(const mf_device *device) {
  const mf_list *head = device->head;
  return head != NULL && !device->leading && (!head->blocked || is_open(device, head));
}

// Tells the pool whether there is something to lead. Somebody awake will see it; if all sleep, one is
// woken.
void mf_queue_changed(mf_device *device) {
  const bool can_lead = mf_queue_can_lead(device);
  if (can_lead && !atomic_load_explicit(&device->runnable, memory_order_relaxed))
    atomic_store_explicit(&device->runnable_ns, mf_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&device->runnable, can_lead, memory_order_release);
  if (can_lead && atomic_load(&device->sleeping) == device->worker_count) {
    atomic_fetch_sub(&device->sleeping, 1);
    device->tickets++;
    pthread_cond_signal(&device->work);
  }
}

// Whether a file that the list reads has lost bytes. Its buffers are pinned as long as it has dispatches.
static bool uses_lost_file(const mf_list *list) {
  if (!mf_fault_seen()) return false;
  for (uint32_t i = 0; i < list->binding_count; i++) {
    const mf_buffer *buffer = list->buffers[i];
    if (buffer != NULL && buffer->memory->read_only && mf_fault_lost(buffer->memory->contents)) return true;
  }
  return false;
}

static run_end run_list(mf_device *device, mf_list *list, const mf_goal *goal) {
  while (list->step_index < list->step_count) {
    if (must_leave(device, goal)) return RUN_LEFT;
    const mf_step *step = &list->steps[list->step_index];
    const bool skip = atomic_load_explicit(&list->skip, memory_order_acquire);
    if (step->kind == MF_COMMAND_DISPATCH) {
      if (!skip) mf_pool_run(device, step);
      if (uses_lost_file(list))
        mf_queue_fail(device, "a mapped file was cut or could not be read while it was in use");
    } else if (step->kind == MF_COMMAND_SIGNAL) {
      mf_event_raise(step->event, step->value);
    } else {
      if (!skip && atomic_load_explicit(&step->event->value, memory_order_acquire) < step->value)
        return RUN_BLOCKED;
      atomic_fetch_sub(&step->event->list_waits, 1);
    }
    list->step_index++;
    // Before the signals that follow, so that who waits for them may destroy the buffers.
    if (list->step_index == list->pinned_steps) mf_list_unpin(list);
  }
  return RUN_ENDED;
}

static void pop_head(mf_device *device) {
  mf_list *list = device->head;
  device->head = list->next;
  if (device->head == NULL) device->tail = NULL;
  atomic_store_explicit(&device->finished, list->sequence, memory_order_release);
  pthread_mutex_unlock(&device->lock);
  mf_list_destroy(list);
  pthread_mutex_lock(&device->lock);
}

// Runs lists until none can run or, for a host, until its goal is reached or its time is over.
void mf_queue_lead(mf_device *device, const mf_goal *goal) {
  const uint64_t start_ns = mf_now_ns();
  device->leading = true;
  atomic_store_explicit(&device->runnable, false, memory_order_relaxed);
  for (mf_list *list = device->head; list != NULL; list = device->head) {
    if (list->blocked) device->event_seconds += 1e-9 * (double)(mf_now_ns() - list->blocked_ns);
    list->blocked = false;
    list->begun = true;
    pthread_mutex_unlock(&device->lock);
    const run_end end = run_list(device, list, goal);
    pthread_mutex_lock(&device->lock);
    if (end == RUN_LEFT) break;
    if (end == RUN_ENDED) {
      pop_head(device);
      if (goal != NULL && goal_reached(device, goal)) break;
    } else if (!is_open(device, list)) {
      list->blocked = true;
      list->blocked_ns = mf_now_ns();
      break;
    } else if (device->closing) {
      atomic_store(&list->skip, true);
    }
  }
  device->leading = false;
  device->busy_seconds += 1e-9 * (double)(mf_now_ns() - start_ns);
  mf_queue_changed(device);
  if (device->host_waiters > 0) pthread_cond_broadcast(&device->news);
}

// With the device locked: the status of a wait, or UNDECIDED. A failure or a cancellation comes before a
// value reached, because skipped work signals too; who waits for all lists first waits for their end.
static int32_t verdict(const mf_device *device, const mf_goal *goal) {
  const bool reached = goal_reached(device, goal);
  if (device->closing) return mf_error(MF_ERR_DEVICE, "the device was destroyed while it was waited for");
  if (goal->event == NULL && !reached) return UNDECIDED;
  if (atomic_load(&device->failed)) return mf_error(MF_ERR_DEVICE, "%s", device->failure);
  if (atomic_load(&device->cancelled))
    return mf_error(MF_ERR_CANCELLED, "the work was cancelled; mf_resume lets the device go on");
  if (goal->event != NULL && atomic_load(&goal->event->destroyed))
    return mf_error(MF_ERR_HANDLE, "the event was destroyed while it was waited for");
  return reached ? MF_OK : UNDECIDED;
}

bool mf_queue_has_news(const mf_device *device, const mf_goal *goal) {
  if (goal_reached(device, goal) || has_passed(goal->deadline_ns)) return true;
  if (atomic_load_explicit(&device->runnable, memory_order_acquire)) return true;
  // Who waits for all lists waits for their end whatever has happened.
  return goal->event != NULL && (atomic_load_explicit(&device->cancelled, memory_order_relaxed) ||
                                 atomic_load_explicit(&device->failed, memory_order_relaxed) ||
                                 atomic_load_explicit(&goal->event->destroyed, memory_order_relaxed));
}

// With the device locked, which it lets go meanwhile: until there may be news.
static void await_news(mf_device *device, const mf_goal *goal) {
  if (mf_pool_take_seat(device)) {
    pthread_mutex_unlock(&device->lock);
    const bool has_news = mf_pool_sit(device, goal);
    pthread_mutex_lock(&device->lock);
    mf_pool_leave_seat(device);
    // Something may have come between the last look and the lock.
    if (has_news || mf_queue_has_news(device, goal) || device->closing) return;
  }
  mf_pool_host_leaves(device, true);
  device->host_waiters++;
  (void)mf_condition_wait(&device->news, &device->lock, goal->deadline_ns);
  device->host_waiters--;
  mf_pool_host_comes(device);
}

int32_t mf_queue_wait(mf_device *device, const mf_goal *goal) {
  pthread_mutex_lock(&device->lock);
  mf_pool_host_comes(device);
  int32_t status;
  while ((status = verdict(device, goal)) == UNDECIDED) {
    if (has_passed(goal->deadline_ns)) {
      status = mf_error(MF_ERR_TIMEOUT, "the work was not done in time");
      break;
    }
    if (mf_queue_can_lead(device)) mf_queue_lead(device, goal);
    else await_news(device, goal);
  }
  mf_pool_host_leaves(device, false);
  pthread_mutex_unlock(&device->lock);
  return status;
}

static void skip_all(mf_device *device) {
  for (mf_list *list = device->head; list != NULL; list = list->next) atomic_store(&list->skip, true);
}

void mf_queue_fail(mf_device *device, const char *sentence) {
  pthread_mutex_lock(&device->lock);
  if (!atomic_load(&device->failed)) {
    snprintf(device->failure, sizeof device->failure, "%s", sentence);
    atomic_store(&device->failed, true);
  }
  skip_all(device);
  pthread_mutex_unlock(&device->lock);
  pthread_cond_broadcast(&device->news);
}

void mf_queue_close(mf_device *device) {
  pthread_mutex_lock(&device->lock);
  device->closing = true;
  mf_list *dropped = device->head;
  if (dropped != NULL && dropped->begun) {
    dropped = dropped->next;
    device->head->next = NULL;
    device->tail = device->head;
  } else {
    device->head = device->tail = NULL;
  }
  pthread_cond_broadcast(&device->news);
  const mf_goal end = {.sequence = UINT64_MAX, .deadline_ns = MF_FOREVER_NS};
  while (device->head != NULL || device->leading || device->seated) {
    if (mf_queue_can_lead(device)) {
      if (device->head->blocked) atomic_store(&device->head->skip, true);
      mf_queue_lead(device, &end);
    } else {
      device->host_waiters++;
      pthread_cond_wait(&device->news, &device->lock);
      device->host_waiters--;
    }
  }
  pthread_mutex_unlock(&device->lock);
  while (dropped != NULL) {
    mf_list *next = dropped->next;
    mf_list_destroy(dropped);
    dropped = next;
  }
}

// With the device locked: MF_OK if it takes lists.
static int32_t check_open(const mf_device *device) {
  if (device->closing) return mf_error(MF_ERR_DEVICE, "the device was destroyed");
  if (atomic_load(&device->failed)) return mf_error(MF_ERR_DEVICE, "%s", device->failure);
  if (atomic_load(&device->cancelled))
    return mf_error(MF_ERR_CANCELLED, "the device's work was cancelled; mf_resume lets it go on");
  return MF_OK;
}

static int32_t enqueue(mf_device *device, mf_list *list) {
  pthread_mutex_lock(&device->lock);
  const int32_t status = check_open(device);
  if (status == MF_OK) {
    list->sequence = ++device->submitted;
    if (device->tail == NULL)
      device->head = list;
    else
      device->tail->next = list;
    device->tail = list;
    mf_queue_changed(device);
  }
  pthread_mutex_unlock(&device->lock);
  if (status != MF_OK) mf_list_destroy(list);
  return status;
}

int32_t mf_submit(mf_handle handle, const uint8_t *commands, double bytes) {
  size_t size = 0;
  int32_t status = mf_size(bytes, "the size of a command list", &size);
  if (status != MF_OK) return status;
  if (commands == NULL && size > 0)
    return mf_error(MF_ERR_ARGUMENT, "a command list of %zu bytes was given without bytes", size);
  if (size > UINT32_MAX)
    return mf_error(MF_ERR_ARGUMENT, "a command list has %zu bytes; at most 2^32 - 1 were expected", size);
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  mf_list *list;
  status = mf_list_create(device, commands, size, &list);
  if (status == MF_OK) status = enqueue(device, list);
  mf_object_release(device);
  return status;
}

int32_t mf_finish(mf_handle handle, double timeout_seconds) {
  mf_goal goal = {0};
  int32_t status = mf_deadline(timeout_seconds, &goal.deadline_ns);
  if (status != MF_OK) return status;
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  pthread_mutex_lock(&device->lock);
  goal.sequence = device->submitted;
  pthread_mutex_unlock(&device->lock);
  status = mf_queue_wait(device, &goal);
  mf_object_release(device);
  return status;
}

int32_t mf_cancel(mf_handle handle) {
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  pthread_mutex_lock(&device->lock);
  atomic_store(&device->cancelled, true);
  skip_all(device);
  mf_queue_changed(device);
  pthread_mutex_unlock(&device->lock);
  pthread_cond_broadcast(&device->news);
  mf_object_release(device);
  return MF_OK;
}

int32_t mf_resume(mf_handle handle) {
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  pthread_mutex_lock(&device->lock);
  atomic_store(&device->cancelled, false);
  atomic_store(&device->failed, false);
  pthread_mutex_unlock(&device->lock);
  mf_object_release(device);
  return MF_OK;
}
