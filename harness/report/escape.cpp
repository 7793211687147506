#include <cstdint>

#include "harness/report/junit.h"

namespace harness {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// Bytes of the well-formed UTF-8 sequence at the start of text, or 0.
std::size_t sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t code = length == 1 ? first : first & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

bool allowed(std::string_view one) {
  const auto c = static_cast<unsigned char>(one[0]);
  if (one.size() == 1) return c >= 0x20 ? c != 0x7f : c == '\t' || c == '\n' || c == '\r';
  return one != "\xef\xbf\xbe" && one != "\xef\xbf\xbf";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence(text);
    const std::string_view one = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(one.size());
    if (length == 0 || !allowed(one))
      out += replacement;
    else if (one == "&")
      out += "&amp;";
    else if (one == "<")
      out += "&lt;";
    else if (one == ">")
      out += "&gt;";
    else if (one == "\"")
      out += "&quot;";
    else if (one == "'")
      out += "&#39;";
    else
      out += one;
  }
  return out;
}

}  // namespace harness
