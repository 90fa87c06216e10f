// How far the results of a replay are from those that were recorded.
#pragma once

#include <string>

#include "capture/tape.h"
#include "replay/tape_player.h"

namespace finitude::cli {

// Of what differs and is reported on the tape: the loss, and of each other kind of result the one that is farthest, in
// units in the last place and relative to its largest value. "" where nothing can be reported.
std::string report_distances(const capture::Tape& tape, const replay::Played& played);

// Which operators were not called, or not on the device of the replay. "" where there is none.
std::string report_ways(const replay::Played& played);

}  // namespace finitude::cli
