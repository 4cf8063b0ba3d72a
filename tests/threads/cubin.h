// What a cubin, an ELF file, says of itself: its architecture, and the registers of each thread of a function.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace cubin {

inline bool is_one(const unsigned char* image) { return !memcmp(image, "\x7f" "ELF", 4); }

template <class T>
T at(const unsigned char* image, size_t offset) {
  T found;
  memcpy(&found, image + offset, sizeof found);
  return found;
}

// In the flags of the header: bits 8 to 15 since CUDA 13, the lowest ones before.
inline int architecture(const unsigned char* image) {
  const uint32_t flags = at<uint32_t>(image, 48);
  const int since = flags >> 8 & 0xff, before = flags & 0xff;
  return image[8] >= 8 || before == 0 ? since : before;
}

struct Section {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t alignment, entry;
};

// Section .nv.info is a list of attributes; those numbered 0x2f are pairs of a symbol and its number of registers.
inline std::map<std::string, int> registers(const unsigned char* image) {
  const uint64_t first = at<uint64_t>(image, 40);
  const int each = at<uint16_t>(image, 58), count = at<uint16_t>(image, 60), named = at<uint16_t>(image, 62);
  auto section = [&](int i) { return at<Section>(image, first + (uint64_t)i * each); };
  auto text = [&](const Section& s, uint32_t from) { return reinterpret_cast<const char*>(image + s.offset + from); };
  enum { SYMBOLS = 2, SYMBOL_BYTES = 24, SIZED = 4, REGISTERS = 0x2f };
  Section symbols{}, attributes{};
  for (int i = 0; i < count; i++) {
    const Section s = section(i);
    if (s.type == SYMBOLS) symbols = s;
    if (!strcmp(text(section(named), s.name), ".nv.info")) attributes = s;
  }
  std::map<std::string, int> found;
  for (uint64_t here = 0; here + 4 <= attributes.size;) {
    const unsigned char* a = image + attributes.offset + here;
    here += 4 + (a[0] == SIZED ? at<uint16_t>(a, 2) : 0);
    if (a[0] != SIZED || a[1] != REGISTERS) continue;
    const uint32_t name = at<uint32_t>(image, symbols.offset + (uint64_t)at<uint32_t>(a, 4) * SYMBOL_BYTES);
    found[text(section(symbols.link), name)] = at<uint32_t>(a, 8);
  }
  return found;
}

}  // namespace cubin
