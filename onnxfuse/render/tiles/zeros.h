// The zeros of tile.h, once per library.
#pragma once
#include "agreed.h"

namespace onnxfuse { inline namespace ONNXFUSE_ISA {
alignas(64) extern const float ZEROS[agreed::ZERO_ROW] = {};
} }  // namespace onnxfuse
