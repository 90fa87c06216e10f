#include "replay/lab.h"

namespace finitude::replay {

bool Trial::finite() const {
  if (!ran) return false;
  for (const sense::Health& h : outputs) {
    if (!h.ok()) return false;
  }
  return true;
}

}  // namespace finitude::replay
