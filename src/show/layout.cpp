#include "show/layout.h"

#include <algorithm>

#include "show/keywords.h"
#include "show/printable.h"

namespace finitude::show {
namespace {

constexpr int kNoWrap = 1 << 28, kNarrowest = 24;

const char* code_of(Tone tone) {
  switch (tone) {
    case Tone::kStrong:
      return "\x1b[1m";
    case Tone::kDim:
      return "\x1b[2m";
    case Tone::kBad:
      return "\x1b[1;31m";
    case Tone::kWarn:
      return "\x1b[33m";
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kCode:
      return "\x1b[36m";
    case Tone::kPlain:
      break;
  }
  return "";
}

// Behind the command that `at` lies in; npos: in none.
std::size_t end_of_command(std::string_view text, std::size_t at) {
  const std::size_t begin = text.rfind("`finitude", at);
  const std::size_t end = begin == std::string_view::npos ? begin : text.find('`', begin + 1);
  return end == std::string_view::npos || end < at ? std::string_view::npos : end + 1;
}

// The last blank up to there at which a line may end; npos: none.
std::size_t last_break(std::string_view text, std::size_t at) {
  std::size_t blank = text.substr(0, at + 1).rfind(' ');
  while (blank != std::string_view::npos && end_of_command(text, blank) != std::string_view::npos) {
    const std::size_t begin = text.rfind("`finitude", blank);
    blank = text.substr(0, begin).rfind(' ');
  }
  return blank;
}

}  // namespace

Layout::Layout(const TerminalOptions& options)
    : width_(options.width <= 0 ? kNoWrap : std::max(options.width, kNarrowest)),
      unicode_(options.unicode),
      colour_(options.colour) {}

void Layout::put(std::string_view printable_text, Tone tone) {
  if (printable_text.empty()) return;
  const bool coloured = colour_ && tone != Tone::kPlain;
  if (coloured) out_ += code_of(tone);
  out_ += printable_text;
  if (coloured) out_ += "\x1b[0m";
  column_ += columns(printable_text);
}

void Layout::next_line(int hang) {
  out_ += '\n';
  out_.append(static_cast<std::size_t>(hang), ' ');
  column_ = hang;
  fresh_ = true;
}

void Layout::piece(const Piece& piece, int hang) {
  const std::string shown = printable(keywords_ ? as_keywords(piece.text) : piece.text, unicode_);
  std::string_view rest = shown;
  const int whole = columns(rest);
  if (whole == 0) return;
  int gap = fresh_ ? 0 : piece.gap;
  if (!fresh_ && column_ + gap + whole > width_ && (piece.right || piece.command || hang + whole <= width_))
    next_line(hang), gap = 0;
  if (piece.right && !fresh_ && width_ != kNoWrap) gap = width_ - column_ - whole;
  // A piece that fits nowhere whole is set word by word, and a word that fits no line is broken.
  while (!rest.empty()) {
    const int room = width_ - column_ - gap;
    std::string_view part = piece.command ? rest : rest.substr(0, room > 0 ? prefix_within(rest, room) : 0);
    if (part.size() < rest.size()) {
      const std::size_t blank = last_break(rest, part.size()), end = end_of_command(rest, part.size());
      if (blank != std::string_view::npos && blank > 0)
        part = rest.substr(0, blank);
      else if (!fresh_)
        part = {};
      else if (end != std::string_view::npos)
        part = rest.substr(0, std::min(rest.find(' ', end), rest.size()));
      else if (const std::size_t slash = part.rfind('/');
               slash != std::string_view::npos && slash + 1 > part.size() / 2) {
        part = part.substr(0, slash + 1);
      }
    }
    if (part.size() < rest.size()) part = part.substr(0, part.find_last_not_of(' ') + 1);
    if (!part.empty()) {
      out_.append(static_cast<std::size_t>(gap), ' ');
      column_ += gap;
      put(part, piece.tone);
      fresh_ = false;
      rest.remove_prefix(part.size());
    }
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    if (rest.empty()) break;
    next_line(hang);
    gap = 0;
  }
}

void Layout::line(std::string_view label, Tone label_tone, const std::vector<Piece>& pieces, int hang) {
  column_ = 0;
  fresh_ = true;
  put(printable(label, unicode_), label_tone);
  if (column_ < hang) {
    out_.append(static_cast<std::size_t>(hang - column_), ' ');
    column_ = hang;
  } else if (column_ > 0) {
    fresh_ = false;
  }
  for (const Piece& each : pieces) piece(each, hang);
  while (!out_.empty() && out_.back() == ' ') out_.pop_back();
  out_ += '\n';
}

}  // namespace finitude::show
