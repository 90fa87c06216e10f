#include "replay/tape_together_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "replay/tape_calls.h"
#include "replay/tape_storage_torch.h"

namespace finitude::replay {
namespace {

using capture::Exchange;
using capture::StorageId;
using capture::TensorRef;
using capture::Value;

constexpr std::string_view kSend = "c10d::send", kReduce = "c10d::reduce_";
// What each gives is its first argument, but for a send, which gives nothing.
constexpr std::array<std::string_view, 18> kOperations = {
    "c10d::allreduce_",
    "c10d::allreduce_coalesced_",
    "c10d::broadcast_",
    "c10d::allgather_",
    "c10d::_allgather_base_",
    "c10d::allgather_coalesced_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::reduce_scatter_",
    "c10d::_reduce_scatter_base_",
    "c10d::reduce_scatter_tensor_coalesced_",
    "c10d::alltoall_",
    "c10d::alltoall_base_",
    kReduce,
    "c10d::gather_",
    "c10d::scatter_",
    kSend,
    "c10d::recv_",
    "c10d::recv_any_source_",
};

constexpr std::pair<std::string_view, c10d::ReduceOp::RedOpType> kReductions[] = {
    {"sum", c10d::ReduceOp::SUM}, {"avg", c10d::ReduceOp::AVG},   {"product", c10d::ReduceOp::PRODUCT},
    {"min", c10d::ReduceOp::MIN}, {"max", c10d::ReduceOp::MAX},   {"band", c10d::ReduceOp::BAND},
    {"bor", c10d::ReduceOp::BOR}, {"bxor", c10d::ReduceOp::BXOR},
};

std::string first_line(const std::string& text) { return text.substr(0, std::min<std::size_t>(text.find('\n'), 300)); }

std::string class_name(const c10::TypePtr& type) {
  const auto known = type->cast<c10::ClassType>();
  return known && known->name() ? known->name()->name() : "";
}

std::vector<at::Tensor> copies_of(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.clone();
  return tensors;
}

}  // namespace

struct IssuedExchanges::Issued {
  c10::intrusive_ptr<c10d::Work> work;
};

IssuedExchanges::IssuedExchanges(const capture::Tape& tape, const Together& together, TapeMemory& memory)
    : tape_(tape), together_(together), memory_(memory) {}
IssuedExchanges::~IssuedExchanges() = default;

std::string IssuedExchanges::name_of(const Exchange& exchange) const {
  if (exchange.place >= tape_.places.size()) return exchange.op;
  const capture::Place& place = tape_.places[exchange.place];
  return exchange.op + (exchange.of_backward ? " in backward of " : " at ") +
         place.file.substr(place.file.rfind('/') + 1) + ":" + std::to_string(place.line);
}

void IssuedExchanges::before_entry(std::size_t index) {
  while (next_ < tape_.exchanges.size() && tape_.exchanges[next_].before <= index) issue(next_++);
  if (touched_.empty() || index >= tape_.entries.size() || tape_.entries[index].kind != capture::Entry::kCall) return;
  settle(tape_.entries[index].args);
  settle(tape_.entries[index].results);
}

void IssuedExchanges::finish() {
  before_entry(tape_.entries.size());
  while (!running_.empty()) wait(running_.begin()->first);
}

std::vector<PlayedExchange> IssuedExchanges::take() { return std::move(played_); }

// A call has the memory: what was exchanged has to be there.
void IssuedExchanges::settle(const std::vector<Value>& values) {
  capture::for_each_tensor(values, [&](const TensorRef& t) {
    const auto found = touched_.find(t.storage);
    if (found == touched_.end()) return;
    if (tape_.exchanges[found->second].op != kSend) wait(found->second);
    touched_.erase(found);
  });
}

void IssuedExchanges::issue(std::size_t number) {
  const Exchange& exchange = tape_.exchanges[number];
  settle(exchange.args);
  PlayedExchange& played = played_.emplace_back();
  played.name = name_of(exchange);
  played.why = issued(number);
  if (!played.why.empty()) {
    played.how = PlayedExchange::kRecorded;
    return;
  }
  capture::for_each_tensor(exchange.args, [&](const TensorRef& t) {
    if (t.storage != capture::kNoStorage) touched_[t.storage] = number;
  });
}

// Empty, or why it cannot be issued here: so on all ranks, as its operator, its group and its backend are the same.
std::string IssuedExchanges::issued(std::size_t number) {
  const Exchange& exchange = tape_.exchanges[number];
  if (std::find(kOperations.begin(), kOperations.end(), exchange.op) == kOperations.end())
    return "it is not known here";
  const auto op = c10::Dispatcher::singleton().findSchema({exchange.op, ""});
  if (!op) return "this PyTorch does not have it";
  if (exchange.args.empty()) return "an argument of it could not be recorded";
  const auto& arguments = op->schema().arguments();
  if (exchange.args.size() != arguments.size()) return "it takes other arguments in this PyTorch";
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Value& value = exchange.args[i];
    const std::string kind = class_name(arguments[i].type());
    if (kind == "ProcessGroup") {
      const auto group = together_.groups.find(value.text);
      if (group == together_.groups.end()) return "its process group is not in the manifest";
      stack.emplace_back(c10d::resolve_process_group(group->second));
    } else if (kind == "ReduceOp") {
      const auto* const known = std::find_if(std::begin(kReductions), std::end(kReductions),
                                             [&](const auto& one) { return one.first == value.text; });
      if (known == std::end(kReductions)) return "its reduction is not known here";
      stack.emplace_back(c10::make_intrusive<c10d::ReduceOp>(known->second));
    } else if (arguments[i].name() == "timeout") {
      stack.emplace_back(std::int64_t{together_.limit_s} * 1000);
    } else {
      stack.push_back(memory_.argument(value, arguments[i], {}));
    }
  }
  Issued issued;
  // It may be under way while this rank continues, as far as the receive of another rank: later writes must not reach
  // it.
  if (exchange.op == kSend) stack[0] = copies_of(stack[0].toTensorVector());
  try {
    op->callBoxed(&stack);
  } catch (const std::exception& e) {
    return first_line(e.what());  // the backend does not have it for this dtype or reduction
  }
  if (!stack.empty() && stack.back().isObject()) issued.work = stack.back().toCustomClass<c10d::Work>();
  running_.emplace(number, std::move(issued));
  return "";
}

void IssuedExchanges::wait(std::size_t number) {
  const auto found = running_.find(number);
  if (found == running_.end()) return;
  const Issued issued = std::move(found->second);
  running_.erase(found);
  try {
    if (issued.work && !issued.work->wait(std::chrono::seconds(together_.limit_s)))
      throw std::runtime_error("it did not complete");
  } catch (const std::exception& e) {
    throw RankMissing("the other ranks were waited for in " + played_.at(number).name + ", at most " +
                      std::to_string(together_.limit_s) + " s: " + first_line(e.what()));
  }
}

bool IssuedExchanges::gave(std::size_t index) {
  const capture::Entry& fill = tape_.entries[index];
  const auto found = touched_.find(fill.number);
  if (found == touched_.end()) return false;
  const std::size_t number = found->second;
  touched_.erase(found);
  if (tape_.exchanges[number].op == kSend) return fill.offset == 0;
  wait(number);
  if (fill.offset != 0) return false;  // what a call drew
  const std::optional<bool> same = same_bits(number, fill);
  if (!same) return true;
  PlayedExchange& played = played_.at(number);
  if (played.how != PlayedExchange::kOtherBits) played.how = *same ? PlayedExchange::kSame : PlayedExchange::kOtherBits;
  return true;
}

// Of what it gave into the memory that `fill` holds as it was recorded. Nothing: it gave nothing there.
std::optional<bool> IssuedExchanges::same_bits(std::size_t number, const capture::Entry& fill) {
  const Exchange& exchange = tape_.exchanges[number];
  if (exchange.op == kReduce) return std::nullopt;  // only its root is given the result
  std::optional<bool> same;
  capture::for_each_tensor(exchange.args.at(0), [&](const TensorRef& t) {
    if (t.storage != fill.number) return;
    Value value;
    value.kind = Value::kTensor;
    value.tensors.push_back(t);
    const at::Tensor got = memory_.tensor(value);
    check_inside(t, got.element_size(), fill.bytes.size());
    const at::Tensor recorded =
        at::empty({0}, got.options())
            .set_(new_storage(fill.bytes.size(), 0, fill.bytes.data()), t.offset, t.sizes, t.strides);
    const at::Tensor x = got.contiguous(), y = recorded.contiguous();
    same = same.value_or(true) && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
  });
  return same;
}

}  // namespace finitude::replay
