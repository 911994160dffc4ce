// The vector kernels for arm64.
#if defined(__aarch64__)
#define MF_PATH_NEON
#include "attention_vector.h"
#include "delta_vector.h"
#include "norm_vector.h"
#include "rotary_vector.h"
#include "router_vector.h"
#include "sampling_vector.h"
#endif
