// Buffers: ranges of memory that kernels bind. A buffer over foreign memory copies nothing and keeps the
// memory alive; a plain one has memory of its own.
#include "mf_core.h"

#include <stdlib.h>

static void destroy_buffer(void *object) {
  mf_buffer *buffer = object;
  if (buffer->owns_memory) atomic_fetch_sub(&buffer->device->buffer_bytes, buffer->bytes);
  mf_object_release(buffer->memory);
  mf_object_release(buffer->device);
  free(buffer);
}

// Takes over the references to the device and the memory.
static int32_t create(mf_device *device, mf_memory *memory, mf_buffer range, mf_handle *handle) {
  mf_buffer *buffer = calloc(1, sizeof *buffer);
  if (buffer == NULL) {
    mf_object_release(memory);
    mf_object_release(device);
    return mf_error(MF_ERR_MEMORY, "no memory is left for a buffer");
  }
  buffer->object.kind = MF_KIND_BUFFER;
  buffer->object.references = 1;
  buffer->object.destroy = destroy_buffer;
  buffer->device = device;
  buffer->memory = memory;
  buffer->contents = range.contents;
  buffer->bytes = range.bytes;
  buffer->owns_memory = range.owns_memory;
  if (buffer->owns_memory) atomic_fetch_add(&device->buffer_bytes, buffer->bytes);
  return mf_handle_create(&buffer->object, handle);
}

int32_t mf_buffer_create(mf_handle device_handle, double bytes, mf_handle *handle) {
  if (handle == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the buffer's handle");
  size_t size = 0;
  const int32_t status = mf_size(bytes, "the size of a buffer", &size);
  if (status != MF_OK) return status;
  if (size == 0) return mf_error(MF_ERR_ARGUMENT, "the size of a buffer is 0; at least 1 was expected");
  mf_device *device = mf_handle_acquire(device_handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  mf_memory *memory = mf_memory_new(size, size >= MF_SLAB_ALIGN);
  if (memory == NULL) {
    mf_object_release(device);
    return MF_ERR_MEMORY;
  }
  const mf_buffer range = {.contents = memory->contents, .bytes = size, .owns_memory = true};
  return create(device, memory, range, handle);
}

int32_t mf_buffer_from_memory(mf_handle device_handle, mf_handle memory_handle, double offset,
                              double bytes, mf_handle *handle) {
  if (handle == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the buffer's handle");
  size_t start = 0, size = 0;
  int32_t status = mf_size(offset, "the offset of a buffer", &start);
  if (status == MF_OK) status = mf_size(bytes, "the size of a buffer", &size);
  if (status != MF_OK) return status;
  mf_device *device = mf_handle_acquire(device_handle, MF_KIND_DEVICE);
  if (device == NULL) return MF_ERR_HANDLE;
  mf_memory *memory = mf_handle_acquire(memory_handle, MF_KIND_MEMORY);
  if (memory == NULL) {
    mf_object_release(device);
    return MF_ERR_HANDLE;
  }
  if (size == 0 || start > memory->bytes || size > memory->bytes - start) {
    status = mf_error(MF_ERR_ARGUMENT,
                      "a buffer of %zu bytes from byte %zu on does not lie in memory of %zu bytes", size,
                      start, memory->bytes);
    mf_object_release(memory);
    mf_object_release(device);
    return status;
  }
  const mf_buffer range = {.contents = memory->contents + start, .bytes = size};
  return create(device, memory, range, handle);
}

int32_t mf_buffer_contents(mf_handle handle, void **contents, double *bytes) {
  if (contents == NULL || bytes == NULL)
    return mf_error(MF_ERR_ARGUMENT, "places for the contents and their size were expected");
  mf_buffer *buffer = mf_handle_acquire(handle, MF_KIND_BUFFER);
  if (buffer == NULL) return MF_ERR_HANDLE;
  *contents = buffer->contents;
  *bytes = (double)buffer->bytes;
  mf_object_release(buffer);
  return MF_OK;
}

int32_t mf_buffer_destroy(mf_handle handle) {
  int32_t status = MF_OK;
  mf_handles_lock();
  mf_buffer *buffer = mf_handle_find(handle, MF_KIND_BUFFER);
  if (buffer == NULL)
    status = MF_ERR_HANDLE;
  else if (atomic_load(&buffer->pins) > 0)
    status = mf_error(MF_ERR_ARGUMENT,
                      "buffer %u is used by a submitted command list; wait for the list first", handle);
  else
    mf_handle_remove(handle);
  mf_handles_unlock();
  if (status == MF_OK) mf_object_release(buffer);
  return status;
}
