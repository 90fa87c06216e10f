#include "show/printable.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>

namespace finitude::show {
namespace {

constexpr char32_t kBroken = 0xFFFFFFFF;

struct Range {
  char32_t first, last;
};

// Never printed as they are: they move the cursor, reorder the line or hide in it.
constexpr Range kUnsafe[] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},       {0x61C, 0x61C},
                             {0x115F, 0x1160}, {0x180B, 0x180F}, {0x200B, 0x200F},   {0x2028, 0x202E},
                             {0x2060, 0x206F}, {0x3164, 0x3164}, {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},
                             {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0xE0000, 0x10FFFF}};

constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},  {0x2329, 0x232A}, {0x23E9, 0x23F3}, {0x25FD, 0x25FE},   {0x2614, 0x2615},
    {0x2648, 0x2653},   {0x26A1, 0x26A1},  {0x26AA, 0x26AB}, {0x26BD, 0x26BE}, {0x26C4, 0x26C5},   {0x26D4, 0x26D4},
    {0x2705, 0x2705},   {0x270A, 0x270B},  {0x2728, 0x2728}, {0x274C, 0x274C}, {0x2753, 0x2757},   {0x2795, 0x2797},
    {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},  {0x2E80, 0x303E}, {0x3041, 0xA4CF}, {0xA960, 0xA97F},   {0xAC00, 0xD7A3},
    {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},  {0xFF00, 0xFF60}, {0xFFE0, 0xFFE6}, {0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF},
    {0x1F000, 0x1FAFF}, {0x20000, 0x3FFFD}};

template <std::size_t n>
bool inside(const Range (&ranges)[n], char32_t point) {
  const auto* found = std::lower_bound(std::begin(ranges), std::end(ranges), point,
                                       [](const Range& range, char32_t value) { return range.last < value; });
  return found != std::end(ranges) && found->first <= point;
}

// One code point from `text` at `pos`, which moves past it; kBroken consumes one byte.
char32_t next_point(std::string_view text, std::size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 && lead < 0xF8   ? 3
                   : lead >= 0xE0 && lead < 0xF0 ? 2
                   : lead >= 0xC0 && lead < 0xE0 ? 1
                                                 : 0;
  if (more == 0 || pos + more > text.size()) return kBroken;
  char32_t point = lead & (0x3F >> more);
  for (int i = 0; i < more; ++i) {
    const auto byte = static_cast<unsigned char>(text[pos + i]);
    if ((byte & 0xC0) != 0x80) return kBroken;
    point = (point << 6) | (byte & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (point < kLeast[more] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return kBroken;
  pos += more;
  return point;
}

const char* ascii_for(char32_t point) {
  switch (point) {
    case 0xA0:
      return " ";
    case 0xD7:
      return "x";
    case 0x2010:
    case 0x2011:
    case 0x2012:
    case 0x2013:
    case 0x2014:
    case 0x2212:
      return "-";
    case 0x2018:
    case 0x2019:
      return "'";
    case 0x201C:
    case 0x201D:
      return "\"";
    case 0x2022:
    case 0xB7:
      return "*";
    case 0x2026:
      return "...";
    case 0x2192:
      return "->";
    case 0x2264:
      return "<=";
    case 0x2265:
      return ">=";
    default:
      return nullptr;
  }
}

void write_out(std::string& out, char32_t point) {
  char code[16];
  const auto value = static_cast<unsigned>(point);
  std::snprintf(code, sizeof code, value <= 0xFF ? "\\x%02x" : value <= 0xFFFF ? "\\u%04x" : "\\U%08x", value);
  out += code;
}

}  // namespace

std::string printable(std::string_view raw, bool unicode) {
  std::string out;
  out.reserve(raw.size());
  for (std::size_t pos = 0; pos < raw.size();) {
    const std::size_t start = pos;
    const char32_t point = next_point(raw, pos);
    if (point == '\t' || point == '\n' || (point == '\r' && pos < raw.size() && raw[pos] == '\n')) {
      if (!out.empty() && out.back() != ' ') out += ' ';
      while (pos < raw.size() && (raw[pos] == ' ' || raw[pos] == '\t' || raw[pos] == '\n')) ++pos;
    } else if (point == kBroken) {
      write_out(out, static_cast<unsigned char>(raw[start]));
    } else if (inside(kUnsafe, point)) {
      write_out(out, point);
    } else if (point < 0x80 || unicode) {
      out.append(raw.substr(start, pos - start));
    } else if (const char* ascii = ascii_for(point)) {
      out += ascii;
    } else {
      write_out(out, point);
    }
  }
  return out;
}

int columns(std::string_view printable_text) {
  int sum = 0;
  for (std::size_t pos = 0; pos < printable_text.size();) sum += inside(kWide, next_point(printable_text, pos)) ? 2 : 1;
  return sum;
}

std::size_t prefix_within(std::string_view printable_text, int limit) {
  std::size_t pos = 0;
  for (int used = 0; pos < printable_text.size();) {
    std::size_t next = pos;
    used += inside(kWide, next_point(printable_text, next)) ? 2 : 1;
    if (used > limit && pos > 0) break;
    pos = next;
  }
  return pos;
}

std::string cut(std::string_view printable_text, int limit) {
  if (columns(printable_text) <= limit) return std::string(printable_text);
  return std::string(printable_text.substr(0, prefix_within(printable_text, std::max(1, limit - 3)))) + "...";
}

std::string cut_left(std::string_view printable_text, int limit) {
  int excess = columns(printable_text) - limit;
  if (excess <= 0) return std::string(printable_text);
  std::size_t pos = prefix_within(printable_text, excess + 3);
  // A wide character may leave one column too many.
  while (pos < printable_text.size() && columns(printable_text.substr(pos)) > std::max(1, limit - 3)) {
    next_point(printable_text, pos);
  }
  const std::size_t slash = printable_text.find('/', pos);  // whole folder names, where at least one is left
  return "..." + std::string(printable_text.substr(slash == std::string_view::npos ? pos : slash));
}

}  // namespace finitude::show
