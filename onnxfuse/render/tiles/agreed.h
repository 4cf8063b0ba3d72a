// What C++ and Python have to agree on. Written by scripts/agreed.py from onnxfuse/render/agreed.py: not to be edited.
#pragma once

namespace onnxfuse {
namespace agreed {

constexpr int ABI_VERSION = 18;  // of the runtime's C interface; the oldest runtime is 1.ABI_VERSION
constexpr int ALIGNMENT = 64;  // bytes: of every buffer of a run and of a task
constexpr int AMX_PIECE = 64;  // bytes of a row that one product of the matrix unit takes
constexpr int AMX_ROWS = 32;  // rows of a tile of the matrix unit at most
constexpr int AMX_SIDE = 16;  // rows and columns of one of its registers
constexpr int CARRIED = 4;  // vectors of one reduction that are carried side by side
constexpr char DISABLE[] = "onnxfuse.disable";  // the session config entry that names kernels not to be run
constexpr int EVEN_ENTRIES = 4;  // of a segment of even rows in a table of pointers
constexpr int FARTHEST = 4;  // distance from lane to lane up to which whole vectors are read
constexpr char ISA[] = "ONNXFUSE_ISA";  // the environment variable that allows a library one instruction set only
constexpr int LEAST_POWER = -87;  // of e, below which exp_or_zero is 0
constexpr int PAIR = 2;  // steps of bfloat16 that lie side by side
constexpr int PLENTY = 4;  // tasks of a core with which the second axis is not divided any more
constexpr int QUAD = 4;  // steps of codes that lie side by side
constexpr char REGISTERED[] = "kernels for ";  // what a library says in its entry where it is used, and for what
constexpr int REQUEST_PERMISSION = 4131;  // of arch_prctl: to use a feature of the processor
constexpr int SLOTS = 256;  // of a run's memory for local buffers, at most
constexpr char STATUS[] = ".status";  // behind a domain: the session config entry that says whether its kernels run
constexpr int TASK = 10000000;  // picoseconds of work for which a task is started
constexpr int TASKS = 16;  // of a core, at most
constexpr int TILE_DATA = 18;  // the feature that is asked for, and its bit in XCR0
constexpr int TILE_VECTORS = 2;  // of a row of a register tile
constexpr int WIDEST = 16;  // lanes of a vector at most
constexpr int ZERO_ROW = 4096;  // elements of padding that a row pointer may stand for

enum { NOTHING, MULTIPLY_ADD, READ, WAIT };  // what the kernel of calibration is asked for

// Rows of a register tile at most, by the lanes of a vector.
constexpr int tile_rows(int lanes) {
#if defined(__aarch64__)
  if (lanes == 4) return 12;
#endif
  if (lanes == 16) return 14;
  if (lanes == 8) return 6;
  if (lanes == 4) return 4;
  return 0;
}

}  // namespace agreed
}  // namespace onnxfuse
