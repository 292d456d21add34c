#pragma once
// For the fuzz targets (x_fuzz.cc).
#include <cstdlib>

namespace pgf {

// What a target expects of whatever input it gets: the fuzzer keeps the input that breaks it.
inline void must(bool good) {
  if (!good) std::abort();
}

}  // namespace pgf
