// Atomic objects in device and threadgroup memory. Everything is at least as strong as asked for.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed = __ATOMIC_RELAXED };

template <class T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

}  // namespace metal

namespace msl {
#ifdef MSL_CHECKS
// Not inlined, so that the return address is the place of the access.
template <class A> __attribute__((noinline)) void check_atomic(A *object, softmetal_access access) {
    softmetal_scheduler.check_access((const void *)object, sizeof *object, sizeof *object, access,
                                  __builtin_return_address(0));
}
#else
template <class A> inline void check_atomic(A *, softmetal_access) {}
#endif
}  // namespace msl

namespace metal {
// A is the atomic type with its qualifiers; the operand is converted to its value type.
template <class A, class T> inline void atomic_store_explicit(A *object, T value, memory_order) {
    decltype(A::value) v = value;
    msl::check_atomic(object, SOFTMETAL_ATOMIC_WRITE);
    __atomic_store(&object->value, &v, __ATOMIC_SEQ_CST);
}
template <class A> inline auto atomic_load_explicit(A *object, memory_order) {
    decltype(A::value) v;
    msl::check_atomic(object, SOFTMETAL_ATOMIC_READ);
    __atomic_load(&object->value, &v, __ATOMIC_SEQ_CST);
    return v;
}
template <class A, class T> inline auto atomic_exchange_explicit(A *object, T value, memory_order) {
    decltype(A::value) v = value, old;
    msl::check_atomic(object, SOFTMETAL_ATOMIC_UPDATE);
    __atomic_exchange(&object->value, &v, &old, __ATOMIC_SEQ_CST);
    return old;
}
template <class A, class T>
inline bool atomic_compare_exchange_weak_explicit(A *object, T *expected, T desired, memory_order, memory_order) {
    msl::check_atomic(object, SOFTMETAL_ATOMIC_UPDATE);
    return __atomic_compare_exchange(&object->value, expected, &desired, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#define MSL_ATOMIC_FETCH(name, expression)                                                                \
    template <class A, class T> inline auto atomic_fetch_##name##_explicit(A *object, T operand, memory_order) { \
        typedef decltype(A::value) V;                                                                     \
        V b = operand, a, result;                                                                         \
        msl::check_atomic(object, SOFTMETAL_ATOMIC_UPDATE);                                                \
        __atomic_load(&object->value, &a, __ATOMIC_SEQ_CST);                                              \
        do result = expression;                                                                           \
        while (!__atomic_compare_exchange(&object->value, &a, &result, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)); \
        return a;                                                                                         \
    }
MSL_ATOMIC_FETCH(add, a + b)
MSL_ATOMIC_FETCH(sub, a - b)
MSL_ATOMIC_FETCH(and, a & b)
MSL_ATOMIC_FETCH(or, a | b)
MSL_ATOMIC_FETCH(xor, a ^ b)
MSL_ATOMIC_FETCH(min, b < a ? b : a)
MSL_ATOMIC_FETCH(max, a < b ? b : a)
}  // namespace metal
