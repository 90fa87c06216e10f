// What the recorder of the tape must know of an operator, looked up once per tape and operator.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <string>

namespace finitude::observe {

struct TapeOp {
  std::string text, name, overload;  // text: as the event calls it
  bool transparent = false;          // not on the tape: what is called inside of it is
  bool may_view = false;             // reads nothing where its results lie in its arguments
  bool allocates = false;            // its result holds whatever was there
  bool from_host = false;            // hands over memory that host code filled (torch.tensor)
  bool exchanges = false;            // with other processes; what it writes is known when it is read
  bool is_backend_call = false;      // of those: carried out by the backend (c10d::)
  bool wraps_exchange = false;       // of those: calls the backend's, and operators that lead to it and from it
  bool only_waits = false;           // of those: for one that was called before
  bool random = false;               // draws from the default generator where it is given none
  int picked_by = -1;  // the argument with numbers of the rows that it reads of its first one; -1: it reads all of that
  int dropout = -1;    // the argument with the probability of a dropout inside; -1: there is none
  std::uint64_t writes = 0;      // bit i: argument i is written
  std::uint64_t overwrites = 0;  // bit i: argument i is written without being read
  std::size_t num_args = 0, num_returns = 0;
};

TapeOp tape_op(const at::RecordFunction& fn);

}  // namespace finitude::observe
