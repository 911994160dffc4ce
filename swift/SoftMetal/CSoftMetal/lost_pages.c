// Memory of mapped files that is gone, because somebody cut the file: a GPU's access to it ends the command
// buffer with a page fault; the CPU's would end the process with SIGBUS. While a dispatch runs, zeros take the
// place of such pages, and the dispatch has failed, as will every other one that binds them. A fault at any other
// time goes to whoever handled it before.
#include "internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

// Beyond so many pages the rest are zeros without being remembered.
enum { LOST_MAX = 4096 };

static _Atomic int running;
static _Atomic unsigned lost;
static _Atomic uintptr_t pages[LOST_MAX];
static struct sigaction previous;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_fault(int number, siginfo_t *info, void *context) {
    const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)info->si_addr / size * size);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (atomic_load(&running) > 0 && info->si_code == BUS_ADRERR &&
        mmap(page, size, PROT_READ, flags, -1, 0) != MAP_FAILED) {
        atomic_store(&pages[atomic_fetch_add(&lost, 1) % LOST_MAX], (uintptr_t)page);
        return;
    }
    if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != NULL) {
        previous.sa_sigaction(number, info, context);
    } else {
        // The instruction runs again and ends the process as it would have.
        (void)sigaction(number, &previous, NULL);
    }
}

static void install(void) {
    struct sigaction action = {0};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &previous);
}

static unsigned remembered(void) {
    const unsigned count = atomic_load(&lost);
    return count < LOST_MAX ? count : LOST_MAX;
}

void softmetal_watch_pages(void) {
    (void)pthread_once(&once, install);
    atomic_fetch_add(&running, 1);
}

void softmetal_unwatch_pages(void) { atomic_fetch_sub(&running, 1); }

bool softmetal_has_lost(const void *start, size_t length) {
    for (unsigned i = 0; i < remembered(); i++)
        if (atomic_load(&pages[i]) - (uintptr_t)start < length) return true;
    return false;
}

void softmetal_forget_lost(const void *start, size_t length) {
    for (unsigned i = 0; i < remembered(); i++)
        if (atomic_load(&pages[i]) - (uintptr_t)start < length) atomic_store(&pages[i], 0);
}
