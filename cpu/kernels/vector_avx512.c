// The vector kernels for x86-64 with AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#define MF_PATH_AVX512
#include "attention_vector.h"
#include "delta_vector.h"
#include "norm_vector.h"
#include "rotary_vector.h"
#include "router_vector.h"
#include "sampling_vector.h"
#endif
