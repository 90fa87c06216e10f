// `diff A B`: where two traced steps part. Capsules are computed again for that, which needs torch: not here.
#include <algorithm>

#include "cli/commands.h"
#include "show/compared_files.h"
#include "show/comparison.h"

namespace finitude::cli {
namespace {

constexpr int kColumns = 100;  // at least: two sides do not fit into fewer

}  // namespace

int diff_command(const DiffWords& words, const Console& console) {
  const show::ComparedFiles found = show::compare_files(words.a, words.b, nullptr);
  if (!found.why.empty()) {
    console.complain(found.why);
  } else if (words.json) {
    console.out << found.document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else {
    console.out << show::comparison(
        found.document, {console.screen.colour, std::max(console.screen.width, kColumns), console.screen.unicode});
  }
  return found.code;
}

}  // namespace finitude::cli
