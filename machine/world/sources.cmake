set(world_headers world/binding.h world/board.h world/grid.h world/group.h world/mpi_world.h world/segment.h world/step_clock.h
    world/world.h)
set(world_sources world/binding.cpp world/board.cpp world/grid.cpp world/group.cpp world/mpi_world.cpp
    world/segment.cpp world/step_clock.cpp world/thread_world.cpp world/world.cpp)
set(world_tests world/grid_test.cpp world/segment_test.cpp world/world_test.cpp)
