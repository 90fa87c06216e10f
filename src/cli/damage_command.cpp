// `damage CAPSULE`: what is wrong with the files of a capsule, a line for each. The Python package asks before it
// packs.
#include "capture/capsule.h"
#include "cli/commands.h"
#include "show/printable.h"

namespace finitude::cli {

int damage_command(const std::string& folder, const Console& console) {
  const std::vector<std::string> damage = capture::capsule_damage(folder);
  for (const std::string& why : damage) console.out << show::printable(why, console.screen.unicode) << '\n';
  return damage.empty() ? kDone : kUnreadable;
}

}  // namespace finitude::cli
