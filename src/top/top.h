#pragma once
// `pgflotilla top [--once] [--view NAME] [--delay SECONDS] [CONNECTION STRING | INI]`.
#include "top/target.h"

namespace pgf::top {

// The whole program; argv[0] is "top". Returns the exit status.
int run(int argc, char** argv, Outside outside);

}  // namespace pgf::top
