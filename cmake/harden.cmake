# What makes a bug harder to use: for every optimised build that has no sanitizer. -DPGF_HARDEN=OFF to measure its cost
# (docs/reliability.md). tests/e2e/test_hardened.py looks at the program.
option(PGF_HARDEN "fortified, stack-protected, position-independent, read-only relocations" ON)
if(NOT PGF_HARDEN OR PGF_SANITIZE OR NOT CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo|MinSizeRel)$")
  return()
endif()
include(CheckCXXCompilerFlag)
# Not CMake's POSITION_INDEPENDENT_CODE: it compiles static libraries for use in shared ones (-fPIC), which costs.
target_compile_options(pgf_flags INTERFACE -fPIE)
target_link_options(pgf_flags INTERFACE -pie)
# Level 3 counts sizes that are known at run time only; compilers and C libraries that lack it take it for 2.
target_compile_options(pgf_flags INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS)
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "has${flag}" known)
  check_cxx_compiler_flag(${flag} ${known})
  if(${known})
    target_compile_options(pgf_flags INTERFACE ${flag})
  endif()
endforeach()
target_link_options(pgf_flags INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack,-z,separate-code)
