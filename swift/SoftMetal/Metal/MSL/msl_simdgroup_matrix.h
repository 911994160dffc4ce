// 8x8 matrices spread over the lanes of a SIMD-group: two neighbouring elements of a row per lane.
#pragma once

namespace msl {
// Where a lane's two elements are. The same arrangement as on Apple's GPUs, so that kernels which rely on it
// through thread_elements() can be tried too.
struct matrix_place {
    uint row, column;
    explicit matrix_place(uint lane)
        : row((lane / 4 & 4) + lane / 2 % 4), column((lane / 4 & 2) * 2 + lane % 2 * 2) {}
};

// The lanes hand in two elements of A and two of B; the product A B is computed once for all of them.
inline void multiply_8x8(softmetal_exchange *e) {
    float a[8][8], b[8][8], product[8][8] = {};
    for (uint lane = 0; lane < 32; lane++) {
        matrix_place at(lane);
        float4 v = from_lane<float4>(*e, lane);
        a[at.row][at.column] = v.x, a[at.row][at.column + 1] = v.y;
        b[at.row][at.column] = v.z, b[at.row][at.column + 1] = v.w;
    }
    for (int row = 0; row < 8; row++)
        for (int k = 0; k < 8; k++)
            for (int column = 0; column < 8; column++) product[row][column] += a[row][k] * b[k][column];
    __builtin_memcpy(e->result, product, sizeof product);
}
}  // namespace msl

namespace metal {
template <class T, int Columns, int Rows> struct simdgroup_matrix {
    static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix has 8 columns and 8 rows");
    typedef vec<T, 2> storage_type;
    storage_type elements;

    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal) {
        msl::matrix_place at(msl::lane_index());
        elements.x = at.row == at.column ? diagonal : T(0);
        elements.y = at.row == at.column + 1 ? diagonal : T(0);
    }
    storage_type &thread_elements() { return elements; }
    const storage_type &thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, C, R> m;
    m.elements = value;
    return m;
}

template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, P source, ulong elements_per_row = 8,
                           ulong2 origin = 0, bool transpose = false) {
    msl::matrix_place at(msl::lane_index());
    P corner = source + origin.y * elements_per_row + origin.x;
    for (uint i = 0; i < 2; i++)
        m.elements[i] = transpose ? corner[(at.column + i) * elements_per_row + at.row]
                                  : corner[at.row * elements_per_row + at.column + i];
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P destination, ulong elements_per_row = 8,
                            ulong2 origin = 0, bool transpose = false) {
    msl::matrix_place at(msl::lane_index());
    P corner = destination + origin.y * elements_per_row + origin.x;
    for (uint i = 0; i < 2; i++)
        (transpose ? corner[(at.column + i) * elements_per_row + at.row]
                   : corner[at.row * elements_per_row + at.column + i]) = m.elements[i];
}

template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_LINE) {
    float4 mine = {float(a.elements.x), float(a.elements.y), float(b.elements.x), float(b.elements.y)};
    const softmetal_exchange &e = msl::meet(mine, msl::multiply_8x8, line);
    if (e.active != 0xFFFFFFFF) softmetal_scheduler.fail("a matrix multiplication needs all 32 lanes");
    msl::matrix_place at(msl::lane_index());
    const float *product = reinterpret_cast<const float *>(e.result) + at.row * 8 + at.column;
    d.elements.x = D(product[0] + float(c.elements.x));
    d.elements.y = D(product[1] + float(c.elements.y));
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                               simdgroup_matrix<B, 8, 8> b, MSL_LINE) {
    simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>(D(0)), line);
}
}  // namespace metal
