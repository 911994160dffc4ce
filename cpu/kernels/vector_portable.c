// The vector kernels for any processor, through the compiler's vectors of four.
#define MF_PATH_PORTABLE
#include "attention_vector.h"
#include "delta_vector.h"
#include "norm_vector.h"
#include "rotary_vector.h"
#include "router_vector.h"
#include "sampling_vector.h"
