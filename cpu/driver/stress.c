// Strains the core of the CPU device from several threads at once, for the sanitizers and for hangs:
// submitting, waiting, signalling, cancelling and destroying in every order, and lists of random bytes.
// The arithmetic is one kernel whose results count the dispatches that ran.
//
//   stress ROUNDS [SEED]
//
// Prints what failed and ends with "N passed, N failed"; exits 1 if any failed.
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/mf.h"
#include "../../include/mf_kernels.gen.h"

enum { WIDTH = 4096, LIST_BYTES = 8192, PATIENCE_SECONDS = 60, DISPATCHES_MAX = 24 };

static _Atomic int passed, failed;
static uint32_t rounds = 20;
static uint32_t seed = 1;

static void expect(bool is_true, const char *what) {
  if (is_true) {
    passed++;
    return;
  }
  failed++;
  char text[512];
  mf_last_error(text, sizeof text);
  printf("failed: %s (last error: %s)\n", what, text);
}

static uint32_t next_random(uint32_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

// --- Lists.

typedef struct {
  uint8_t bytes[LIST_BYTES];
  size_t size;
} list;

static void append(list *commands, const void *bytes, size_t size) {
  memcpy(commands->bytes + commands->size, bytes, size);
  commands->size += size;
}

static void append_event(list *commands, uint32_t kind, mf_handle event, double value) {
  const mf_event_command command = {kind, event, value};
  append(commands, &command, sizeof command);
}

// Two buffers [2, WIDTH] whose second rows are ones, and a row of two ones: each dispatch writes the sum
// of one's rows to the other's first row, so that the first element counts dispatches.
typedef struct {
  mf_handle device, event, sums[2], weights;
  uint32_t run;      // dispatches so far
  uint32_t signals;  // value of the event once all of them have run
} counter;

static float *floats(mf_handle buffer) {
  void *contents = NULL;
  double bytes = 0;
  mf_buffer_contents(buffer, &contents, &bytes);
  return contents;
}

static bool open_counter(counter *counter, mf_handle device) {
  memset(counter, 0, sizeof *counter);
  counter->device = device;
  int32_t status = mf_event_create(device, &counter->event);
  status |= mf_buffer_create(device, 2 * sizeof(float), &counter->weights);
  for (int i = 0; i < 2; i++)
    status |= mf_buffer_create(device, 2.0 * WIDTH * sizeof(float), &counter->sums[i]);
  if (status != MF_OK) return false;
  floats(counter->weights)[0] = floats(counter->weights)[1] = 1;
  for (int i = 0; i < 2; i++)
    for (int d = 0; d < WIDTH; d++) floats(counter->sums[i])[WIDTH + d] = 1;
  return true;
}

static bool close_counter(const counter *counter) {
  int32_t status = mf_event_destroy(counter->event);
  status |= mf_buffer_destroy(counter->weights);
  for (int i = 0; i < 2; i++) status |= mf_buffer_destroy(counter->sums[i]);
  return status == MF_OK;
}

static void append_count(list *commands, counter *counter) {
  const mf_handle source = counter->sums[counter->run % 2], target = counter->sums[(counter->run + 1) % 2];
  const mf_command command = {MF_COMMAND_DISPATCH, MF_KERNEL_ROUTED_REDUCE, 3, 12, {1, 1, 1}, {1, 1, 1}};
  const mf_binding bindings[] = {{source, 0, 0, 8.0 * WIDTH},
                                 {counter->weights, 0, 0, 8},
                                 {target, 0, 0, 4.0 * WIDTH}};
  const mf_routed_reduce_params params[2] = {{1, 2, WIDTH}};
  append(commands, &command, sizeof command);
  append(commands, bindings, sizeof bindings);
  append(commands, params, 16);
  counter->run++;
}

static void append_counts(list *commands, counter *counter, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) append_count(commands, counter);
  append_event(commands, MF_COMMAND_SIGNAL, counter->event, ++counter->signals);
}

static bool has_counted(const counter *counter) {
  const float *sums = floats(counter->sums[counter->run % 2]);
  for (int d = 0; d < WIDTH; d += 97)
    if (sums[d] != (float)counter->run) return false;
  return true;
}

static int32_t submit(mf_handle device, const list *commands) {
  return mf_submit(device, commands->bytes, (double)commands->size);
}

static mf_handle open_device(uint32_t threads) {
  const mf_device_options options = {.threads = threads};
  mf_handle device = 0;
  expect(mf_device_create(&options, &device) == MF_OK, "a device is created");
  return device;
}

// --- Several hosts on one device.

typedef struct {
  mf_handle device;
  uint32_t seed;
} host;

static void *count_as_host(void *argument) {
  host *host = argument;
  counter counter;
  expect(open_counter(&counter, host->device), "a host has its buffers");
  for (uint32_t round = 0; round < rounds; round++) {
    list commands = {.size = 0};
    append_counts(&commands, &counter, next_random(&host->seed) % DISPATCHES_MAX);
    expect(submit(host->device, &commands) == MF_OK, "a host submits");
    if (next_random(&host->seed) % 3 == 0) continue;
    expect(mf_event_wait(counter.event, counter.signals, PATIENCE_SECONDS) == MF_OK, "a host waits");
    expect(has_counted(&counter), "each dispatch ran once and in order");
  }
  expect(mf_finish(host->device, PATIENCE_SECONDS) == MF_OK, "a host waits for all");
  expect(has_counted(&counter), "all dispatches ran");
  expect(close_counter(&counter), "what finished lists used can be destroyed");
  return NULL;
}

static void try_hosts(uint32_t threads) {
  const mf_handle device = open_device(threads);
  pthread_t thread[3];
  host hosts[3];
  for (uint32_t i = 0; i < 3; i++) {
    hosts[i] = (host){device, seed + 77 * i + threads};
    pthread_create(&thread[i], NULL, count_as_host, &hosts[i]);
  }
  for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
  expect(mf_device_destroy(device) == MF_OK, "a device is destroyed");
}

// --- Lists that wait for the host, which signals from another thread.

static void *signal_as_host(void *argument) {
  const mf_handle event = *(const mf_handle *)argument;
  for (uint32_t value = 1; value <= rounds; value++)
    expect(mf_event_signal(event, value) == MF_OK, "a host signals");
  return NULL;
}

static void try_gates(uint32_t threads) {
  const mf_handle device = open_device(threads);
  counter counter;
  mf_handle gate = 0;
  expect(open_counter(&counter, device) && mf_event_create(device, &gate) == MF_OK, "gates are made");
  for (uint32_t value = 1; value <= rounds; value++) {
    list commands = {.size = 0};
    append_count(&commands, &counter);
    append_event(&commands, MF_COMMAND_WAIT, gate, value);
    append_counts(&commands, &counter, 3);
    expect(submit(device, &commands) == MF_OK, "a list with a gate is submitted");
  }
  expect(mf_event_wait(counter.event, 1, 0.002) == MF_ERR_TIMEOUT, "a closed gate holds its list");
  expect(mf_event_destroy(gate) == MF_ERR_ARGUMENT, "an event that lists wait for is not destroyed");
  expect(mf_buffer_destroy(counter.weights) == MF_ERR_ARGUMENT, "a bound buffer is not destroyed");
  pthread_t thread;
  pthread_create(&thread, NULL, signal_as_host, &gate);
  for (uint32_t value = 1; value <= rounds; value++)
    expect(mf_event_wait(counter.event, value, PATIENCE_SECONDS) == MF_OK, "an opened gate lets pass");
  pthread_join(thread, NULL);
  expect(has_counted(&counter), "gated dispatches ran once and in order");
  expect(mf_event_destroy(gate) == MF_OK && close_counter(&counter), "all is destroyed");
  expect(mf_device_destroy(device) == MF_OK, "a device is destroyed");
}

// --- Cancelling and destroying under waiting hosts.

static void *wait_as_host(void *argument) {
  const counter *counter = argument;
  const int32_t status = mf_event_wait(counter->event, counter->signals, PATIENCE_SECONDS);
  expect(status == MF_ERR_CANCELLED || status == MF_ERR_DEVICE, "a cancelled wait says so");
  return NULL;
}

static void submit_blocked(counter *counter, mf_handle gate) {
  list commands = {.size = 0};
  append_event(&commands, MF_COMMAND_WAIT, gate, 1);
  append_counts(&commands, counter, 5);
  expect(submit(counter->device, &commands) == MF_OK, "a blocked list is submitted");
}

static void try_cancel(uint32_t threads) {
  const mf_handle device = open_device(threads);
  counter counter;
  mf_handle gate = 0;
  expect(open_counter(&counter, device) && mf_event_create(device, &gate) == MF_OK, "events are made");
  for (uint32_t round = 0; round < rounds; round++) {
    submit_blocked(&counter, gate);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_as_host, &counter);
    expect(mf_cancel(device) == MF_OK, "cancel");
    pthread_join(thread, NULL);
    list nothing = {.size = 0};
    expect(submit(device, &nothing) == MF_ERR_CANCELLED, "a cancelled device takes no list");
    expect(mf_finish(device, PATIENCE_SECONDS) == MF_ERR_CANCELLED, "cancelled lists end");
    double value = 0;
    mf_event_value(counter.event, &value);
    expect(value == counter.signals, "the signals of cancelled lists take place");
    expect(mf_resume(device) == MF_OK && mf_finish(device, 1) == MF_OK, "resume");
  }
  submit_blocked(&counter, gate);
  pthread_t thread;
  pthread_create(&thread, NULL, wait_as_host, &counter);
  expect(mf_device_destroy(device) == MF_OK, "a device with a blocked list is destroyed");
  pthread_join(thread, NULL);
  expect(mf_event_wait(counter.event, 0, 1) == MF_ERR_DEVICE, "waits on a destroyed device say so");
  expect(mf_event_destroy(gate) == MF_OK && close_counter(&counter), "all is destroyed");
}

static void try_destroy(uint32_t threads) {
  for (uint32_t round = 0; round < rounds; round++) {
    const mf_handle device = open_device(threads);
    counter counter;
    expect(open_counter(&counter, device), "a host has its buffers");
    for (int i = 0; i < 4; i++) {
      list commands = {.size = 0};
      append_counts(&commands, &counter, DISPATCHES_MAX);
      expect(submit(device, &commands) == MF_OK, "a list is submitted");
    }
    if (round % 2 == 0) (void)mf_event_wait(counter.event, 1, PATIENCE_SECONDS);
    expect(mf_device_destroy(device) == MF_OK, "a busy device is destroyed");
    expect(mf_device_destroy(device) == MF_ERR_HANDLE, "a destroyed device is unknown");
    expect(close_counter(&counter), "its buffers are destroyed after it");
  }
}

// --- Anything at all as a list.

static void try_bytes(uint32_t *state) {
  const mf_handle device = open_device(2);
  counter counter;
  expect(open_counter(&counter, device), "a host has its buffers");
  for (uint32_t round = 0; round < 100 * rounds; round++) {
    struct counter_copy {
      uint32_t run, signals;
    } before = {counter.run, counter.signals};
    list commands = {.size = 0};
    append_counts(&commands, &counter, 3);
    // A word somewhere takes a value near another's, or the end is cut off.
    const uint32_t word = next_random(state) % (uint32_t)(commands.size / 4);
    const uint32_t value = next_random(state) >> next_random(state) % 32;
    memcpy(commands.bytes + 4 * (size_t)word, &value, sizeof value);
    if (next_random(state) % 4 == 0) commands.size = next_random(state) % commands.size;
    const int32_t status = submit(device, &commands);
    expect(status <= MF_OK && status >= MF_ERR_DEVICE, "a list of any bytes gets a status");
    mf_cancel(device);
    mf_finish(device, PATIENCE_SECONDS);
    mf_resume(device);
    counter.run = before.run;
    counter.signals = before.signals;
  }
  expect(mf_device_destroy(device) == MF_OK, "a device is destroyed");
  expect(close_counter(&counter), "all is destroyed");
}

static void try_handles(uint32_t *state) {
  const mf_handle device = open_device(1);
  mf_handle buffer = 0, memory = 0;
  expect(mf_memory_allocate(4096, &memory) == MF_OK, "memory is allocated");
  expect(mf_buffer_from_memory(device, memory, 64, 4032, &buffer) == MF_OK, "a buffer is made over it");
  expect(mf_memory_release(memory) == MF_OK, "memory is released before its buffer");
  floats(buffer)[0] = 1;
  for (uint32_t round = 0; round < 1000 * rounds; round++) {
    const mf_handle handle = next_random(state);
    if (handle == device || handle == buffer) continue;
    const bool is_refused = mf_buffer_destroy(handle) == MF_ERR_HANDLE &&
                            mf_event_signal(handle, 1) == MF_ERR_HANDLE &&
                            mf_memory_release(handle) == MF_ERR_HANDLE &&
                            mf_device_destroy(handle) == MF_ERR_HANDLE;
    if (!is_refused) expect(false, "a number that is no handle is refused");
  }
  expect(mf_buffer_destroy(buffer) == MF_OK && mf_buffer_destroy(buffer) == MF_ERR_HANDLE,
         "a buffer is destroyed once");
  expect(mf_device_destroy(device) == MF_OK, "a device is destroyed");
}

int main(int count, char **arguments) {
  if (count > 1) rounds = (uint32_t)strtoul(arguments[1], NULL, 10);
  if (count > 2) seed = (uint32_t)strtoul(arguments[2], NULL, 10);
  uint32_t state = seed * 2654435761u | 1;
  for (uint32_t threads = 1; threads <= 4; threads++) {
    try_hosts(threads);
    try_gates(threads);
    try_cancel(threads);
    try_destroy(threads);
  }
  try_bytes(&state);
  try_handles(&state);
  printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
