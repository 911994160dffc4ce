// Which bytes of device memory nobody has written yet. New anonymous memory is zero, and Metal says so of
// its buffers; kernels that read it by mistake get away with it. In checked runs such bytes are poison in
// the copy that the kernel sees, and stay zero for the host.
//
// A page that the process never touched has no entry in its page table. Once a kernel has written to such
// a page, a bitmap remembers where; what the host writes to it later is recognised by not being zero.
// Nothing here ever takes written bytes for fresh, but zeros that the host puts into a page after a kernel.
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void softmetal_poison(void *memory, size_t length) {
    unsigned char pattern[4];
    const uint32_t poison = (uint32_t)SOFTMETAL_POISON;
    memcpy(pattern, &poison, sizeof pattern);
    // The pattern lies at multiples of four, whatever the start: reads recognise it there.
    unsigned char *bytes = memory;
    size_t i = 0;
    for (; i < length && (uintptr_t)(bytes + i) % 4; i++) bytes[i] = pattern[(uintptr_t)(bytes + i) % 4];
    for (; i + 4 <= length; i += 4) memcpy(bytes + i, pattern, 4);
    for (; i < length; i++) bytes[i] = pattern[(uintptr_t)(bytes + i) % 4];
}

// A page of which only some bytes have been written.
typedef struct partial_page {
    uintptr_t address;
    uint8_t *written;                    // bit per byte
} partial_page;

static partial_page *pages;              // ascending addresses
static size_t page_count, page_capacity;

static size_t position_of(uintptr_t address) {
    size_t low = 0, high = page_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pages[middle].address < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static partial_page *find(uintptr_t address) {
    size_t i = position_of(address);
    return i < page_count && pages[i].address == address ? &pages[i] : NULL;
}

static void remember(uintptr_t address) {
    partial_page *known = find(address);
    if (known) {
        memset(known->written, 0, PAGE_SIZE / 8);
        return;
    }
    if (page_count == page_capacity) {
        page_capacity = page_capacity ? 2 * page_capacity : 64;
        pages = realloc(pages, page_capacity * sizeof *pages);
        if (!pages) abort();
    }
    size_t i = position_of(address);
    memmove(&pages[i + 1], &pages[i], (page_count - i) * sizeof *pages);
    pages[i] = (partial_page){.address = address, .written = calloc(1, PAGE_SIZE / 8)};
    if (!pages[i].written) abort();
    page_count++;
}

void softmetal_fresh_forget(const void *start, size_t length) {
    size_t first = position_of((uintptr_t)start), last = position_of((uintptr_t)start + length);
    for (size_t i = first; i < last; i++) free(pages[i].written);
    if (last > first) memmove(&pages[first], &pages[last], (page_count - last) * sizeof *pages);
    page_count -= last - first;
}

// ---- pages that were never touched --------------------------------------------------------------

// Sets a flag for each page from `first` on that is neither in memory nor swapped out.
static bool find_untouched(uintptr_t first, size_t count, bool *untouched) {
    enum { BATCH = 512 };
    static int table = -2;
    if (table == -2) table = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (table < 0) return false;
    for (size_t i = 0; i < count; i += BATCH) {
        uint64_t entries[BATCH];
        size_t n = count - i < BATCH ? count - i : BATCH;
        off_t at = (off_t)((first / PAGE_SIZE + i) * sizeof *entries);
        if (pread(table, entries, n * sizeof *entries, at) != (ssize_t)(n * sizeof *entries)) return false;
        for (size_t k = 0; k < n; k++) untouched[i + k] = entries[k] >> 62 == 0;
    }
    return true;
}

static bool poison_unwritten(const partial_page *page, unsigned char *copy, const unsigned char *origin, size_t length) {
    bool any = false;
    size_t run = 0;
    for (size_t i = 0; i <= length; i++) {
        if (i < length) {
            size_t bit = (uintptr_t)(origin + i) % PAGE_SIZE;
            bool written = page->written[bit / 8] >> bit % 8 & 1;
            if (!written && origin[i] == 0) { run++; continue; }
            page->written[bit / 8] |= (uint8_t)(1 << bit % 8);
        }
        if (run) softmetal_poison(copy + i - run, run);
        any |= run > 0;
        run = 0;
    }
    return any;
}

// Fills a copy with the original, and with poison where the original was never written. Returns whether
// there is any. `is_written`: kernels may write to it, so what they write has to be remembered.
bool softmetal_fresh_copy(unsigned char *copy, const unsigned char *origin, size_t length, bool is_written) {
    uintptr_t first = (uintptr_t)origin / PAGE_SIZE * PAGE_SIZE;
    size_t count = ((uintptr_t)origin + length - first + PAGE_SIZE - 1) / PAGE_SIZE;
    bool *untouched = calloc(count + 1, sizeof *untouched), any = false;
    if (!untouched) abort();
    if (!find_untouched(first, count, untouched)) memset(untouched, 0, count);
    for (size_t i = 0; i < count; i++) {
        uintptr_t page = first + i * PAGE_SIZE;
        size_t from = page < (uintptr_t)origin ? 0 : page - (uintptr_t)origin;
        size_t to = page + PAGE_SIZE - (uintptr_t)origin;
        if (to > length) to = length;
        if (untouched[i]) {
            softmetal_poison(copy + from, to - from);
            any = true;
            if (is_written) remember(page);
            continue;
        }
        memcpy(copy + from, origin + from, to - from);
        const partial_page *partial = find(page);
        if (partial && poison_unwritten(partial, copy + from, origin + from, to - from)) any = true;
    }
    free(untouched);
    return any;
}

void softmetal_fresh_mark_written(const void *address) {
    static partial_page *last;
    static uintptr_t last_page;
    uintptr_t page = (uintptr_t)address / PAGE_SIZE * PAGE_SIZE;
    if (page != last_page || !last || last >= pages + page_count || last->address != page) {
        last = find(page);
        last_page = page;
    }
    size_t bit = (uintptr_t)address % PAGE_SIZE;
    if (last) last->written[bit / 8] |= (uint8_t)(1 << bit % 8);
}

bool softmetal_is_anonymous(const void *start, size_t length) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return false;
    uintptr_t next = (uintptr_t)start, end = next + length;
    char line[512];
    while (next < end && fgets(line, sizeof line, maps)) {
        unsigned long from, to, inode;
        char flags[8];
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, flags, &inode) != 4) continue;
        if (to <= next || from > next) continue;
        if (inode != 0 || flags[3] != 'p') break;
        next = to;
    }
    fclose(maps);
    if (next >= end) madvise((void *)(uintptr_t)start, length, MADV_NOHUGEPAGE);
    return next >= end;
}
