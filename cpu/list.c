// Command lists: the bytes are copied, checked whole against the catalogue and resolved to pointers, so
// that running one cannot fail for its form. Nothing here runs anything.
#include "mf_core.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  const char *name;
  mf_kernel_fn run;
  uint32_t buffer_count;
  uint32_t param_bytes;
} kernel_row;

static const kernel_row kernels[MF_KERNEL_COUNT] = {
#define ROW(name, buffer_count, param_bytes) {#name, mf_k_##name, buffer_count, param_bytes},
    MF_KERNEL_LIST(ROW)
#undef ROW
};

// Where the check is, for sentences too.
typedef struct {
  const uint8_t *commands;
  size_t bytes;
  size_t offset;
  uint32_t index;
} cursor;

mf_kernel_fn mf_kernel_function(uint32_t kernel) { return kernels[kernel].run; }

static size_t dispatch_bytes(const mf_command *command) {
  return sizeof(mf_command) + (size_t)command->buffer_count * sizeof(mf_binding) +
         ((size_t)command->param_bytes + 7) / 8 * 8;
}

static int32_t cut_short(const cursor *at, size_t needed) {
  return mf_error(MF_ERR_ARGUMENT, "command %u at byte %zu needs %zu bytes; the list has %zu left",
                  at->index, at->offset, needed, at->bytes - at->offset);
}

// One dispatch's header, and its size.
static int32_t check_dispatch(const cursor *at, size_t *bytes) {
  const mf_command *command = (const mf_command *)(at->commands + at->offset);
  if (at->bytes - at->offset < sizeof *command) return cut_short(at, sizeof *command);
  if (command->kernel >= MF_KERNEL_COUNT)
    return mf_error(MF_ERR_KERNEL, "command %u names kernel %u; the catalogue has %d", at->index,
                    command->kernel, MF_KERNEL_COUNT);
  const kernel_row *row = &kernels[command->kernel];
  if (command->buffer_count != row->buffer_count || command->param_bytes != row->param_bytes)
    return mf_error(MF_ERR_KERNEL,
                    "command %u (%s) has %u buffers and %u parameter bytes; %u and %u were expected",
                    at->index, row->name, command->buffer_count, command->param_bytes,
                    row->buffer_count, row->param_bytes);
  *bytes = dispatch_bytes(command);
  return at->bytes - at->offset < *bytes ? cut_short(at, *bytes) : MF_OK;
}

// The form of every command; counts what the list needs.
static int32_t measure(const uint8_t *commands, size_t bytes, mf_list *counts) {
  cursor at = {commands, bytes, 0, 0};
  if (bytes % 8 != 0)
    return mf_error(MF_ERR_ARGUMENT, "a command list has %zu bytes; a multiple of 8 was expected", bytes);
  for (; at.offset < bytes; at.index++) {
    uint32_t kind;
    memcpy(&kind, commands + at.offset, sizeof kind);
    size_t step_bytes = sizeof(mf_event_command);
    int32_t status = MF_OK;
    if (kind == MF_COMMAND_DISPATCH) {
      status = check_dispatch(&at, &step_bytes);
      if (status == MF_OK)
        counts->binding_count += ((const mf_command *)(commands + at.offset))->buffer_count;
    } else if (kind != MF_COMMAND_WAIT && kind != MF_COMMAND_SIGNAL) {
      status = mf_error(MF_ERR_ARGUMENT, "command %u at byte %zu has kind %u; 1, 2 or 3 was expected",
                        at.index, at.offset, kind);
    } else if (bytes - at.offset < step_bytes) {
      status = cut_short(&at, step_bytes);
    }
    if (status != MF_OK) return status;
    at.offset += step_bytes;
  }
  counts->step_count = at.index;
  return MF_OK;
}

// What a sentence about a binding begins with.
typedef struct {
  uint32_t command;
  const char *kernel;
  uint32_t binding;
} place;

static int32_t check_range(const mf_binding *binding, const mf_buffer *buffer, double extent_bytes,
                           const place *at) {
  size_t offset = 0, bytes = 0;
  int32_t status = mf_size(binding->offset, "the offset of a binding", &offset);
  if (status == MF_OK) status = mf_size(binding->bytes, "the size of a binding", &bytes);
  if (status != MF_OK) return status;
  if (binding->reserved != 0)
    return mf_error(MF_ERR_ARGUMENT, "command %u (%s): the reserved word of binding %u is %u, not 0",
                    at->command, at->kernel, at->binding, binding->reserved);
  if (offset > buffer->bytes || bytes > buffer->bytes - offset)
    return mf_error(MF_ERR_KERNEL,
                    "command %u (%s): binding %u, %zu bytes from byte %zu on, leaves its buffer of %zu",
                    at->command, at->kernel, at->binding, bytes, offset, buffer->bytes);
  if (!((double)bytes >= extent_bytes))
    return mf_error(MF_ERR_KERNEL, "command %u (%s): binding %u has %zu bytes; %.17g are touched",
                    at->command, at->kernel, at->binding, bytes, extent_bytes);
  return MF_OK;
}

static int32_t check_access(const mf_binding *binding, const mf_buffer *buffer, uint32_t flags,
                            const place *at) {
  if ((flags & MF_BINDING_WRITTEN) != 0 && buffer->memory->read_only)
    return mf_error(MF_ERR_KERNEL, "command %u (%s): binding %u is written, but its memory is read-only",
                    at->command, at->kernel, at->binding);
  const uint32_t element_bytes = flags & ~(uint32_t)MF_BINDING_WRITTEN;
  if (((uintptr_t)buffer->contents + (size_t)binding->offset) % element_bytes == 0) return MF_OK;
  return mf_error(MF_ERR_KERNEL, "command %u (%s): binding %u must start at a multiple of %u bytes",
                  at->command, at->kernel, at->binding, element_bytes);
}

// With the handle table locked. A bound buffer is pinned at once, so that undoing is destroying the list.
static int32_t resolve_binding(mf_device *device, mf_list *list, const mf_step *step,
                               const mf_binding *binding) {
  const uint32_t index = (uint32_t)(list->pointers + list->binding_count - step->buffers);
  const place at = {list->step_count, kernels[step->kernel].name, index};
  mf_buffer *buffer = mf_handle_find(binding->buffer, MF_KIND_BUFFER);
  if (buffer == NULL) return MF_ERR_HANDLE;
  if (buffer->device != device)
    return mf_error(MF_ERR_HANDLE, "command %u (%s): the buffer of binding %u is another device's",
                    at.command, at.kernel, index);
  const double extent_bytes = mf_extent_bytes(step->kernel, index, step->params);
  int32_t status = check_range(binding, buffer, extent_bytes, &at);
  if (status == MF_OK)
    status = check_access(binding, buffer, mf_binding_flags(step->kernel, index), &at);
  if (status != MF_OK) return status;
  mf_object_retain(buffer);
  atomic_fetch_add(&buffer->pins, 1);
  list->buffers[list->binding_count] = buffer;
  list->pointers[list->binding_count++] = buffer->contents + (size_t)binding->offset;
  return MF_OK;
}

// Whether a dispatch touches but few rows of what it binds, so that its bytes say nothing of its work.
static bool is_sparse(uint32_t kernel, uint32_t binding) {
  switch (kernel) {
  case MF_KERNEL_EMBED_AFFINE:
    return binding == MF_EMBED_AFFINE_CODES || binding == MF_EMBED_AFFINE_SCALES ||
           binding == MF_EMBED_AFFINE_BIASES;
  case MF_KERNEL_QKV_EPILOGUE_F32:
    return binding == MF_QKV_EPILOGUE_F32_KEYS || binding == MF_QKV_EPILOGUE_F32_VALUES;
  case MF_KERNEL_QKV_EPILOGUE_F16:
    return binding == MF_QKV_EPILOGUE_F16_KEYS || binding == MF_QKV_EPILOGUE_F16_VALUES;
  default:
    return false;
  }
}

static int32_t resolve_dispatch(mf_device *device, mf_list *list, const mf_command *command) {
  const mf_binding *bindings = (const mf_binding *)(command + 1);
  mf_step *step = &list->steps[list->step_count];
  step->kernel = command->kernel;
  step->buffers = list->pointers + list->binding_count;
  step->params = bindings + command->buffer_count;
  for (uint32_t i = 0; i < command->buffer_count; i++) {
    const int32_t status = resolve_binding(device, list, step, &bindings[i]);
    if (status != MF_OK) return status;
    if (!is_sparse(step->kernel, i)) step->bytes += bindings[i].bytes;
  }
  list->pinned_steps = list->step_count + 1;
  return MF_OK;
}

static int32_t resolve_event(mf_device *device, mf_list *list, const mf_event_command *command) {
  mf_step *step = &list->steps[list->step_count];
  const int32_t status = mf_event_number(command->value, &step->value);
  if (status != MF_OK) return status;
  mf_event *event = mf_handle_find(command->event, MF_KIND_EVENT);
  if (event == NULL) return MF_ERR_HANDLE;
  if (event->device != device)
    return mf_error(MF_ERR_HANDLE, "command %u: its event belongs to another device", list->step_count);
  mf_object_retain(event);
  if (command->kind == MF_COMMAND_WAIT) atomic_fetch_add(&event->list_waits, 1);
  step->event = event;
  return MF_OK;
}

// Counts again as it goes, so that the list holds just what has been resolved.
static int32_t resolve(mf_device *device, mf_list *list, size_t bytes) {
  list->step_count = 0;
  list->binding_count = 0;
  for (size_t offset = 0; offset < bytes; list->step_count++) {
    const uint8_t *command = list->commands + offset;
    mf_step *step = &list->steps[list->step_count];
    int32_t status;
    memcpy(&step->kind, command, sizeof step->kind);
    if (step->kind == MF_COMMAND_DISPATCH) {
      status = resolve_dispatch(device, list, (const mf_command *)command);
      offset += dispatch_bytes((const mf_command *)command);
    } else {
      status = resolve_event(device, list, (const mf_event_command *)command);
      offset += sizeof(mf_event_command);
    }
    if (status != MF_OK) return status;
  }
  return MF_OK;
}

static mf_list *allocate(const mf_list *counts) {
  const size_t steps = counts->step_count * sizeof(mf_step);
  const size_t pointers = counts->binding_count * sizeof(void *);
  mf_list *list = calloc(1, sizeof *list + steps + 2 * pointers);
  if (list == NULL) return NULL;
  list->steps = (mf_step *)(list + 1);
  list->pointers = (void **)(list->steps + counts->step_count);
  list->buffers = (mf_buffer **)(list->pointers + counts->binding_count);
  return list;
}

int32_t mf_list_create(mf_device *device, const uint8_t *commands, size_t bytes, mf_list **created) {
  // Copied before it is checked: the caller's bytes may change under our eyes.
  uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
  if (copy == NULL) return mf_error(MF_ERR_MEMORY, "no memory is left for a list of %zu bytes", bytes);
  if (bytes > 0) memcpy(copy, commands, bytes);
  mf_list counts = {0};
  int32_t status = measure(copy, bytes, &counts);
  mf_list *list = status == MF_OK ? allocate(&counts) : NULL;
  if (list == NULL) {
    free(copy);
    return status != MF_OK ? status
                           : mf_error(MF_ERR_MEMORY, "no memory is left for a list of %u commands",
                                      counts.step_count);
  }
  list->commands = copy;
  mf_handles_lock();
  status = resolve(device, list, bytes);
  mf_handles_unlock();
  if (status == MF_OK)
    *created = list;
  else
    mf_list_destroy(list);
  return status;
}

void mf_list_unpin(mf_list *list) {
  if (list->unpinned) return;
  list->unpinned = true;
  for (uint32_t i = 0; i < list->binding_count; i++) {
    atomic_fetch_sub(&list->buffers[i]->pins, 1);
    mf_object_release(list->buffers[i]);
  }
}

void mf_list_destroy(mf_list *list) {
  mf_list_unpin(list);
  for (uint32_t i = 0; i < list->step_count; i++) {
    const mf_step *step = &list->steps[i];
    if (step->event == NULL) continue;
    if (step->kind == MF_COMMAND_WAIT && i >= list->step_index)
      atomic_fetch_sub(&step->event->list_waits, 1);
    mf_object_release(step->event);
  }
  free(list->commands);
  free(list);
}
