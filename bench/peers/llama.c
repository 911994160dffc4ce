// Runs a plan on llama.cpp's CPU backend through its C API:
//   llama BACKENDS MODEL PLAN MODE THREADS CONTEXT
// BACKENDS is the folder of its libraries. A line of the plan is a name, "prefill" or "decode", a count and that
// many token ids: prefill forgets what was before and takes all ids at once, decode goes on one id at a time.
// MODE is "repack" (weights laid out anew in memory, the fastest) or "mmap" (used where they lie in the
// file, the only way under a memory limit). Prints a line of JSON after loading and after each line of the plan.
#include "ggml-backend.h"
#include "llama.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BATCH_ROWS 512
#define IDS_MAX 65536

// What the system counts for this process.
typedef struct {
  double seconds;
  double read_bytes;
  double major_faults;
} counts;

static double number_of(const char *path, const char *key) {
  char line[256];
  double value = 0;
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0;
  while (fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, key, strlen(key)) == 0) value = atof(line + strlen(key));
  fclose(file);
  return value;
}

static counts count_now(void) {
  struct timespec t;
  struct rusage usage;
  clock_gettime(CLOCK_MONOTONIC, &t);
  getrusage(RUSAGE_SELF, &usage);
  return (counts){
      (double)t.tv_sec + 1e-9 * (double)t.tv_nsec,
      number_of("/proc/self/io", "read_bytes:"),
      (double)usage.ru_majflt,
  };
}

static void report(const char *name, int tokens, counts before, float logit) {
  const counts now = count_now();
  const double kib = 1024;
  printf("{\"name\":\"%s\",\"tokens\":%d,\"seconds\":%.6f,\"readBytes\":%.0f,\"majorFaults\":%.0f,"
         "\"privateBytes\":%.0f,\"peakBytes\":%.0f,\"logit\":%.6g}\n",
         name, tokens, now.seconds - before.seconds, now.read_bytes - before.read_bytes,
         now.major_faults - before.major_faults, kib * number_of("/proc/self/status", "RssAnon:"),
         kib * number_of("/proc/self/status", "VmHWM:"), (double)logit);
  fflush(stdout);
}

// Computes ids and waits for the last one's logits; gives the largest, which must be a number.
static float compute(struct llama_context *context, llama_token *ids, int count) {
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  for (int done = 0; done < count; done += BATCH_ROWS) {
    const int rows = count - done < BATCH_ROWS ? count - done : BATCH_ROWS;
    if (llama_decode(context, llama_batch_get_one(ids + done, rows)) != 0) exit(3);
  }
  const float *logits = llama_get_logits_ith(context, -1);
  float largest = -INFINITY;
  for (int i = 0; i < vocabulary; i++) {
    if (!isfinite(logits[i])) exit(4);
    if (logits[i] > largest) largest = logits[i];
  }
  return largest;
}

static void run_line(struct llama_context *context, const char *name, llama_token *ids, int count) {
  const int step = strncmp(name, "decode", 6) == 0 ? 1 : count;
  float logit = 0;
  if (step != 1) llama_memory_clear(llama_get_memory(context), true);
  const counts before = count_now();
  for (int done = 0; done < count; done += step) logit = compute(context, ids + done, step);
  report(name, count, before, logit);
}

static struct llama_context *load(char **arguments) {
  const int threads = atoi(arguments[5]);
  ggml_backend_load_all_from_path(arguments[1]);
  llama_backend_init();
  struct llama_model_params model = llama_model_default_params();
  model.n_gpu_layers = 0;
  if (strcmp(arguments[4], "mmap") == 0) {
    model.use_extra_bufts = false;
    model.load_mode = LLAMA_LOAD_MODE_MMAP;
  } else {
    // A mapping would hold the file in memory beside the weights laid out anew.
    model.load_mode = LLAMA_LOAD_MODE_DIRECT_IO;
  }
  struct llama_context_params context = llama_context_default_params();
  context.n_ctx = (uint32_t)atoi(arguments[6]);
  context.n_batch = BATCH_ROWS;
  context.n_outputs_max = 1;
  context.n_threads = threads;
  context.n_threads_batch = threads;
  // Rings for the layers that see a window only: less memory.
  context.swa_full = false;
  struct llama_model *loaded = llama_model_load_from_file(arguments[2], model);
  return loaded == NULL ? NULL : llama_init_from_model(loaded, context);
}

int main(int count, char **arguments) {
  static llama_token ids[IDS_MAX];
  char name[32];
  int length;
  if (count != 7) return 2;
  FILE *plan = fopen(arguments[3], "r");
  if (plan == NULL) return 2;
  const counts begin = count_now();
  struct llama_context *context = load(arguments);
  if (context == NULL) return 1;
  report("load", 0, begin, 0);
  while (fscanf(plan, "%31s %d", name, &length) == 2) {
    if (length < 1 || length > IDS_MAX) return 2;
    for (int i = 0; i < length; i++)
      if (fscanf(plan, "%d", &ids[i]) != 1) return 2;
    run_line(context, name, ids, length);
  }
  return 0;
}
