// What stand-ins for libraries of CUDA share: the stand-in for the driver, which they tell what they are asked for, and
// numbers of several types. Both libraries number float32 and float16 alike; what is neither is bfloat16.
#pragma once
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

enum { SINGLE = 0, HALF = 2 };  // of cudaDataType_t and cudnnDataType_t

void* driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, name) : nullptr;
}
template <class... T>
void say(const char* format, T... values) {
  char text[256];
  snprintf(text, sizeof text, format, values...);
  reinterpret_cast<void (*)(const char*)>(driver("standInSays"))(text);
}
bool has(const void* at, size_t bytes) {
  return reinterpret_cast<bool (*)(const void*, size_t)>(driver("standInHas"))(at, bytes);
}

float read(const void* from, int type, size_t at) {
  if (type == SINGLE) return static_cast<const float*>(from)[at];
  if (type == HALF) return static_cast<float>(static_cast<const _Float16*>(from)[at]);
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(from)[at]) << 16;
  float value;
  return memcpy(&value, &bits, 4), value;
}
void write(void* to, int type, size_t at, float value) {
  if (type == SINGLE) {
    static_cast<float*>(to)[at] = value;
  } else if (type == HALF) {
    static_cast<_Float16*>(to)[at] = static_cast<_Float16>(value);
  } else {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>(std::isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

}  // namespace
