// Threadgroup memory: one arena per worker, in which a threadgroup's variables and its
// [[threadgroup(n)]] arguments lie one after another with gaps between them.
#include "internal.h"

#include <string.h>

void softmetal_reset_threadgroup_memory(worker *w) {
    memset(w->variables, 0, w->variable_count * sizeof *w->variables);
    w->arena_used = w->arena_charged = 0;
    w->variable_count = 0;
    // The encoder has checked that these fit; softmetal_fail cannot be used before a thread runs.
    for (int i = 0; i < SOFTMETAL_MAX_THREADGROUP_ARGUMENTS; i++) {
        size_t length = w->dispatch->threadgroup_lengths[i];
        w->threadgroup_arguments[i] = NULL;
        if (length == 0) continue;
        variable *v = &w->variables[MAX_VARIABLES + i];
        v->name = "a [[threadgroup]] argument";
        v->size = length;
        v->address = softmetal_allocate_threadgroup_memory(w, v->name, length, 16);
        w->threadgroup_arguments[i] = v->address;
        w->variable_count = MAX_VARIABLES + (uint32_t)i + 1;
    }
}

void *softmetal_allocate_threadgroup_memory(worker *w, const char *name, size_t size, size_t alignment) {
    size_t offset = (w->arena_used + alignment - 1) / alignment * alignment;
    w->arena_charged += size;
    if (w->arena_charged > SOFTMETAL_MAX_THREADGROUP_MEMORY || offset + size + ARENA_GAP > ARENA_SIZE)
        softmetal_fail(w, "%s needs %zu bytes, which makes %zu bytes of threadgroup memory; the limit is %d",
                       name, size, w->arena_charged, SOFTMETAL_MAX_THREADGROUP_MEMORY);
    w->arena_used = offset + size + ARENA_GAP;
    // NaN for every floating-point type, so that reading what nobody wrote shows in the results.
    memset(w->arena + offset, 0xFF, size);
    return w->arena + offset;
}

// The first thread that comes to the declaration allocates the variable for the whole threadgroup.
void *softmetal_threadgroup_variable(uint32_t id, const char *name, size_t size, size_t alignment) {
    worker *w = softmetal_this_worker;
    if (id >= MAX_VARIABLES) softmetal_fail(w, "more than %d threadgroup variables", MAX_VARIABLES);
    variable *v = &w->variables[id];
    if (!v->address) {
        v->address = softmetal_allocate_threadgroup_memory(w, name, size, alignment < 16 ? 16 : alignment);
        v->size = size;
        v->name = name;
        if (id >= w->variable_count) w->variable_count = id + 1;
    }
    return v->address;
}

// The variable that holds an address of the arena, or the last one before it.
const variable *softmetal_variable_near(const worker *w, const unsigned char *address) {
    const variable *best = NULL;
    for (uint32_t i = 0; i < w->variable_count; i++) {
        const variable *v = &w->variables[i];
        if (v->address && (const unsigned char *)v->address <= address && (!best || v->address >= best->address))
            best = v;
    }
    return best;
}
