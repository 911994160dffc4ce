// The Metal standard library for the CPU: included before every translated Metal source.
//
// The language is C++ with Clang's extended vectors, which have Metal's component access (.xyz, .xy = ...),
// element-wise operators and scalar broadcast. What C++ cannot express (vector constructors, threadgroup
// variables, function constants) the translator in MSLTranslator.swift rewrites into calls of namespace msl.
#pragma once
#include "softmetal.h"

#define MSL_EXPORT __attribute__((visibility("default")))
#define MSL_HIDDEN __attribute__((visibility("hidden")))
extern "C" {
// Services of the scheduler; filled in when the library is loaded.
MSL_EXPORT softmetal_services softmetal_scheduler = {};
// Where the library, with its constants, is in memory; from the linker.
MSL_HIDDEN extern const char __ehdr_start[], _end[];
MSL_EXPORT extern const void *const softmetal_image_start = __ehdr_start, *const softmetal_image_end = _end;
}

#include "msl_vectors.h"
#include "msl_math.h"
#include "msl_atomic.h"
#include "msl_simd.h"
#include "msl_simdgroup_matrix.h"
#include "msl_entry.h"

// Address spaces. In the translation they mean nothing: a pointer is a pointer. The portability check
// (SOFTMETAL_LINT) compiles a second time with real address spaces, so that forgotten or wrong qualifiers
// are errors, as they are for Apple's compiler.
#ifdef MSL_LINT
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel static __attribute__((unused))  // a kernel without entry point is not compiled
#define METAL_FUNC inline __attribute__((always_inline))
