// Replays exported conformance cases on the CPU device without TypeScript: for other architectures under
// an emulator, and for sanitizers. Knows the file format of tests/conformance/export.ts and mf.h only.
//
//   replay PATH THREADS FILE...      PATH: "" (the best), portable, avx2, avx512 or neon
//
// Prints the cases that fail and ends with "N passed, N failed"; exits 1 if any failed, 2 on misuse, 3
// with a sentence where the processor lacks the path.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/mf.h"
#include "../../include/mf_kernels.gen.h"
#include "../kernels/half.h"

enum { BUFFERS_MAX = 16, TITLE_MAX = 256 };
enum { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_U32, TYPE_U8 };

typedef struct {
  double bytes;
  double offset;
  double expected_count;
  double allowed;
  uint32_t type;
  uint32_t reserved;
} buffer_header;

typedef struct {
  buffer_header header;
  const uint8_t *contents;
  const double *expected;
  mf_handle handle;
} case_buffer;

typedef struct {
  char title[TITLE_MAX];
  uint8_t *commands;
  uint32_t command_bytes;
  uint32_t buffer_count;
  case_buffer buffers[BUFFERS_MAX];
} test_case;

static void stop(const char *what, const char *about) {
  fprintf(stderr, "replay: %s: %s\n", what, about);
  exit(2);
}

static void check(int32_t status, const char *what) {
  if (status == MF_OK) return;
  char text[512];
  mf_last_error(text, sizeof text);
  stop(what, text);
}

static uint8_t *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) stop("cannot be read", path);
  const long length = ftell(file);
  uint8_t *bytes = malloc(length > 0 ? (size_t)length : 1);
  rewind(file);
  if (bytes == NULL || length < 24 || fread(bytes, 1, (size_t)length, file) != (size_t)length) {
    stop("cannot be read", path);
  }
  fclose(file);
  *size = (size_t)length;
  return bytes;
}

// The next part of a file, which begins at a multiple of 8.
static uint8_t *part(uint8_t *file, size_t size, size_t *at, size_t bytes) {
  uint8_t *begin = file + *at;
  if (bytes > size - *at) stop("the file is too short", "export it again");
  *at += (bytes + 7) / 8 * 8;
  return begin;
}

static void parse(uint8_t *file, size_t size, test_case *test) {
  size_t at = 0;
  uint32_t counts[4];
  if (memcmp(part(file, size, &at, 8), "MFCASE01", 8) != 0) stop("not a case", "export it again");
  memcpy(counts, part(file, size, &at, sizeof counts), sizeof counts);
  if (counts[0] != mf_catalogue_hash()) stop("the case is of another catalogue", "export it again");
  if (counts[1] > BUFFERS_MAX || counts[3] >= TITLE_MAX) stop("not a case", "export it again");
  memset(test, 0, sizeof *test);
  test->buffer_count = counts[1];
  test->command_bytes = counts[2];
  memcpy(test->title, part(file, size, &at, counts[3]), counts[3]);
  test->commands = part(file, size, &at, counts[2]);
  for (uint32_t i = 0; i < test->buffer_count; i++) {
    case_buffer *buffer = &test->buffers[i];
    memcpy(&buffer->header, part(file, size, &at, sizeof buffer->header), sizeof buffer->header);
    buffer->contents = part(file, size, &at, (size_t)buffer->header.bytes);
    const size_t expected_bytes = (size_t)buffer->header.expected_count * sizeof(double);
    buffer->expected = (const double *)(const void *)part(file, size, &at, expected_bytes);
  }
}

// Creates the buffers and puts their handles into the bindings of the dispatch.
static void prepare(mf_handle device, test_case *test) {
  for (uint32_t i = 0; i < test->buffer_count; i++) {
    case_buffer *buffer = &test->buffers[i];
    void *contents;
    double bytes;
    check(mf_buffer_create(device, buffer->header.bytes, &buffer->handle), test->title);
    check(mf_buffer_contents(buffer->handle, &contents, &bytes), test->title);
    memcpy(contents, buffer->contents, (size_t)buffer->header.bytes);
    mf_binding *binding = (mf_binding *)(void *)(test->commands + sizeof(mf_command)) + i;
    binding->buffer = buffer->handle;
  }
}

static double value_at(const uint8_t *bytes, uint32_t type, size_t i) {
  float f;
  uint16_t half;
  uint32_t word;
  switch (type) {
    case TYPE_F32:
      memcpy(&f, bytes + 4 * i, sizeof f);
      return (double)f;
    case TYPE_U32:
      memcpy(&word, bytes + 4 * i, sizeof word);
      return (double)word;
    case TYPE_U8:
      return (double)bytes[i];
    default:
      memcpy(&half, bytes + 2 * i, sizeof half);
      if (type == TYPE_F16) return (double)mf_from_f16(half);
      word = (uint32_t)half << 16;
      memcpy(&f, &word, sizeof f);
      return (double)f;
  }
}

// Distance of a result from its reference; values that are not finite must be the same.
static double distance(double result, double reference) {
  if (result == reference || (isnan(result) && isnan(reference))) return 0;
  const double apart = fabs(result - reference);
  return isnan(apart) ? INFINITY : apart;
}

static bool compare(const test_case *test, const case_buffer *buffer, uint32_t index) {
  void *contents;
  double bytes;
  check(mf_buffer_contents(buffer->handle, &contents, &bytes), test->title);
  const uint8_t *values = (const uint8_t *)contents + (size_t)buffer->header.offset;
  size_t worst = 0;
  double largest = 0;
  for (size_t i = 0; i < (size_t)buffer->header.expected_count; i++) {
    const double apart = distance(value_at(values, buffer->header.type, i), buffer->expected[i]);
    if (apart <= largest) continue;
    largest = apart;
    worst = i;
  }
  if (largest <= buffer->header.allowed) return true;
  printf("FAILED %s: buffer %u at %zu is %.9g, not %.9g; %.3g apart, %.3g allowed\n", test->title, index,
         worst, value_at(values, buffer->header.type, worst), buffer->expected[worst], largest,
         buffer->header.allowed);
  return false;
}

static bool run(mf_handle device, const char *path) {
  size_t size;
  uint8_t *file = read_file(path, &size);
  test_case test;
  parse(file, size, &test);
  prepare(device, &test);
  check(mf_submit(device, test.commands, test.command_bytes), test.title);
  check(mf_finish(device, 600), test.title);
  bool is_good = true;
  for (uint32_t i = 0; i < test.buffer_count; i++) {
    if (!compare(&test, &test.buffers[i], i)) is_good = false;
    check(mf_buffer_destroy(test.buffers[i].handle), test.title);
  }
  free(file);
  return is_good;
}

int main(int argc, char **argv) {
  if (argc < 4) stop("usage", "replay PATH THREADS FILE...");
  mf_device_options options = {.threads = (uint32_t)atoi(argv[2])};
  if (strlen(argv[1]) >= sizeof options.simd) stop("no such path", argv[1]);
  memcpy(options.simd, argv[1], strlen(argv[1]) + 1);
  mf_handle device;
  const int32_t status = mf_device_create(&options, &device);
  if (status == MF_ERR_DEVICE) {
    char text[512];
    mf_last_error(text, sizeof text);
    puts(text);
    return 3;
  }
  check(status, "opening the device");
  int passed = 0, failed = 0;
  for (int i = 3; i < argc; i++) {
    if (run(device, argv[i])) {
      passed++;
    } else {
      failed++;
    }
  }
  check(mf_device_destroy(device), "closing the device");
  printf("%d passed, %d failed\n", passed, failed);
  return failed > 0;
}
