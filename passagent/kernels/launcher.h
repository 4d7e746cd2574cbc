// The host side of one CUDA kernel: its image and a launch function. The trusted side writes the rest around it.
#include <stdint.h>

typedef int (*launch_function)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, void* stream, void** parameters, void** extra);

// What stays the same from launch to launch: cuLaunchKernel, the kernel's CUfunction, grid and block.
struct plan {
  launch_function launch;
  void* function;
  uint32_t grid[3], block[3];
  uint32_t shared_limit;
};

enum { MORE_SHARED = -1, ARGUMENT = -2 };  // ARGUMENT - i: argument i does not fit its parameter

#define LAUNCH(parameters)                                                                                  \
  if (shared > p->shared_limit) return MORE_SHARED;                                                         \
  if (p->grid[0] == 0 || p->grid[1] == 0 || p->grid[2] == 0) return 0;                                      \
  return p->launch(p->function, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1], p->block[2], \
                   shared, stream, parameters, 0);
