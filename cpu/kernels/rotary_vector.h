// Per-head norms, rotation and the write of new rows into the KV cache. A head is done by one thread.
#ifndef MF_ROTARY_VECTOR_H
#define MF_ROTARY_VECTOR_H
#include "norm_vector.h"

// One head: x * factor * weight (no weight where it is NULL), its first 2 N components rotated. `source`
// may be what is written: a pair is read before.
typedef struct {
  const float *source;
  const uint16_t *weight;
  const float *cosines;
  const float *sines;
  uint32_t Dh;
  uint32_t N;
  vf factor;
} mf_head;

MF_INLINE vf normed(const mf_head *h, uint32_t i, uint32_t n) {
  const vf x = vf_load_some(h->source + i, n) * h->factor;
  if (h->weight == NULL) return x;
  return x * vf_from_bf16_some(h->weight + i, n);
}

MF_INLINE void put(void *out, bool is_half, uint32_t i, vf a, uint32_t n) {
  if (is_half) {
    vf_to_f16_some((uint16_t *)out + i, a, n);
  } else {
    vf_store_some((float *)out + i, a, n);
  }
}

MF_INLINE void write_head(const mf_head *h, void *out, bool is_half) {
  const uint32_t N = h->N;
  for (uint32_t i = 0; i < N; i += VF) {
    const uint32_t n = N - i < VF ? N - i : VF;
    const vf cosines = vf_load_some(h->cosines + i, n);
    const vf sines = vf_load_some(h->sines + i, n);
    const vf a = normed(h, i, n);
    const vf b = normed(h, N + i, n);
    put(out, is_half, i, a * cosines - b * sines, n);
    put(out, is_half, N + i, b * cosines + a * sines, n);
  }
  for (uint32_t i = 2 * N; i < h->Dh; i += VF) put(out, is_half, i, normed(h, i, h->Dh - i), h->Dh - i);
}

// Parameters and buffers of all four kernels are laid out alike.
typedef mf_qkv_epilogue_f32_params mf_qkv_params;

// Heads 0 .. H - 1 are queries, then Hkv keys, then Hkv values. `pairs` holds N cosines, then N sines.
typedef struct {
  bool is_half;
  bool norms_values;
} mf_epilogue;

MF_INLINE void epilogue_head(const mf_task *task, uint32_t t, uint32_t head, const float *pairs,
                             mf_epilogue kind) {
  const bool is_half = kind.is_half;
  const mf_qkv_params *p = task->params;
  void *const *bound = task->buffers;
  const size_t element_bytes = is_half ? 2 : 4;
  const bool is_query = head < p->H;
  const bool is_key = !is_query && head < p->H + p->Hkv;
  const uint32_t g = is_query ? head : (head - p->H) % p->Hkv;
  const float *source = bound[is_query ? MF_QKV_EPILOGUE_F32_Q
                              : is_key ? MF_QKV_EPILOGUE_F32_K
                                       : MF_QKV_EPILOGUE_F32_V];
  source += ((size_t)t * (is_query ? p->H : p->Hkv) + g) * p->Dh;
  mf_head h = {source, NULL, pairs, pairs + p->N, p->Dh, 0, vf_splat(0)};
  const bool is_normed = is_query || is_key || kind.norms_values;
  h.factor = vf_splat(is_normed ? inverse_rms(sum_squares(source, p->Dh), p->Dh, p->eps) : 1.0f);
  if (is_query || is_key) {
    h.weight = bound[is_query ? MF_QKV_EPILOGUE_F32_Q_NORM : MF_QKV_EPILOGUE_F32_K_NORM];
    h.N = p->N;
  }
  if (is_query) {
    write_head(&h, (float *)bound[MF_QKV_EPILOGUE_F32_Q] + ((size_t)t * p->H + g) * p->Dh, false);
    return;
  }
  const size_t slot = ((size_t)p->position + t) % p->R;
  uint8_t *rows = bound[is_key ? MF_QKV_EPILOGUE_F32_KEYS : MF_QKV_EPILOGUE_F32_VALUES];
  write_head(&h, rows + (slot * p->Hkv + g) * p->Dh * element_bytes, is_half);
}

// Heads of one unit: enough arithmetic that taking a unit and parting the table do not show.
enum { HEADS_PER_UNIT = 8 };

// The (cosine, sine) pairs of a token, parted.
static void part_table(const mf_task *task, uint32_t t, float *pairs) {
  const mf_qkv_params *p = task->params;
  const float *table = (const float *)task->buffers[MF_QKV_EPILOGUE_F32_TABLE] + (size_t)t * p->N * 2;
  for (uint32_t n = 0; n < p->N; n++) {
    pairs[n] = table[2 * n];
    pairs[p->N + n] = table[2 * n + 1];
  }
}

MF_INLINE void epilogue(const mf_task *task, mf_epilogue kind) {
  const mf_qkv_params *p = task->params;
  if (p->T > p->R || 2 * (uint64_t)p->N > p->Dh) {
    mf_fail(task, "qkv_epilogue: %u rows do not fit a cache of %u, or %u pairs a head of %u", p->T, p->R,
            p->N, p->Dh);
    return;
  }
  float *pairs = mf_scratch(task, (size_t)p->N * 2 * sizeof *pairs);
  if (pairs == NULL) return;
  const uint32_t heads = p->H + 2 * p->Hkv;
  const uint32_t units = (heads + HEADS_PER_UNIT - 1) / HEADS_PER_UNIT;
  for (uint32_t unit; (unit = mf_take(task, 0, p->T * units)) < p->T * units;) {
    const uint32_t first = unit % units * HEADS_PER_UNIT;
    part_table(task, unit / units, pairs);
    for (uint32_t head = first; head < heads && head < first + HEADS_PER_UNIT; head++) {
      epilogue_head(task, unit / units, head, pairs, kind);
    }
  }
}

void MF_ON_PATH(qkv_epilogue_f32)(const mf_task *task) { epilogue(task, (mf_epilogue){false, true}); }
void MF_ON_PATH(qkv_epilogue_f16)(const mf_task *task) { epilogue(task, (mf_epilogue){true, true}); }
void MF_ON_PATH(qk_epilogue_f32)(const mf_task *task) { epilogue(task, (mf_epilogue){false, false}); }
void MF_ON_PATH(qk_epilogue_f16)(const mf_task *task) { epilogue(task, (mf_epilogue){true, false}); }
#endif
