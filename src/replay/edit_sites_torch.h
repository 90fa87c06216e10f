// Where on a tape an edit acts: the calls it changes, the calls of their backward nodes, and what these hand on.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"
#include "replay/edit.h"

namespace finitude::replay {

// The backward of one call: entries of one node, in order.
struct EditedNode {
  std::size_t site = 0;
  bool again = false;  // the derivative of another such node's calls (autograd.grad with create_graph)
  std::vector<std::size_t> entries;
  std::unordered_set<capture::StorageId> made;        // by its entries
  std::vector<capture::StorageId> handed_on;          // of those: read by others, in the order in which they were made
  capture::StorageId gradient = capture::kNoStorage;  // of the edited argument; kNoStorage: it has none
};

struct EditSite {
  std::size_t entry = 0;
  std::size_t arg = 0;        // of the operator; where the edit is of an argument
  capture::TensorRef tensor;  // that argument as the tape has it, where it is a tensor
  bool is_tensor = false;
  bool is_written = false;  // the operator writes it: the edit is made in its memory
  bool is_list = false;     // of tensors to which no gradient flows: each of them is edited
  std::string name{};       // of that argument; the edit may have another for it, as a part of the call calls it
};

struct EditSites {
  std::vector<EditSite> sites;
  std::vector<EditedNode> nodes;
  std::unordered_map<std::size_t, std::size_t> site_at;  // entry -> sites
  std::unordered_map<std::size_t, std::size_t> node_at;  // entry -> nodes
  std::optional<std::size_t> added_to;                   // the entry of Edit::added_to
  std::vector<bool> reached;                             // by entry: may compute something else than before
  // The same by outcome; not where memory was filled in from the tape since, nor where it is computed from what other
  // ranks answered to changed values: that is on the tape as it was.
  std::vector<bool> outcome_reached;
  std::string why_not;  // not empty: the edit cannot be carried out on this tape
};

// The trace is the one that was taken along with the tape.
EditSites find_sites(const capture::Tape& tape, const record::Trace& trace, const Edit& edit);

}  // namespace finitude::replay
