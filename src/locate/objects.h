// Values that came within an object of another process (all_gather_object, broadcast_object_list, gather_object): torch
// sends an object as bytes, so no operator is seen to write what is unpacked from it.
#pragma once

#include "locate/birth.h"
#include "record/trace.h"

namespace finitude::locate {

// Births that came with such an object move to what this process made and gave, where that was bad, else to the
// exchange.
void follow_objects(const record::Trace& trace, Located* located);

}  // namespace finitude::locate
