// Lines of labelled pieces, wrapped to a width with a hanging indent. Everything printed passes through
// printable().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "show/show.h"

namespace finitude::show {

enum class Tone { kPlain, kStrong, kDim, kBad, kWarn, kGood, kCode };

struct Piece {
  std::string text;
  Tone tone = Tone::kPlain;
  int gap = 3;           // blanks before it, unless it starts a line
  bool right = false;    // a tag: at the right edge where it fits, else on a line of its own
  bool command = false;  // to be copied: on one line, however long
};

class Layout {
 public:
  explicit Layout(const TerminalOptions& options);

  // `label` in front, pieces after column `hang`; a piece that does not fit moves to the next line, one that
  // never fits is wrapped, but not within a command: between "`finitude" and the next backtick neither.
  void line(std::string_view label, Tone label_tone, const std::vector<Piece>& pieces, int hang);
  void blank() { out_ += '\n'; }
  // As it is, from the first column on: `text` is printable.
  void verbatim(std::string_view text) { (out_ += text) += '\n'; }
  // From here on options are shown as keywords of finitude.watch.
  void use_keywords() { keywords_ = true; }
  int width() const { return width_; }
  bool unicode() const { return unicode_; }
  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view printable_text, Tone tone);
  void next_line(int hang);
  void piece(const Piece& piece, int hang);

  std::string out_;
  int column_ = 0;
  bool fresh_ = true;  // nothing but the hang on this line
  int width_;
  bool unicode_, colour_, keywords_ = false;
};

}  // namespace finitude::show
