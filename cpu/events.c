// Events: values that only grow. A value changes with its device's lock held and is read without it.
#include "mf_core.h"

#include <math.h>
#include <stdlib.h>

#define VALUE_MAX 9007199254740992.0  // 2^53: a double holds every whole number up to it

static void destroy_event(void *object) {
  mf_event *event = object;
  mf_object_release(event->device);
  free(event);
}

int32_t mf_event_create(mf_handle device_handle, mf_handle *handle) {
  if (handle == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the event's handle");
  mf_device *device = mf_handle_acquire(device_handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  mf_event *event = calloc(1, sizeof *event);
  if (event == NULL) {
    mf_object_release(device);
    return mf_error(MF_ERR_MEMORY, "no memory is left for an event");
  }
  event->object.kind = MF_KIND_EVENT;
  event->object.references = 1;
  event->object.destroy = destroy_event;
  event->device = device;
  return mf_handle_create(&event->object, handle);
}

int32_t mf_event_number(double value, uint64_t *number) {
  if (!(value >= 0) || value > VALUE_MAX || floor(value) != value)
    return mf_error(MF_ERR_ARGUMENT,
                    "an event's value is %.17g; a whole number from 0 to 2^53 was expected", value);
  *number = (uint64_t)value;
  return MF_OK;
}

int32_t mf_deadline(double timeout_seconds, uint64_t *deadline_ns) {
  if (!(timeout_seconds >= 0))
    return mf_error(MF_ERR_ARGUMENT, "a timeout is %.17g s; 0 or more was expected", timeout_seconds);
  // A year is as good as for ever.
  *deadline_ns = timeout_seconds > 3e7 ? MF_FOREVER_NS
                                       : mf_now_ns() + (uint64_t)(timeout_seconds * 1e9);
  return MF_OK;
}

// A list's signal: the thread that runs the list calls it.
void mf_event_raise(mf_event *event, uint64_t value) {
  mf_device *device = event->device;
  pthread_mutex_lock(&device->lock);
  if (value > atomic_load_explicit(&event->value, memory_order_relaxed))
    atomic_store_explicit(&event->value, value, memory_order_release);
  const bool awaited = device->host_waiters > 0;
  pthread_mutex_unlock(&device->lock);
  if (awaited) pthread_cond_broadcast(&device->news);
}

int32_t mf_event_signal(mf_handle handle, double value) {
  uint64_t number = 0;
  const int32_t status = mf_event_number(value, &number);
  if (status != MF_OK) return status;
  mf_event *event = mf_handle_acquire(handle, MF_KIND_EVENT);
  if (event == NULL) return MF_ERR_HANDLE;
  mf_event_raise(event, number);
  mf_device *device = event->device;
  pthread_mutex_lock(&device->lock);
  mf_queue_changed(device);
  pthread_mutex_unlock(&device->lock);
  mf_object_release(event);
  return MF_OK;
}

int32_t mf_event_value(mf_handle handle, double *value) {
  if (value == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the event's value");
  mf_event *event = mf_handle_acquire(handle, MF_KIND_EVENT);
  if (event == NULL) return MF_ERR_HANDLE;
  *value = (double)atomic_load_explicit(&event->value, memory_order_acquire);
  mf_object_release(event);
  return MF_OK;
}

int32_t mf_event_wait(mf_handle handle, double value, double timeout_seconds) {
  mf_goal goal = {0};
  int32_t status = mf_event_number(value, &goal.value);
  if (status == MF_OK) status = mf_deadline(timeout_seconds, &goal.deadline_ns);
  if (status != MF_OK) return status;
  mf_event *event = mf_handle_acquire(handle, MF_KIND_EVENT);
  if (event == NULL) return MF_ERR_HANDLE;
  goal.event = event;
  status = mf_queue_wait(event->device, &goal);
  mf_object_release(event);
  return status;
}

int32_t mf_event_destroy(mf_handle handle) {
  int32_t status = MF_OK;
  mf_handles_lock();
  mf_event *event = mf_handle_find(handle, MF_KIND_EVENT);
  if (event == NULL)
    status = MF_ERR_HANDLE;
  else if (atomic_load(&event->list_waits) > 0)
    status = mf_error(MF_ERR_ARGUMENT,
                      "a submitted command list waits for event %u; signal it or cancel first", handle);
  else
    mf_handle_remove(handle);
  mf_handles_unlock();
  if (status != MF_OK) return status;
  pthread_mutex_lock(&event->device->lock);
  atomic_store(&event->destroyed, true);
  pthread_mutex_unlock(&event->device->lock);
  pthread_cond_broadcast(&event->device->news);
  mf_object_release(event);
  return MF_OK;
}
