// Memory checks. Clang's -fsanitize=thread calls a hook before each access; these hooks are ours, and pass
// the access to the scheduler, which knows what the dispatch may touch and who touched it before.
#pragma once
#include "msl.h"

#define MSL_HOOK extern "C" __attribute__((disable_sanitizer_instrumentation))
#define MSL_ACCESS_HOOK(name, size, alignment, access)                                                    \
    MSL_HOOK void __tsan_##name(void *p) {                                                                \
        softmetal_scheduler.check_access(p, size, alignment, access, __builtin_return_address(0));           \
    }
// The compiler calls the unaligned form where the type promises less alignment than its size. What is aligned to 8
// bytes counts as aligned, whatever the size.
#define MSL_ACCESS_HOOKS(size, alignment)                                                                 \
    MSL_ACCESS_HOOK(read##size, size, alignment, SOFTMETAL_READ)                                             \
    MSL_ACCESS_HOOK(write##size, size, alignment, SOFTMETAL_WRITE)                                           \
    MSL_ACCESS_HOOK(read_write##size, size, alignment, SOFTMETAL_WRITE)                                      \
    MSL_ACCESS_HOOK(unaligned_read##size, size, 1, SOFTMETAL_READ)                                           \
    MSL_ACCESS_HOOK(unaligned_write##size, size, 1, SOFTMETAL_WRITE)                                         \
    MSL_ACCESS_HOOK(unaligned_read_write##size, size, 1, SOFTMETAL_WRITE)
MSL_ACCESS_HOOKS(1, 1)
MSL_ACCESS_HOOKS(2, 2)
MSL_ACCESS_HOOKS(4, 4)
MSL_ACCESS_HOOKS(8, 8)
MSL_ACCESS_HOOKS(16, 8)
MSL_HOOK void __tsan_init() {}
MSL_HOOK void *__tsan_memcpy(void *to, const void *from, size_t size) {
    softmetal_scheduler.check_access(from, size, 1, SOFTMETAL_READ, __builtin_return_address(0));
    softmetal_scheduler.check_access(to, size, 1, SOFTMETAL_WRITE, __builtin_return_address(0));
    return __builtin_memcpy(to, from, size);
}
MSL_HOOK void *__tsan_memmove(void *to, const void *from, size_t size) {
    softmetal_scheduler.check_access(from, size, 1, SOFTMETAL_READ, __builtin_return_address(0));
    softmetal_scheduler.check_access(to, size, 1, SOFTMETAL_WRITE, __builtin_return_address(0));
    return __builtin_memmove(to, from, size);
}
MSL_HOOK void *__tsan_memset(void *to, int value, size_t size) {
    softmetal_scheduler.check_access(to, size, 1, SOFTMETAL_WRITE, __builtin_return_address(0));
    return __builtin_memset(to, value, size);
}

// Undefined behaviour that a GPU would pass over: calls of -fsanitize's alignment, bounds, integer-divide-by-zero
// and shift-exponent checks. The structs are what Clang emits for them.
namespace msl {
struct check_site {
    const char *file;
    uint line, column;
};
struct mismatch_site {
    check_site site;
    const void *type;
    uchar log_alignment, kind;
};
}  // namespace msl
#define MSL_UNDEFINED(name, arguments, message)                                                           \
    MSL_HOOK void __ubsan_handle_##name arguments { softmetal_scheduler.fail_at(site->file, site->line, message); }
MSL_HOOK void __ubsan_handle_type_mismatch_v1(const msl::mismatch_site *data, ulong address) {
    softmetal_scheduler.misaligned(data->site.file, data->site.line, (const void *)address, 1ul << data->log_alignment);
}
MSL_UNDEFINED(out_of_bounds, (const msl::check_site *site, ulong), "an index is outside its array")
MSL_UNDEFINED(divrem_overflow, (const msl::check_site *site, ulong, ulong), "an integer is divided by zero")
MSL_UNDEFINED(shift_out_of_bounds, (const msl::check_site *site, ulong, ulong),
              "a shift is as wide as its operand, or wider")
