// What the machine itself can do, beside which a figure of the runtime means something:
//   reader memory THREADS      GB/s of reading memory, two streams a thread, the best of a few rounds
//   reader disk FILE BYTES     GB/s of reading BYTES from scattered places of a file into huge pages, direct
//   reader drop FILE...        gives the cached pages of files back to the system
// Prints one number. Plain loops for the compiler to vectorize: nothing here is shared with the runtime.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MEMORY_BYTES ((size_t)1 << 30)
#define BLOCK_BYTES ((size_t)3358720)
#define ROUNDS 9
#define THREADS_MAX 64

#define STREAM_BYTES ((size_t)128 << 10)
#define LINE_BYTES ((size_t)64)
#define AHEAD_BYTES ((size_t)4096)

// Of 32 bytes: wider ones than the processor's registers become copies through memory, which halve the speed.
typedef uint64_t vector __attribute__((vector_size(32)));

typedef struct {
  const uint8_t *start;
  size_t bytes;
  uint64_t sum;
} part;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *allocate(size_t bytes) {
  const size_t align = (size_t)1 << 21;
  void *memory = NULL;
  if (posix_memalign(&memory, align, (bytes + align - 1) / align * align) != 0) exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);
  memset(memory, 1, bytes);
  return memory;
}

// Blocks of two streams, far enough apart that each has memory pages of its own to read ahead in.
static void *read_part(void *argument) {
  part *p = argument;
  vector a = {0}, b = {0}, c = {0}, d = {0};
  for (size_t at = 0; at + 2 * STREAM_BYTES <= p->bytes; at += 2 * STREAM_BYTES) {
    const uint8_t *left = p->start + at, *right = left + STREAM_BYTES;
    for (size_t i = 0; i < STREAM_BYTES; i += LINE_BYTES) {
      __builtin_prefetch(left + i + AHEAD_BYTES, 0, 2);
      __builtin_prefetch(right + i + AHEAD_BYTES, 0, 2);
      a |= *(const vector *)(left + i);
      b |= *(const vector *)(right + i);
      c |= *(const vector *)(left + i + sizeof(vector));
      d |= *(const vector *)(right + i + sizeof(vector));
    }
  }
  a |= b | c | d;
  for (size_t i = 0; i < sizeof a / sizeof a[0]; i++) p->sum |= a[i];
  return NULL;
}

// The best of a few rounds: what disturbs a round makes it slower, never faster.
static double memory_speed(int threads) {
  const uint8_t *memory = allocate(MEMORY_BYTES);
  const size_t bytes = MEMORY_BYTES / (size_t)threads / (2 * STREAM_BYTES) * (2 * STREAM_BYTES);
  double best = 0;
  uint64_t sum = 0;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t ids[THREADS_MAX];
    part parts[THREADS_MAX];
    const double begin = now();
    for (int i = 0; i < threads; i++) {
      parts[i] = (part){memory + (size_t)i * bytes, bytes, 0};
      if (pthread_create(&ids[i], NULL, read_part, &parts[i]) != 0) exit(1);
    }
    for (int i = 0; i < threads; i++) {
      pthread_join(ids[i], NULL);
      sum += parts[i].sum;
    }
    const double speed = (double)(bytes * (size_t)threads) / (now() - begin) / 1e9;
    if (speed > best) best = speed;
  }
  return sum == 0 ? 0 : best;
}

static double disk_speed(const char *path, size_t total) {
  const int file = open(path, O_RDONLY | O_DIRECT);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return 0;
  const size_t blocks = (size_t)status.st_size / BLOCK_BYTES;
  if (blocks == 0) return 0;
  uint8_t *memory = allocate(BLOCK_BYTES);
  const double begin = now();
  size_t done = 0;
  for (size_t i = 0; done < total; i++) {
    const size_t block = i * 7919 % blocks;
    if (pread(file, memory, BLOCK_BYTES, (off_t)(block * BLOCK_BYTES)) != (ssize_t)BLOCK_BYTES) return 0;
    done += BLOCK_BYTES;
  }
  return (double)done / (now() - begin) / 1e9;
}

static int drop(const char *path) {
  const int file = open(path, O_RDONLY);
  if (file < 0) return 1;
  const int status = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
  return status;
}

int main(int count, char **arguments) {
  if (count >= 3 && strcmp(arguments[1], "memory") == 0) {
    const int threads = atoi(arguments[2]);
    if (threads < 1 || threads > THREADS_MAX) return 2;
    printf("%.3f\n", memory_speed(threads));
  } else if (count == 4 && strcmp(arguments[1], "disk") == 0) {
    printf("%.3f\n", disk_speed(arguments[2], (size_t)atoll(arguments[3])));
  } else if (count >= 3 && strcmp(arguments[1], "drop") == 0) {
    for (int i = 2; i < count; i++)
      if (drop(arguments[i]) != 0) return 1;
    puts("0");
  } else {
    return 2;
  }
  return 0;
}
