// The collective operations of a step, issued again between processes that play the tapes of all its ranks at once.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_memory_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {

// Another rank did not come within the limit, or its connection broke. what(): at which operation.
struct RankMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Each is issued where the tape has it, and is waited for before an entry that uses its memory: so a send does not keep
// this rank from the receive behind it. One thread; no lock may be held that the other ranks' processes need.
class IssuedExchanges {
 public:
  // All outlive this.
  IssuedExchanges(const capture::Tape& tape, const Together& together, TapeMemory& memory);
  IssuedExchanges(const IssuedExchanges&) = delete;
  IssuedExchanges& operator=(const IssuedExchanges&) = delete;
  ~IssuedExchanges();

  // Issues those that come before entry `index`, and waits for those whose memory that call uses. Throws RankMissing,
  // or c10::Error where the tape names memory that is not there.
  void before_entry(std::size_t index);
  // Does entry `index`, a fill, hold what one of them was given or gave? Then that is compared with what it gave now,
  // and memory is to stay as it is. Throws RankMissing.
  bool gave(std::size_t index);
  // Issues those behind the last entry, and waits for all. Throws as before_entry().
  void finish();
  std::vector<PlayedExchange> take();

 private:
  struct Issued;
  void issue(std::size_t number);
  std::string issued(std::size_t number);
  void wait(std::size_t number);
  void settle(const std::vector<capture::Value>& values);
  std::optional<bool> same_bits(std::size_t number, const capture::Entry& fill);
  std::string name_of(const capture::Exchange& exchange) const;

  const capture::Tape& tape_;
  const Together& together_;
  TapeMemory& memory_;
  std::size_t next_ = 0;  // of Tape::exchanges
  std::map<std::size_t, Issued> running_;
  std::map<capture::StorageId, std::size_t> touched_;  // memory of an exchange, until a fill or another call has it
  std::vector<PlayedExchange> played_;
};

}  // namespace finitude::replay
