// The C ABI between the TypeScript orchestrator and a device.
// Two implementations: swift/ (Metal, macOS) and cpu/ (C, every platform).
//
// Every function returns MF_OK or a negative status; mf_last_error() then holds one sentence of the
// calling thread. Handles are small integers owned by the library, never pointers: a handle carries its
// kind and a generation, so that a stale one or one of another kind is refused. Sizes and offsets are
// bytes, passed as double: exact to 2^53, and NaN, negative or fractional values arrive as what they are
// and are refused. Every function may be called from any thread.
#ifndef MF_H
#define MF_H
#include <stdint.h>

#define MF_ABI_VERSION 1

typedef enum {
  MF_OK = 0,
  MF_ERR_ARGUMENT = -1,   // a value that makes no sense; the sentence names it
  MF_ERR_HANDLE = -2,     // no such handle, a stale one, or one of another kind
  MF_ERR_MEMORY = -3,     // memory could not be had
  MF_ERR_KERNEL = -4,     // no such kernel, or a binding too small for its dispatch
  MF_ERR_IO = -5,         // a file could not be opened or mapped
  MF_ERR_TIMEOUT = -6,    // the event did not reach its value in time
  MF_ERR_CANCELLED = -7,  // mf_cancel was called
  MF_ERR_DEVICE = -8,     // the device cannot be had or failed in the middle of a command list
} mf_status;

typedef uint32_t mf_handle;  // 0 is never a handle

typedef struct {
  uint32_t threads;   // 0: one for each core that this process may use
  char simd[12];      // "": the best; else "portable", "avx2", "avx512" or "neon"
} mf_device_options;

typedef struct {
  char name[64];        // of the device, for people
  char simd[12];        // instruction set in use; "" where it means nothing
  uint32_t threads;     // 0 where it means nothing
  uint32_t page_bytes;  // alignment that foreign memory needs
  double buffer_bytes_max;
  double memory_bytes;  // what the device may use at most
} mf_device_info_t;

typedef struct {
  double lists;           // command lists finished
  double dispatches;      // kernels run
  double busy_seconds;    // time with a command list in execution, waits for events left out if it is known
  double event_seconds;   // time that command lists waited for events; 0 where it is not known
  double buffer_bytes;    // bytes of live buffers that the library allocated itself
} mf_counters_t;

// --- A command list: any number of commands, each a header and its body, 8-byte aligned.
enum { MF_COMMAND_DISPATCH = 1, MF_COMMAND_WAIT = 2, MF_COMMAND_SIGNAL = 3 };

// MF_COMMAND_DISPATCH: this, then buffer_count mf_binding, then param_bytes rounded up to 8.
typedef struct {
  uint32_t kind;
  uint32_t kernel;        // MF_KERNEL_*
  uint32_t buffer_count;
  uint32_t param_bytes;
  uint32_t groups[3];
  uint32_t threads[3];
} mf_command;
typedef struct {
  mf_handle buffer;
  uint32_t reserved;      // 0
  double offset;          // into the buffer
  double bytes;           // what the kernel may touch from offset on
} mf_binding;
// MF_COMMAND_WAIT: the rest of the list runs when the event has reached the value.
// MF_COMMAND_SIGNAL: the event takes the value when everything before has run.
typedef struct {
  uint32_t kind;
  mf_handle event;
  double value;           // a whole number; an event's value never falls
} mf_event_command;

// --- The library. Only these functions leave it, however its other names are compiled.
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
uint32_t mf_abi_version(void);
uint32_t mf_catalogue_hash(void);  // MF_CATALOGUE_HASH of the header it was built with
int32_t mf_last_error(char *text, uint32_t capacity);

// --- Devices. Destroying one waits for its running list (for no event, though). Those not begun it drops,
// or runs to their end as well where work handed over cannot be taken back (a GPU); waits on its events
// return MF_ERR_DEVICE. Its buffers and events stay the caller's to destroy.
int32_t mf_device_create(const mf_device_options *options, mf_handle *device);
int32_t mf_device_info(mf_handle device, mf_device_info_t *info);
int32_t mf_device_destroy(mf_handle device);
int32_t mf_counters(mf_handle device, mf_counters_t *counters);

// --- Memory that the library owns: a slab (2 MiB aligned, huge pages where the system has them) or a
// file mapped read-only. It must not shrink while it is mapped; where the CPU device finds that it did, lists
// that use it fail. Released when its handle and every buffer over it are gone.
int32_t mf_memory_allocate(double bytes, mf_handle *memory);
int32_t mf_memory_map(const char *path, mf_handle *memory);
int32_t mf_memory_contents(mf_handle memory, void **contents, double *bytes);
int32_t mf_memory_release(mf_handle memory);

// --- Buffers: what kernels bind. A buffer over memory copies nothing.
int32_t mf_buffer_create(mf_handle device, double bytes, mf_handle *buffer);  // zeroed
int32_t mf_buffer_from_memory(mf_handle device, mf_handle memory, double offset, double bytes,
                              mf_handle *buffer);
int32_t mf_buffer_contents(mf_handle buffer, void **contents, double *bytes);
int32_t mf_buffer_destroy(mf_handle buffer);  // refused while a submitted list uses it

// --- Events: a value that only grows, signalled and awaited by the host and by command lists. A signal
// below the value changes nothing. A wait may run the device's lists on the waiting thread; a timeout takes
// effect between two kernels. Destroying an event that a submitted list waits for is refused.
int32_t mf_event_create(mf_handle device, mf_handle *event);
int32_t mf_event_value(mf_handle event, double *value);
int32_t mf_event_signal(mf_handle event, double value);
int32_t mf_event_wait(mf_handle event, double value, double timeout_seconds);
int32_t mf_event_destroy(mf_handle event);

// --- Work. Lists are checked whole before any of them runs, copied, and run in the order of submission.
// A list that fails at run time ends it and every list after it as if cancelled, and makes every wait on
// that device, and mf_submit, return MF_ERR_DEVICE with its sentence until mf_resume.
int32_t mf_submit(mf_handle device, const uint8_t *commands, double bytes);
int32_t mf_finish(mf_handle device, double timeout_seconds);  // waits for everything submitted

// Cancels every list submitted so far. Cancelled lists wait for no event any more, which may raise an event
// that one waits for; their signals still take place. Their remaining dispatches are skipped, or run where
// work handed over cannot be taken back (a GPU): what they write is worth nothing. Until mf_resume,
// mf_submit and waits by the host return MF_ERR_CANCELLED. Callable while another thread waits. mf_finish
// returns only when all lists have ended, cancelled or not: only then is their memory the host's again.
int32_t mf_cancel(mf_handle device);
int32_t mf_resume(mf_handle device);
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
