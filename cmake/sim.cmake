# tests/sim: the whole program in one thread, over a simulated network and clock.
file(GLOB sim_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/sim/*.cc)
add_executable(sim_test ${sim_sources})
target_include_directories(sim_test PRIVATE ${CMAKE_SOURCE_DIR}/tests/sim)
target_link_libraries(sim_test PRIVATE pgf_worker GTest::gtest)
add_test(NAME sim_test COMMAND sim_test)
