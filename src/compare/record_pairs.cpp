#include "compare/record_pairs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

namespace finitude::compare {
namespace {

constexpr std::uint64_t kMostValueBytes = std::uint64_t{1} << 30;
constexpr double kMostRelative = 0.25;  // of the largest magnitude: beyond, no chain of roundings explains it
constexpr double kMostOfInput = 0.05;   // likewise of what a record reads, to which many records may have added
constexpr double kPassedOn = 8;         // by which code between records may make rounding larger
constexpr double kOfRepeats = 4;        // what a further repeat may differ by, against those that were measured

// "LayerNorm" -> "layer_norm", as operators are called.
std::string operator_name(const std::string& op) {
  std::string name;
  for (std::size_t i = 0; i < op.size(); ++i) {
    const auto c = static_cast<unsigned char>(op[i]);
    const bool begins = std::isupper(c) != 0 && i != 0 && std::islower(static_cast<unsigned char>(op[i - 1])) != 0;
    if (begins) name += '_';
    name += static_cast<char>(std::tolower(c));
  }
  return name;
}

Call call_of(const Record& record) {
  Call call;
  call.op = operator_name(record.op);
  const auto add = [](const std::vector<RecordValue>& values, std::vector<Tensor>* to) {
    for (const RecordValue& value : values) {
      Tensor tensor;
      tensor.element = value.element;
      tensor.shape = value.shape;
      tensor.health = value.health;
      to->push_back(std::move(tensor));
    }
  };
  add(record.inputs, &call.inputs);
  add(record.parameters, &call.inputs);
  add(record.outputs, &call.outputs);
  return call;
}

// Cosine and distance by the 2-norm, where both are finite and not zero.
void measure_norms(const std::string& a, Number of_a, const std::string& b, Number of_b, std::uint64_t reals,
                   Measured* m) {
  double product = 0, squares_a = 0, squares_b = 0, squares = 0;
  for (std::uint64_t i = 0; i < reals; ++i) {
    const double x = decode(a.data(), of_a, i), y = decode(b.data(), of_b, i);
    product += x * y;
    squares_a += x * x;
    squares_b += y * y;
    squares += (x - y) * (x - y);
  }
  const double length = std::sqrt(squares_a) * std::sqrt(squares_b);
  if (!(length > 0) || !std::isfinite(length) || !std::isfinite(product)) return;
  m->cosine = product / length;
  m->norm_distance = std::sqrt(squares / std::max(squares_a, squares_b));
}

Distance of_same_bits(const RecordValue& value) {
  Distance d;
  d.known = d.exact = d.same_bits = true;
  d.number = value.element.number;
  d.elements = reals_of(value);
  d.differing = d.nan_in_both = value.health.nan;
  d.scale = value.health.absmax;
  return d;
}

Measured measure(const RecordValue& va, const DumpedValues& in_a, const RecordValue& vb, const DumpedValues& in_b) {
  Measured m;
  m.is_other_dtype = va.element.dtype != vb.element.dtype;
  m.is_other_shape = va.shape != vb.shape;
  if (m.is_other_shape) {
    m.level = Level::kDiffers;
    return m;
  }
  const bool has_checksums = !va.checksum.empty() && va.checksum.size() == vb.checksum.size();
  if (has_checksums && !m.is_other_dtype && va.checksum == vb.checksum) {
    m.distance = of_same_bits(va);
    m.level = Level::kSame;
    return m;
  }
  std::string a, b;
  if (in_a.read(va, &a) && in_b.read(vb, &b)) {
    m.distance = distance(a.data(), va.element.number, b.data(), vb.element.number, reals_of(va));
    if (is_float(va.element.number) && is_float(vb.element.number))
      measure_norms(a, va.element.number, b, vb.element.number, reals_of(va), &m);
  } else {
    m.distance = distance(va.health, va.element.number, vb.health, vb.element.number);
    if (has_checksums && !m.is_other_dtype) {  // the bits differ, whatever the statistics say
      m.distance.known = true;
      m.distance.differing = std::max<std::uint64_t>(m.distance.differing, 1 + m.distance.nan_in_both);
    }
  }
  return m;
}

void set_level(Measured* m, double bound) {
  if (m->is_other_shape || m->level == Level::kSame) return;
  m->level = level(m->distance, bound);
}

// Values with the same names, in any order; what is left, by place.
std::vector<std::pair<std::size_t, std::size_t>> pairs_of(const std::vector<RecordValue>& a,
                                                          const std::vector<RecordValue>& b) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  bool same_names = a.size() == b.size();
  for (std::size_t i = 0; same_names && i < a.size(); ++i) same_names = a[i].arg == b[i].arg;
  if (same_names || a.empty() || b.empty()) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) pairs.emplace_back(i, i);
    return pairs;
  }
  std::vector<bool> taken(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      if (taken[j] || a[i].arg != b[j].arg) continue;
      taken[j] = true;
      pairs.emplace_back(i, j);
      break;
    }
  }
  if (pairs.empty()) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) pairs.emplace_back(i, i);
  }
  return pairs;
}

std::string noise_key(const Record& record, const RecordValue& value) {
  return record.phase + "\n" + plain_name(record) + "\n" + std::to_string(record.call) + "\n" + value.arg;
}

double norm_of(const std::vector<RecordValue>& values) {
  double squares = 0;
  for (const RecordValue& value : values) squares += value.health.sum_sq;
  return std::sqrt(squares);
}

double absmax_of(const std::vector<RecordValue>& values) {
  double largest = 0;
  for (const RecordValue& value : values) largest = std::max(largest, value.health.absmax);
  return largest;
}

// What other records say of one.
class Surroundings {
 public:
  explicit Surroundings(const std::vector<Record>& records) {
    for (const Record& record : records) {
      const std::string& name = record.module;
      for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
        holds_.insert(record.phase + "\n" + name.substr(0, dot));
      double& size = (record.phase == "backward" ? gradients_ : inputs_)[plain_name(record)];
      size = std::max(size, record.phase == "backward" ? norm_of(record.outputs) : absmax_of(record.inputs));
    }
  }

  bool holds_others(const Record& record) const { return holds_.contains(record.phase + "\n" + record.module); }

  // Of a gradient of a parameter the size of the sum that it is: its terms, gradients of what the module returned times
  // what it read, may cancel. 0: not known.
  double scale_of(const Record& record) const {
    if (!record.is_parameter()) return 0;
    std::string module = record.name();
    if (module.ends_with(".grad")) module.resize(module.size() - 5);
    module = module.substr(0, std::min(module.rfind('.'), module.size()));
    const auto gradient = gradients_.find(module), input = inputs_.find(module);
    if (gradient == gradients_.end()) return 0;
    return gradient->second * std::max(1.0, input == inputs_.end() ? 0.0 : input->second);
  }

 private:
  std::set<std::string> holds_;                       // phase and path of modules with modules in them
  std::map<std::string, double> gradients_, inputs_;  // by plain name: norm, largest magnitude
};

Level worst_of(const std::vector<Measured>& all) {
  Level worst = Level::kUnknown;
  for (const Measured& m : all) worst = std::max(worst, m.level);
  return worst;
}

}  // namespace

std::uint64_t reals_of(const RecordValue& value) {
  std::uint64_t reals = static_cast<std::uint64_t>(value.element.reals);
  for (const std::int64_t size : value.shape) reals *= static_cast<std::uint64_t>(size);
  return reals;
}

finitude::Result<DumpedValues> DumpedValues::open(const std::string& path) {
  DumpedValues values;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return values;
  auto read = checkpoint::read_checkpoint(path);
  if (!read.ok()) return Status(read.code(), read.why());
  const auto file = std::make_shared<checkpoint::Checkpoint>(*read);
  for (const checkpoint::Tensor& tensor : file->tensors) values.tensors_.emplace(tensor.name, &tensor);
  values.file_ = file;
  return values;
}

bool DumpedValues::read(const RecordValue& value, std::string* bytes) const {
  if (const auto made = made_.find(value.key); made != made_.end()) {
    *bytes = made->second;
    return bytes->size() == reals_of(value) * info(value.element.number).size_bytes;
  }
  const auto found = tensors_.find(value.key);
  if (found == tensors_.end() || value.element.number == Number::kOther) return false;
  const checkpoint::Tensor& tensor = *found->second;
  const checkpoint::Storage& storage = file_->storages[tensor.storage];
  if (tensor.shape != value.shape || storage.type.name != value.element.dtype) return false;
  const std::uint64_t size = reals_of(value) * info(value.element.number).size_bytes;
  if (size > kMostValueBytes || tensor.offset != 0) return false;
  bytes->resize(static_cast<std::size_t>(size));
  return storage.data.read(0, bytes->data(), bytes->size()).ok();
}

const Measured* RecordPair::worst_output() const {
  const Measured* worst = nullptr;
  for (const Measured& m : outputs) {
    if (worst == nullptr || m.level > worst->level ||
        (m.level == worst->level && m.distance.relative() > worst->distance.relative()))
      worst = &m;
  }
  return worst;
}

void learn(const Dump& run, const Dump& repeat, LearnedNoise* noise) {
  for (const RecordRow& row : match_records(run.records, repeat.records, {})) {
    if (row.a == kGap || row.b == kGap) continue;
    const Record &ra = run.records[row.a], &rb = repeat.records[row.b];
    for (const auto& [i, j] : pairs_of(ra.outputs, rb.outputs)) {
      const Measured m = measure(ra.outputs[i], run.values, rb.outputs[j], repeat.values);
      double& largest = (*noise)[noise_key(ra, ra.outputs[i])];
      largest = std::max(largest, m.distance.max_abs);
    }
  }
}

std::vector<RecordPair> measure_records(const Dump& a, const Dump& b, const std::vector<RecordRow>& rows,
                                        const LearnedNoise& noise) {
  std::vector<RecordPair> pairs(rows.size());
  const Surroundings around(a.records);
  double seen = 0;  // relative: what rounding has come to in the rows before
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].a == kGap || rows[r].b == kGap) continue;
    const Record &ra = a.records[rows[r].a], &rb = b.records[rows[r].b];
    RecordPair& pair = pairs[r];
    const auto compare = [&](const std::vector<RecordValue>& va, const std::vector<RecordValue>& vb,
                             std::vector<Measured>* to) {
      for (const auto& [i, j] : pairs_of(va, vb)) {
        to->push_back(measure(va[i], a.values, vb[j], b.values));
        to->back().a = i;
        to->back().b = j;
      }
    };
    compare(ra.inputs, rb.inputs, &pair.inputs);
    compare(ra.parameters, rb.parameters, &pair.parameters);
    compare(ra.outputs, rb.outputs, &pair.outputs);
    // A gradient is what the whole of forward and backward came to; a module that of the modules in it.
    const bool is_of_all = pair.inputs.empty() || around.holds_others(ra);
    double in = is_of_all ? seen : 0;
    for (auto* part : {&pair.inputs, &pair.parameters}) {
      for (Measured& m : *part) {
        const double own = kRoundings * epsilon(m.distance.number) * std::sqrt(kMostTerms);
        set_level(&m, std::min(std::max(own, kPassedOn * seen), kMostOfInput) * m.distance.scale);
        if (m.level == Level::kNoise) in = std::max(in, m.distance.relative());  // what is more has a cause
      }
    }
    Noise rounding = noise_of(call_of(ra), call_of(rb));
    if (is_of_all) rounding.terms = kMostTerms;
    rounding.scale = std::max(rounding.scale, around.scale_of(ra));
    double most = 0;
    for (Measured& m : pair.outputs) {
      const auto learned = noise.find(noise_key(ra, ra.outputs[m.a]));
      const double scale = std::max(m.distance.scale, rounding.scale);
      const double relative = std::min(rounding.relative() + kAmplified * in, kMostRelative);
      double bound = relative * scale;
      if (learned != noise.end()) bound = std::max(bound, kOfRepeats * learned->second);
      set_level(&m, bound);
      // Where rounding came in, a value near 0 may have another sign, and a gradient of ReLU another value: few
      // elements are far apart then.
      const bool is_near = m.norm_distance && *m.norm_distance <= relative && !m.distance.broken();
      if (m.level == Level::kDiffers && in > 0 && is_near) m.level = Level::kNoise;
      pair.bound = std::max(pair.bound, bound);
      pair.has_other_dtype |= m.is_other_dtype;
      if (m.level == Level::kNoise && scale > 0)
        most = std::max(most, std::min(m.distance.max_abs / scale, m.norm_distance.value_or(1)));
    }
    seen = std::max(seen, most);
    pair.in = worst_of(pair.inputs);
    pair.own = worst_of(pair.parameters);
    pair.out = worst_of(pair.outputs);
    pair.has_other_settings =
        !ra.settings.empty() && !rb.settings.empty() && (ra.settings != rb.settings || ra.op != rb.op);
  }
  return pairs;
}

}  // namespace finitude::compare
