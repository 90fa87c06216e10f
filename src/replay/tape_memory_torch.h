// The memory of a tape that is being played: storages by their numbers, and tensors in them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_device_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_retype_torch.h"

namespace finitude::replay {

class TapeMemory {
 public:
  // dtype: the floating dtype that everything is computed in; nothing: each as it was.
  // observer: is reported of content, and may be null. map: where memory lies; has to outlive this.
  TapeMemory(const capture::Tape& tape, std::optional<c10::ScalarType> dtype, const DeviceMap& map,
             PlayObserver* observer);

  // Throw c10::Error where the tape asks for what cannot be.
  c10::IValue argument(const capture::Value& value, const c10::Argument& argument,
                       const std::vector<at::Generator>& generators);
  at::Tensor tensor(const capture::Value& value);
  void fill(std::size_t index);  // what that entry fills
  // What a call gave back becomes the memory that it was on the tape. The reason where it is not of that
  // form.
  std::string bind(const capture::Value& value, const c10::IValue& result);
  // The storages whose last use is entry `index` go.
  void after_entry(std::size_t index);

  // Whether a tensor among them is in another dtype than it was recorded in.
  bool converts(const std::vector<capture::Value>& values) const;
  // Of these results the memory that is yet to be made, and takes that away again.
  std::vector<capture::StorageId> unmade(const std::vector<capture::Value>& results) const;
  void unmake(const std::vector<capture::StorageId>& fresh);
  // Until it is set back, arguments and results are in the dtypes that they were recorded in.
  void set_as_recorded(bool on);
  // Until it is set back, arguments are copies on the CPU, and what is bound comes from there. Then all goes to its
  // device.
  void set_on_host(bool on);
  // Memory of the size that the tape says, for results that are known without a call; zeros until it is filled.
  void make(const std::vector<capture::Value>& results);
  // A result computed in another way than by its operator: its numbers go into memory of the form on the tape. The
  // reason where they cannot.
  std::string give(const capture::Value& value, const c10::IValue& result);
  // A result that is there, as its operator would have given it.
  c10::IValue given(const capture::Value& value);

 private:
  c10::IValue argument_of(const capture::Value& value, const c10::TypePtr& type,
                          const std::vector<at::Generator>& generators);
  c10::ScalarType dtype_of(const capture::TensorRef& ref) const;
  std::string bind_fresh(const capture::TensorRef& ref, const at::Tensor& tensor);
  std::string bind_stand_in(const capture::TensorRef& ref, const at::Tensor& tensor);
  c10::Storage on_device(capture::StorageId id, const c10::Storage& host) const;
  c10::Storage blank(capture::StorageId id) const;  // of a result that no call made, in the size that it has here
  c10::Device device_of(capture::StorageId id) const { return map_.at(tape_.storages[id].device); }
  at::Tensor dense(const capture::TensorRef& ref);
  c10::Storage& storage(capture::StorageId id);
  std::string bind_dense(const capture::TensorRef& ref, const at::Tensor& tensor);

  const capture::Tape& tape_;
  PlayObserver* const observer_;
  std::optional<Retype> retype_;
  bool as_recorded_ = false, on_host_ = false;
  const DeviceMap& map_;
  // Results that have another form on this device than on the one of the recording: a statistic in another format, a
  // workspace of another size. Calls that read the whole of one get it as it is.
  struct StandIn {
    capture::TensorRef as;
    at::Tensor tensor;
  };
  std::map<capture::StorageId, StandIn> stand_ins_;
  std::map<capture::StorageId, c10::Storage> hosts_;  // while on_host_: copies of what calls are given
  std::vector<c10::Storage> storages_;
  std::vector<std::vector<capture::StorageId>> last_used_;  // by entry
};

}  // namespace finitude::replay
