// What the processor can do: the instruction sets that kernels have a path for, its name, how many cores
// this process may use, and the machine's memory.
#include "mf_core.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static const char *const names[] = {
    [MF_SIMD_PORTABLE] = "portable",
    [MF_SIMD_AVX2] = "avx2",
    [MF_SIMD_AVX512] = "avx512",
    [MF_SIMD_NEON] = "neon",
};
enum { NAME_COUNT = sizeof names / sizeof names[0] };

const char *mf_simd_name(mf_simd simd) { return names[simd]; }

#if defined(__x86_64__)
static bool has_bits(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// The register states that the system saves: without that its instructions fault.
static uint64_t saved_states(uint32_t features) {
  if ((features & bit_OSXSAVE) == 0) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static bool has_simd(mf_simd simd) {
  uint32_t a, b, features, d, extended, more;
  if (simd == MF_SIMD_PORTABLE) return true;
  if (simd == MF_SIMD_NEON || !__get_cpuid(1, &a, &b, &features, &d)) return false;
  if (!__get_cpuid_count(7, 0, &a, &extended, &more, &d)) return false;
  const uint64_t states = saved_states(features);
  const bool avx2 = (states & 0x06) == 0x06 && has_bits(features, bit_AVX | bit_FMA | bit_F16C) &&
                    has_bits(extended, bit_AVX2);
  if (simd == MF_SIMD_AVX2) return avx2;
  return avx2 && (states & 0xE6) == 0xE6 &&
         has_bits(extended, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
         has_bits(more, bit_AVX512VNNI);
}
#elif defined(__aarch64__)
static bool has_simd(mf_simd simd) {
  if (simd == MF_SIMD_PORTABLE) return true;
  if (simd != MF_SIMD_NEON) return false;
#if defined(__linux__)
  enum { DOT_PRODUCT = 1 << 20 };  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & DOT_PRODUCT) != 0;
#elif defined(__APPLE__)
  int found = 0;
  size_t bytes = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &bytes, NULL, 0) == 0 && found != 0;
#else
  return false;
#endif
}
#else
static bool has_simd(mf_simd simd) { return simd == MF_SIMD_PORTABLE; }
#endif

int32_t mf_simd_choose(const char *name, mf_simd *simd) {
  if (name[0] == '\0') {
    static const mf_simd best[] = {MF_SIMD_AVX512, MF_SIMD_AVX2, MF_SIMD_NEON, MF_SIMD_PORTABLE};
    int i = 0;
    while (!has_simd(best[i])) i++;
    *simd = best[i];
    return MF_OK;
  }
  for (int i = 0; i < NAME_COUNT; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *simd = (mf_simd)i;
    if (has_simd(*simd)) return MF_OK;
    return mf_error(MF_ERR_DEVICE, "this processor lacks instructions that the path %s needs", name);
  }
  return mf_error(MF_ERR_ARGUMENT,
                  "%s is no instruction set; portable, avx2, avx512 or neon was expected", name);
}

void mf_processor_name(char *name, size_t capacity) {
  char found[64] = {0};
#if defined(__x86_64__)
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t words[4];
    if (__get_cpuid(0x80000002 + i, &words[0], &words[1], &words[2], &words[3]))
      memcpy(found + 16 * i, words, sizeof words);
  }
#elif defined(__APPLE__)
  size_t bytes = sizeof found - 1;
  if (sysctlbyname("machdep.cpu.brand_string", found, &bytes, NULL, 0) != 0) found[0] = '\0';
#endif
  size_t length = strlen(found);
  while (length > 0 && found[length - 1] == ' ') found[--length] = '\0';
  snprintf(name, capacity, "%s", length > 0 ? found + strspn(found, " ") : "CPU");
}

#if defined(__linux__)
// Whole cores that the control group grants, as in a container; 0 where it sets no limit.
static uint32_t granted_cores(void) {
  long long quota = 0, period = 0;
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file != NULL) {
    if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = 0;
    fclose(file);
  }
  return quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}
#endif

uint32_t mf_processor_count(void) {
#if defined(__linux__)
  cpu_set_t allowed;
  const uint32_t granted = granted_cores();
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 0) {
    const uint32_t count = (uint32_t)CPU_COUNT(&allowed);
    return granted > 0 && granted < count ? granted : count;
  }
#endif
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

double mf_processor_memory_bytes(void) {
#if defined(__APPLE__)
  uint64_t bytes = 0;
  size_t size = sizeof bytes;
  return sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) == 0 ? (double)bytes : 0;
#else
  return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
#endif
}
