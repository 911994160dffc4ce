// Devices: what one is made of, what it says about itself, and its end.
#include "mf_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint32_t mf_abi_version(void) { return MF_ABI_VERSION; }
uint32_t mf_catalogue_hash(void) { return MF_CATALOGUE_HASH; }

// When nothing refers to it any more, its buffers and events included.
static void destroy_device(void *object) {
  mf_device *device = object;
  mf_dispatch_destroy(&device->dispatch);
  pthread_cond_destroy(&device->news);
  pthread_cond_destroy(&device->work);
  pthread_mutex_destroy(&device->lock);
  free(device);
}

static mf_device *new_device(void) {
  void *place = NULL;
  if (posix_memalign(&place, MF_LINE_BYTES, sizeof(mf_device)) != 0) return NULL;
  mf_device *device = memset(place, 0, sizeof(mf_device));
  device->object.kind = MF_KIND_DEVICE;
  device->object.references = 1;
  device->object.destroy = destroy_device;
  device->dispatch.device = device;
  const int codes = pthread_mutex_init(&device->lock, NULL) | mf_condition_create(&device->work) |
                    mf_condition_create(&device->news) |
                    pthread_mutex_init(&device->dispatch.shared_lock, NULL);
  if (codes == 0) return device;
  free(device);
  return NULL;
}

int32_t mf_device_create(const mf_device_options *options, mf_handle *handle) {
  if (handle == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the device's handle");
  const mf_device_options chosen = options != NULL ? *options : (mf_device_options){0};
  char simd_name[sizeof chosen.simd + 1] = {0};
  memcpy(simd_name, chosen.simd, sizeof chosen.simd);
  mf_simd simd;
  int32_t status = mf_simd_choose(simd_name, &simd);
  if (status != MF_OK) return status;
  if (chosen.threads > MF_THREADS_MAX)
    return mf_error(MF_ERR_ARGUMENT, "%u threads were asked for; at most %d are possible", chosen.threads,
                    MF_THREADS_MAX);
  mf_device *device = new_device();
  if (device == NULL) return mf_error(MF_ERR_MEMORY, "no memory is left for a device");
  device->simd = simd;
  device->threads = chosen.threads > 0 ? chosen.threads : mf_processor_count();
  if (device->threads > MF_THREADS_MAX) device->threads = MF_THREADS_MAX;
  mf_processor_name(device->name, sizeof device->name);
  status = mf_pool_start(device);
  if (status == MF_OK) {
    mf_object_retain(device);  // the second reference is for the way out below
    status = mf_handle_create(&device->object, handle);
  }
  if (status != MF_OK) mf_pool_stop(device);
  mf_object_release(device);
  return status;
}

int32_t mf_device_info(mf_handle handle, mf_device_info_t *info) {
  if (info == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the device's description");
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "%s", device->name);
  snprintf(info->simd, sizeof info->simd, "%s", mf_simd_name(device->simd));
  info->threads = device->threads;
  info->page_bytes = (uint32_t)sysconf(_SC_PAGESIZE);
  info->memory_bytes = mf_processor_memory_bytes();
  info->buffer_bytes_max = info->memory_bytes;
  mf_object_release(device);
  return MF_OK;
}

int32_t mf_device_destroy(mf_handle handle) {
  mf_handles_lock();
  mf_device *device = mf_handle_find(handle, MF_KIND_DEVICE);
  if (device != NULL) mf_handle_remove(handle);
  mf_handles_unlock();
  if (device == NULL) return MF_ERR_HANDLE;
  mf_queue_close(device);
  mf_pool_stop(device);
  mf_object_release(device);
  return MF_OK;
}

int32_t mf_counters(mf_handle handle, mf_counters_t *counters) {
  if (counters == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the counters");
  mf_device *device = mf_handle_acquire(handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  pthread_mutex_lock(&device->lock);
  counters->lists = (double)atomic_load(&device->finished);
  counters->dispatches = (double)atomic_load(&device->dispatches);
  counters->busy_seconds = device->busy_seconds;
  counters->event_seconds = device->event_seconds;
  counters->buffer_bytes = (double)atomic_load(&device->buffer_bytes);
  pthread_mutex_unlock(&device->lock);
  mf_object_release(device);
  return MF_OK;
}
