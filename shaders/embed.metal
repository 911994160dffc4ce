#include <metal_stdlib>
#include "../include/mf_kernels.gen.h"
#include "common/affine.h"
#include "common/group.h"
using namespace metal;

constant uint embed_bits [[function_constant(MF_CONSTANT_EMBED_AFFINE_BITS)]];

// y[t, d] = (scale[id, d / 64] * code[id, d] + bias[id, d / 64]) * multiplier; id = ids[t]
// Source: the layout of MLX checkpoints. A threadgroup for each token, four columns a thread. An id outside
// the table gives NaN. Tolerance 3e-7 of the largest value.
[[max_total_threads_per_threadgroup(256)]]
kernel void embed_affine(device const uint *ids [[buffer(MF_EMBED_AFFINE_IDS)]],
                         device const ushort *codes [[buffer(MF_EMBED_AFFINE_CODES)]],
                         device const ushort *scales [[buffer(MF_EMBED_AFFINE_SCALES)]],
                         device const ushort *biases [[buffer(MF_EMBED_AFFINE_BIASES)]],
                         device float *y [[buffer(MF_EMBED_AFFINE_Y)]],
                         constant mf_embed_affine_params &p [[buffer(MF_EMBED_AFFINE_PARAMS)]],
                         uint3 group [[threadgroup_position_in_grid]], PLACE_ARGUMENTS) {
  const place at = PLACE();
  const uint t = group.x;
  const affine_shape shape = shape_of(p.D, embed_bits);
  const uint id = ids[t];
  device float *to = y + ulong(t) * p.D;
  if (id >= p.V || shape.columns == 0) {
    for (uint d = at.index; d < p.D; d += at.threads) to[d] = not_a_number();
    return;
  }
  const affine_rows row = rows_from(affine_rows{codes, scales, biases}, shape, id);
  device packed_float4 *out = (device packed_float4 *)to;
  for (uint i = at.index; i < p.D / 4; i += at.threads) {
    const float4 scale = float4(from_bf16(row.scales[i / 16]));
    const float4 bias = float4(from_bf16(row.biases[i / 16]));
    const float4 code = shape.bits == 4 ? four_codes(row.codes[i]) : four_codes(row.codes[2 * i], row.codes[2 * i + 1]);
    out[i] = packed_float4(fma(scale, code, bias) * p.multiplier);
  }
}
