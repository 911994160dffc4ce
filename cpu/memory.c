// Memory that the library owns: slabs, mapped files and the memory of plain buffers. One lives while its
// handle or any buffer over it does. Knows nothing of devices.
#include "mf_core.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_MAX_EXACT 9007199254740992.0  // 2^53

int32_t mf_size(double value, const char *what, size_t *size) {
  if (!(value >= 0) || value > SIZE_MAX_EXACT || floor(value) != value)
    return mf_error(MF_ERR_ARGUMENT, "%s is %.17g; a whole number from 0 to 2^53 was expected", what,
                    value);
  if (value > (double)(SIZE_MAX / 2))
    return mf_error(MF_ERR_MEMORY, "%s is %.17g, more than this machine can address", what, value);
  *size = (size_t)value;
  return MF_OK;
}

static void destroy_memory(void *object) {
  mf_memory *memory = object;
  if (memory->read_only) mf_fault_forget(memory->contents);
  if (memory->mapped)
    munmap(memory->contents, memory->bytes);
  else
    free(memory->contents);
  free(memory);
}

static mf_memory *wrap(void *contents, size_t bytes, bool mapped) {
  mf_memory *memory = calloc(1, sizeof *memory);
  if (memory == NULL) return NULL;
  memory->object.kind = MF_KIND_MEMORY;
  memory->object.references = 1;
  memory->object.destroy = destroy_memory;
  memory->contents = contents;
  memory->bytes = bytes;
  memory->mapped = mapped;
  return memory;
}

// Anonymous memory that starts at a multiple of 2 MiB: mapped larger, the ends given back.
static void *map_slab(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t rounded = (bytes + page - 1) / page * page;
  uint8_t *mapped = mmap(NULL, rounded + MF_SLAB_ALIGN, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return NULL;
  const size_t before = (MF_SLAB_ALIGN - (uintptr_t)mapped % MF_SLAB_ALIGN) % MF_SLAB_ALIGN;
  const size_t after = MF_SLAB_ALIGN - before;
  if (before > 0) munmap(mapped, before);
  if (after > 0) munmap(mapped + before + rounded, after);
#ifdef MADV_HUGEPAGE
  // Direct reads into huge pages run at more than twice the rate, and kernels gain 5 to 15 %. A refusal
  // costs only that.
  (void)madvise(mapped + before, rounded, MADV_HUGEPAGE);
#endif
  return mapped + before;
}

mf_memory *mf_memory_new(size_t bytes, bool slab) {
  void *contents = NULL;
  if (slab) {
    contents = map_slab(bytes);
  } else if (posix_memalign(&contents, MF_LINE_BYTES, bytes) == 0) {
    memset(contents, 0, bytes);
  } else {
    contents = NULL;
  }
  mf_memory *memory = contents == NULL ? NULL : wrap(contents, bytes, slab);
  if (memory != NULL) return memory;
  if (contents != NULL && slab) munmap(contents, bytes);
  if (contents != NULL && !slab) free(contents);
  mf_error(MF_ERR_MEMORY, "%zu bytes of memory could not be had: %s", bytes, strerror(ENOMEM));
  return NULL;
}

int32_t mf_memory_allocate(double bytes, mf_handle *handle) {
  if (handle == NULL) return mf_error(MF_ERR_ARGUMENT, "no place was given for the memory's handle");
  size_t size = 0;
  const int32_t status = mf_size(bytes, "the size of memory", &size);
  if (status != MF_OK) return status;
  if (size == 0) return mf_error(MF_ERR_ARGUMENT, "the size of memory is 0; at least 1 was expected");
  mf_memory *memory = mf_memory_new(size, true);
  return memory == NULL ? MF_ERR_MEMORY : mf_handle_create(&memory->object, handle);
}

// The usual read-ahead is kept: weights are matrices read from end to end, so pages come in order, and
// without read-ahead a cold start would fetch them one page at a time.
int32_t mf_memory_map(const char *path, mf_handle *handle) {
  if (path == NULL || handle == NULL)
    return mf_error(MF_ERR_ARGUMENT, "a path and a place for the memory's handle were expected");
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return mf_error(MF_ERR_IO, "%s could not be opened: %s", path, strerror(errno));
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
    close(file);
    return mf_error(MF_ERR_IO, "%s cannot be mapped: a regular file that is not empty was expected",
                    path);
  }
  const size_t bytes = (size_t)status.st_size;
  void *contents = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  const int code = errno;
  close(file);
  if (contents == MAP_FAILED)
    return mf_error(MF_ERR_IO, "%s could not be mapped: %s", path, strerror(code));
  mf_memory *memory = wrap(contents, bytes, true);
  if (memory == NULL) {
    munmap(contents, bytes);
    return mf_error(MF_ERR_MEMORY, "no memory is left to map %s", path);
  }
  memory->read_only = true;
  mf_fault_watch(contents, bytes);
  return mf_handle_create(&memory->object, handle);
}

int32_t mf_memory_contents(mf_handle handle, void **contents, double *bytes) {
  if (contents == NULL || bytes == NULL)
    return mf_error(MF_ERR_ARGUMENT, "places for the contents and their size were expected");
  mf_memory *memory = mf_handle_acquire(handle, MF_KIND_MEMORY);
  if (memory == NULL) return MF_ERR_HANDLE;
  *contents = memory->contents;
  *bytes = (double)memory->bytes;
  mf_object_release(memory);
  return MF_OK;
}

int32_t mf_memory_release(mf_handle handle) {
  mf_handles_lock();
  mf_memory *memory = mf_handle_find(handle, MF_KIND_MEMORY);
  if (memory != NULL) mf_handle_remove(handle);
  mf_handles_unlock();
  if (memory == NULL) return MF_ERR_HANDLE;
  mf_object_release(memory);
  return MF_OK;
}
