// Barriers and SIMD-group functions. Each SIMD-group function is a meeting of the active lanes: every lane
// hands in a value, waits for the others, and reads what it needs.
#pragma once

namespace metal {
enum class mem_flags : uint {
    mem_none = 0,
    mem_device = SOFTMETAL_MEM_DEVICE,
    mem_threadgroup = SOFTMETAL_MEM_THREADGROUP,
    mem_texture = 4,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

// `line` is the line of the caller; it tells the scheduler which call a thread waits at.
#define MSL_LINE uint line = __builtin_LINE()

inline void threadgroup_barrier(mem_flags flags, MSL_LINE) {
    softmetal_scheduler.threadgroup_barrier(uint(flags), line);
}
inline void simdgroup_barrier(mem_flags flags, MSL_LINE) {
    softmetal_scheduler.simdgroup_barrier(uint(flags), line);
}
}  // namespace metal

namespace msl {
inline uint lane_index() { return softmetal_scheduler.lane_index(); }
inline bool is_active(const softmetal_exchange &e, uint lane) { return lane < 32 && (e.active >> lane & 1); }

template <class T> inline const softmetal_exchange &meet(T value, softmetal_combine combine, uint line) {
    static_assert(sizeof(T) <= sizeof(softmetal_lane_value), "the value is too large for a SIMD-group function");
    softmetal_lane_value v;
    __builtin_memcpy(v.bytes, &value, sizeof value);
    return *softmetal_scheduler.simd_exchange(&v, combine, line);
}
template <class T> inline T from_lane(const softmetal_exchange &e, uint lane) {
    T value;
    __builtin_memcpy(&value, e.lane[lane].bytes, sizeof value);
    return value;
}
template <class T> inline T result(const softmetal_exchange &e) {
    T value;
    __builtin_memcpy(&value, e.result, sizeof value);
    return value;
}

// Reductions, in the order of a butterfly: lanes 16 apart first.
template <class T, class Op> void reduce(softmetal_exchange *e) {
    T value[32];
    if (e->active == 0xFFFFFFFF) {
        for (uint i = 0; i < 32; i++) value[i] = from_lane<T>(*e, i);
        for (uint half_width = 16; half_width; half_width /= 2)
            for (uint i = 0; i < half_width; i++) value[i] = Op::apply(value[i], value[i + half_width]);
    } else {
        bool first = true;
        for (uint i = 0; i < 32; i++)
            if (is_active(*e, i)) {
                value[0] = first ? from_lane<T>(*e, i) : Op::apply(value[0], from_lane<T>(*e, i));
                first = false;
            }
    }
    __builtin_memcpy(e->result, value, sizeof(T));
}
// Each lane's slot becomes the reduction of the lanes before it, and its own if Inclusive.
template <class T, class Op, bool Inclusive> void scan(softmetal_exchange *e) {
    T sum = Op::template identity<T>();
    for (uint i = 0; i < 32; i++)
        if (is_active(*e, i)) {
            T next = Op::apply(sum, from_lane<T>(*e, i)), out = Inclusive ? next : sum;
            __builtin_memcpy(e->lane[i].bytes, &out, sizeof out);
            sum = next;
        }
}
// The same for the four lanes of a quad; the result goes to every slot.
template <class T, class Op> void reduce_quads(softmetal_exchange *e) {
    for (uint quad = 0; quad < 32; quad += 4) {
        T value = from_lane<T>(*e, quad);
        for (uint i = quad + 1; i < quad + 4; i++)
            if (is_active(*e, i)) value = Op::apply(value, from_lane<T>(*e, i));
        for (uint i = quad; i < quad + 4; i++) __builtin_memcpy(e->lane[i].bytes, &value, sizeof value);
    }
}

struct add {
    template <class T> static T apply(T a, T b) { return a + b; }
    template <class T> static T identity() { return T(element<T>(0)); }
};
struct multiply {
    template <class T> static T apply(T a, T b) { return a * b; }
    template <class T> static T identity() { return T(element<T>(1)); }
};
struct minimum { template <class T> static T apply(T a, T b) { return metal::min(a, b); } };
struct maximum { template <class T> static T apply(T a, T b) { return metal::max(a, b); } };
struct bit_and { template <class T> static T apply(T a, T b) { return a & b; } };
struct bit_or { template <class T> static T apply(T a, T b) { return a | b; } };
struct bit_xor { template <class T> static T apply(T a, T b) { return a ^ b; } };

template <class T> inline T shuffle(T value, uint lane, uint line) {
    const softmetal_exchange &e = meet(value, nullptr, line);
    if (!is_active(e, lane)) softmetal_scheduler.fail("a SIMD shuffle reads from an inactive lane");
    return from_lane<T>(e, lane);
}
inline uint ballot(bool vote, uint line) {
    const softmetal_exchange &e = meet(uint(vote), nullptr, line);
    uint mask = 0;
    for (uint i = 0; i < 32; i++)
        if (is_active(e, i) && from_lane<uint>(e, i)) mask |= 1u << i;
    return mask;
}
}  // namespace msl

namespace metal {
#define MSL_REDUCTION(name, Op)                                                                           \
    template <class T> inline T simd_##name(T value, MSL_LINE) {                                          \
        return msl::result<T>(msl::meet(value, msl::reduce<T, msl::Op>, line));                           \
    }                                                                                                     \
    template <class T> inline T quad_##name(T value, MSL_LINE) {                                          \
        return msl::from_lane<T>(msl::meet(value, msl::reduce_quads<T, msl::Op>, line), msl::lane_index()); \
    }
MSL_REDUCTION(sum, add)
MSL_REDUCTION(product, multiply)
MSL_REDUCTION(min, minimum)
MSL_REDUCTION(max, maximum)
MSL_REDUCTION(and, bit_and)
MSL_REDUCTION(or, bit_or)
MSL_REDUCTION(xor, bit_xor)

#define MSL_SCAN(name, Op, Inclusive)                                                                     \
    template <class T> inline T simd_prefix_##name(T value, MSL_LINE) {                                   \
        return msl::from_lane<T>(msl::meet(value, msl::scan<T, msl::Op, Inclusive>, line), msl::lane_index()); \
    }
MSL_SCAN(inclusive_sum, add, true)
MSL_SCAN(exclusive_sum, add, false)
MSL_SCAN(inclusive_product, multiply, true)
MSL_SCAN(exclusive_product, multiply, false)

template <class T> inline T simd_shuffle(T value, ushort lane, MSL_LINE) { return msl::shuffle(value, lane, line); }
template <class T> inline T simd_broadcast(T value, ushort lane, MSL_LINE) { return msl::shuffle(value, lane, line); }
template <class T> inline T simd_shuffle_xor(T value, ushort mask, MSL_LINE) {
    return msl::shuffle(value, msl::lane_index() ^ mask, line);
}
// Lanes that would read beyond the end keep their own value.
template <class T> inline T simd_shuffle_down(T value, ushort delta, MSL_LINE) {
    uint lane = msl::lane_index();
    return msl::shuffle(value, lane + delta < 32 ? lane + delta : lane, line);
}
template <class T> inline T simd_shuffle_up(T value, ushort delta, MSL_LINE) {
    uint lane = msl::lane_index();
    return msl::shuffle(value, lane >= delta ? lane - delta : lane, line);
}
template <class T> inline T simd_shuffle_rotate_down(T value, ushort delta, MSL_LINE) {
    return msl::shuffle(value, (msl::lane_index() + delta) % 32, line);
}
template <class T> inline T simd_shuffle_rotate_up(T value, ushort delta, MSL_LINE) {
    return msl::shuffle(value, (msl::lane_index() - delta) % 32, line);
}
template <class T> inline T simd_broadcast_first(T value, MSL_LINE) {
    const softmetal_exchange &e = msl::meet(value, nullptr, line);
    return msl::from_lane<T>(e, uint(__builtin_ctz(e.active)));
}
template <class T> inline T quad_broadcast(T value, ushort lane, MSL_LINE) {
    return msl::shuffle(value, (msl::lane_index() & ~3u) + lane, line);
}
template <class T> inline T quad_shuffle(T value, ushort lane, MSL_LINE) {
    return msl::shuffle(value, (msl::lane_index() & ~3u) + lane, line);
}
template <class T> inline T quad_shuffle_xor(T value, ushort mask, MSL_LINE) {
    return msl::shuffle(value, msl::lane_index() ^ mask, line);
}

class simd_vote {
public:
    typedef ulong vote_t;
    explicit constexpr simd_vote(vote_t mask = 0) : mask(mask) {}
    constexpr bool all() const { return mask == 0xFFFFFFFF; }
    constexpr bool any() const { return mask != 0; }
    explicit constexpr operator vote_t() const { return mask; }
private:
    vote_t mask;
};
inline simd_vote simd_ballot(bool vote, MSL_LINE) { return simd_vote(msl::ballot(vote, line)); }
inline simd_vote simd_active_threads_mask(MSL_LINE) { return simd_vote(msl::meet(0, nullptr, line).active); }
inline bool simd_any(bool vote, MSL_LINE) { return msl::ballot(vote, line) != 0; }
inline bool simd_all(bool vote, MSL_LINE) { return msl::ballot(!vote, line) == 0; }
inline bool simd_is_first(MSL_LINE) {
    return uint(__builtin_ctz(msl::meet(0, nullptr, line).active)) == msl::lane_index();
}
}  // namespace metal
