// Time and patience: a monotonic clock, condition variables with deadlines on it, and the back-off of
// threads that wait for one another. Knows nothing of devices.
#include "mf_core.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

// Pure spinning falls to a fortieth of the speed as soon as another process wants a core.
enum { SPIN_NS = 20000, YIELD_NS = 2000000, NAP_NS = 50000, ROUNDS_PER_LOOK = 32 };

uint64_t mf_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int mf_condition_create(pthread_cond_t *condition) {
#ifdef __APPLE__
  return pthread_cond_init(condition, NULL);
#else
  pthread_condattr_t attributes;
  int code = pthread_condattr_init(&attributes);
  if (code != 0) return code;
  code = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  if (code == 0) code = pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
  return code;
#endif
}

bool mf_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns) {
  if (deadline_ns == MF_FOREVER_NS) {
    pthread_cond_wait(condition, mutex);
    return true;
  }
#ifdef __APPLE__
  const uint64_t now_ns = mf_now_ns();
  if (now_ns >= deadline_ns) return false;
  const uint64_t rest_ns = deadline_ns - now_ns;
  const struct timespec rest = {(time_t)(rest_ns / 1000000000u), (long)(rest_ns % 1000000000u)};
  return pthread_cond_timedwait_relative_np(condition, mutex, &rest) != ETIMEDOUT;
#else
  const struct timespec at = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
  return pthread_cond_timedwait(condition, mutex, &at) != ETIMEDOUT;
#endif
}

void mf_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

void mf_patience_step(mf_patience *patience) {
  mf_relax();
  if (++patience->rounds % ROUNDS_PER_LOOK != 0) return;
  const uint64_t now_ns = mf_now_ns();
  if (patience->start_ns == 0) patience->start_ns = now_ns;
  const uint64_t waited_ns = now_ns - patience->start_ns;
  if (waited_ns < SPIN_NS) return;
  if (waited_ns < YIELD_NS) {
    sched_yield();
  } else {
    const struct timespec nap = {0, NAP_NS};
    nanosleep(&nap, NULL);
  }
}
