// Mapped files that lose their bytes while they are in use: somebody cuts the file, or its disk fails. The
// system answers such a read with SIGBUS, which would end the program in the middle of a word. Here the
// vanished pages become zeros instead, and the loss is remembered: whoever computes asks afterwards.
// Owns the signal's handler; a fault anywhere else goes to the handler that was there before.
#include "mf_core.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

// Beyond so many files at once the rest go unwatched: a model has one for each layer and one more.
enum { WATCHED_MAX = 1024 };

// The handler may run at any moment, so it reads without locks. `begin` is written last and cleared first.
typedef struct {
  _Atomic uintptr_t begin;  // 0: free
  _Atomic size_t bytes;
  _Atomic bool is_lost;
} watched_region;

static watched_region regions[WATCHED_MAX];
static _Atomic uint32_t lost_count;
static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction previous;
static size_t page_bytes;

// Everything from the faulting page on: a file is cut at its end.
static bool replace_pages(watched_region *region, uintptr_t address) {
  const uintptr_t begin = atomic_load(&region->begin);
  const size_t bytes = atomic_load(&region->bytes);
  if (begin == 0 || address < begin || address - begin >= bytes) return false;
  const uintptr_t page = address / page_bytes * page_bytes;
  const size_t rest = begin + bytes - page;
  if (mmap((void *)page, rest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    return false;
  if (!atomic_exchange(&region->is_lost, true)) atomic_fetch_add(&lost_count, 1);
  return true;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  for (uint32_t i = 0; i < WATCHED_MAX; i++)
    if (replace_pages(&regions[i], (uintptr_t)info->si_addr)) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != NULL) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else {
    // The faulting instruction runs again and ends the program as it would have.
    (void)sigaction(number, &previous, NULL);
  }
}

static void install_handler(void) {
  page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  struct sigaction action = {0};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  (void)sigaction(SIGBUS, &action, &previous);
}

void mf_fault_watch(const void *contents, size_t bytes) {
  (void)pthread_once(&once, install_handler);
  pthread_mutex_lock(&regions_lock);
  for (uint32_t i = 0; i < WATCHED_MAX; i++) {
    if (atomic_load(&regions[i].begin) != 0) continue;
    atomic_store(&regions[i].bytes, bytes);
    atomic_store(&regions[i].begin, (uintptr_t)contents);
    break;
  }
  pthread_mutex_unlock(&regions_lock);
}

void mf_fault_forget(const void *contents) {
  pthread_mutex_lock(&regions_lock);
  for (uint32_t i = 0; i < WATCHED_MAX; i++) {
    if (atomic_load(&regions[i].begin) != (uintptr_t)contents) continue;
    atomic_store(&regions[i].begin, 0);
    if (atomic_exchange(&regions[i].is_lost, false)) atomic_fetch_sub(&lost_count, 1);
    break;
  }
  pthread_mutex_unlock(&regions_lock);
}

bool mf_fault_lost(const void *contents) {
  for (uint32_t i = 0; i < WATCHED_MAX; i++)
    if (atomic_load(&regions[i].begin) == (uintptr_t)contents) return atomic_load(&regions[i].is_lost);
  return false;
}

bool mf_fault_seen(void) { return atomic_load_explicit(&lost_count, memory_order_relaxed) > 0; }
