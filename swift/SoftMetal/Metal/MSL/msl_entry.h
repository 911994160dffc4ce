// Calls a kernel with its arguments: the glue between the scheduler and a kernel's own signature. The
// translator lists where each argument comes from; its type is taken from the kernel.
#pragma once

namespace msl {
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T &> { typedef T type; };
template <class T> constexpr bool is_pointer = false;
template <class T> constexpr bool is_pointer<T *> = true;

// [[buffer(n)]] and [[threadgroup(n)]]: a pointer to the memory, or a reference to one object in it.
template <class P> inline P bind(void *address) {
    if constexpr (is_pointer<P>) return (P)address;
    else return *(typename remove_reference<P>::type *)address;
}
template <int n> struct buffer {
    template <class P> static P get(const softmetal_thread &t) { return bind<P>(t.group->buffers[n]); }
};
template <int n> struct threadgroup_argument {
    template <class P> static P get(const softmetal_thread &t) { return bind<P>(t.group->threadgroup_memory[n]); }
};

// Positions and sizes may be declared with one, two or three components of uint or ushort.
template <class P> inline P components(uint x, uint y, uint z) {
    typedef element<P> T;
    if constexpr (!is_vector<P>) return P(x);
    else if constexpr (size<P> == 2) return P{T(x), T(y)};
    else return P{T(x), T(y), T(z)};
}
#define MSL_BUILTIN_3(name, X, Y, Z)                                                                      \
    struct name {                                                                                         \
        template <class P> static P get(const softmetal_thread &t) {                                         \
            const softmetal_group &g = *t.group;                                                             \
            (void)g;                                                                                      \
            return components<P>(X, Y, Z);                                                                \
        }                                                                                                 \
    };
#define MSL_BUILTIN_1(name, value)                                                                        \
    struct name {                                                                                         \
        template <class P> static P get(const softmetal_thread &t) { return P(value); }                      \
    };
MSL_BUILTIN_3(thread_position_in_grid, g.position.x * g.dispatch_size.x + t.position.x,
              g.position.y * g.dispatch_size.y + t.position.y, g.position.z * g.dispatch_size.z + t.position.z)
MSL_BUILTIN_3(thread_position_in_threadgroup, t.position.x, t.position.y, t.position.z)
MSL_BUILTIN_3(threadgroup_position_in_grid, g.position.x, g.position.y, g.position.z)
MSL_BUILTIN_3(threads_per_threadgroup, g.size.x, g.size.y, g.size.z)
MSL_BUILTIN_3(dispatch_threads_per_threadgroup, g.dispatch_size.x, g.dispatch_size.y, g.dispatch_size.z)
MSL_BUILTIN_3(threadgroups_per_grid, g.grid_groups.x, g.grid_groups.y, g.grid_groups.z)
MSL_BUILTIN_3(threads_per_grid, g.grid_threads.x, g.grid_threads.y, g.grid_threads.z)
MSL_BUILTIN_1(thread_index_in_threadgroup, t.index)
MSL_BUILTIN_1(thread_index_in_simdgroup, t.index % 32)
MSL_BUILTIN_1(simdgroup_index_in_threadgroup, t.index / 32)
MSL_BUILTIN_1(thread_index_in_quadgroup, t.index % 4)
MSL_BUILTIN_1(quadgroup_index_in_threadgroup, t.index / 4)
MSL_BUILTIN_1(threads_per_simdgroup, 32)
MSL_BUILTIN_1(thread_execution_width, 32)
MSL_BUILTIN_1(simdgroups_per_threadgroup, (t.group->size.x * t.group->size.y * t.group->size.z + 31) / 32)
MSL_BUILTIN_1(dispatch_simdgroups_per_threadgroup,
              (t.group->dispatch_size.x * t.group->dispatch_size.y * t.group->dispatch_size.z + 31) / 32)

template <class... P, class... Source>
inline void call(void (*kernel_function)(P...), const softmetal_thread &t, Source... source) {
    kernel_function(source.template get<P>(t)...);
}

// A threadgroup variable: `typedef T name_type; name_type &name = threadgroup_variable<name_type>(...)`.
template <class T> inline T &threadgroup_variable(uint id, const char *name) {
    return *(T *)softmetal_scheduler.threadgroup_variable(id, name, sizeof(T), alignof(T));
}
}  // namespace msl
