// Runs every kernel with parameters and contents that no model has, each binding exactly as large as the
// catalogue asks: under the address sanitizer a kernel that trusts them is caught. A dispatch may be
// refused, fail with a sentence or succeed; it may not crash or hang.
//
//   fuzz PATH COUNT [SEED]      PATH: "" (the best), portable, avx2, avx512 or neon
//
// Ends with "N passed, N failed"; exits 1 if any failed, 2 on misuse, 3 without such a path.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/mf.h"
#include "../../include/mf_kernels.gen.h"

enum { BINDINGS_MAX = 16, PARAM_WORDS_MAX = 32, LIST_BYTES = 1024, PATIENCE_SECONDS = 60 };
#define EXTENT_BYTES_MAX 4e6

typedef struct {
  const char *name;
  uint32_t buffer_count;
  uint32_t param_bytes;
} kernel_row;

static const kernel_row kernels[MF_KERNEL_COUNT] = {
#define ROW(name, buffer_count, param_bytes) {#name, buffer_count, param_bytes},
    MF_KERNEL_LIST(ROW)
#undef ROW
};

static uint64_t state;
static int ran, refused, failed;

static uint32_t random_word(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33 ^ state >> 17);
}

// Mostly what could be a dimension. No number is so large that counting to it is the whole trouble: a
// kernel of four billion empty rows is slow, not wrong.
static uint32_t random_param(void) {
  static const uint32_t usual[] = {0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 33, 64, 65, 128, 192, 256, 257, 704};
  const uint32_t choice = random_word() % 32;
  if (choice == 0) return random_word() % 65536;
  return usual[random_word() % (sizeof usual / sizeof usual[0])];
}

static void fill(uint8_t *contents, size_t bytes) {
  const uint32_t kind = random_word() % 3;
  for (size_t i = 0; i + 4 <= bytes; i += 4) {
    const uint32_t word = kind == 0 ? random_word() : random_word() % 8;
    const float number = (float)(int32_t)word / 2147483648.0f;
    memcpy(contents + i, kind == 2 ? (const void *)&number : (const void *)&word, 4);
  }
}

// Buffers for one dispatch; false where they would be too large or cannot be had.
static bool make_buffers(mf_handle device, uint32_t kernel, const uint32_t *params, mf_binding *bindings) {
  for (uint32_t i = 0; i < kernels[kernel].buffer_count; i++)
    if (!(mf_extent_bytes(kernel, i, params) <= EXTENT_BYTES_MAX)) return false;
  for (uint32_t i = 0; i < kernels[kernel].buffer_count; i++) {
    const double extent_bytes = mf_extent_bytes(kernel, i, params);
    mf_binding *binding = &bindings[i];
    *binding = (mf_binding){0, 0, 0, extent_bytes};
    if (mf_buffer_create(device, extent_bytes > 0 ? extent_bytes : 1, &binding->buffer) != MF_OK)
      return false;
    void *contents = NULL;
    double bytes = 0;
    mf_buffer_contents(binding->buffer, &contents, &bytes);
    fill(contents, (size_t)extent_bytes);
  }
  return true;
}

static void report(const kernel_row *row, const uint32_t *params, const char *what) {
  char text[512];
  mf_last_error(text, sizeof text);
  printf("failed: %s: %s (%s); params:", row->name, what, text);
  for (uint32_t i = 0; i < row->param_bytes / 4; i++) printf(" %u", params[i]);
  printf("\n");
  fflush(stdout);
  failed++;
}

static void run(mf_handle device, uint32_t kernel, bool is_verbose) {
  const kernel_row *row = &kernels[kernel];
  uint32_t params[PARAM_WORDS_MAX] = {0};
  mf_binding bindings[BINDINGS_MAX] = {0};
  for (uint32_t i = 0; i < row->param_bytes / 4; i++) params[i] = random_param();
  if (!make_buffers(device, kernel, params, bindings)) return;
  if (is_verbose) {
    printf("%s:", row->name);
    for (uint32_t i = 0; i < row->param_bytes / 4; i++) printf(" %u", params[i]);
    printf("\n");
    fflush(stdout);
  }
  const mf_command command = {MF_COMMAND_DISPATCH, kernel, row->buffer_count, row->param_bytes,
                              {1, 1, 1}, {1, 1, 1}};
  uint8_t bytes[LIST_BYTES] = {0};
  const size_t binding_bytes = row->buffer_count * sizeof(mf_binding);
  memcpy(bytes, &command, sizeof command);
  memcpy(bytes + sizeof command, bindings, binding_bytes);
  memcpy(bytes + sizeof command + binding_bytes, params, row->param_bytes);
  const size_t size = sizeof command + binding_bytes + (row->param_bytes + 7) / 8 * 8;
  int32_t status = mf_submit(device, bytes, (double)size);
  if (status == MF_OK) status = mf_finish(device, PATIENCE_SECONDS);
  if (status == MF_ERR_TIMEOUT) report(row, params, "it hangs");
  status == MF_OK ? ran++ : refused++;
  mf_cancel(device);
  mf_finish(device, PATIENCE_SECONDS);
  mf_resume(device);
  for (uint32_t i = 0; i < row->buffer_count; i++)
    if (mf_buffer_destroy(bindings[i].buffer) != MF_OK) report(row, params, "a buffer stays in use");
}

int main(int count, char **arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: fuzz PATH COUNT [SEED]\n");
    return 2;
  }
  mf_device_options options = {.threads = 3};
  snprintf(options.simd, sizeof options.simd, "%s", arguments[1]);
  mf_handle device = 0;
  if (mf_device_create(&options, &device) != MF_OK) {
    char text[512];
    mf_last_error(text, sizeof text);
    printf("%s\n", text);
    return 3;  // a path that this processor lacks
  }
  state = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
  const long rounds = strtol(arguments[2], NULL, 10);
  for (long round = 0; round < rounds; round++)
    for (uint32_t kernel = 0; kernel < MF_KERNEL_COUNT; kernel++) run(device, kernel, count > 4);
  mf_device_destroy(device);
  printf("%d dispatches ran, %d were refused\n", ran, refused);
  printf("%d passed, %d failed\n", ran + refused, failed);
  return failed > 0 ? 1 : 0;
}
