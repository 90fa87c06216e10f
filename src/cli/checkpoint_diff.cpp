// `diff A B` of two checkpoints: names, dtypes, shapes and values.
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/compare.h"
#include "checkpoint/views.h"
#include "cli/checkpoint_words.h"
#include "cli/commands.h"

namespace finitude::cli {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Compared;
using checkpoint::Difference;
using checkpoint::Distance;
using checkpoint::Tensor;
using nlohmann::json;
using Kind = Difference::Kind;

std::vector<std::int64_t> first_of(const Difference& difference) {
  std::vector<std::int64_t> indices = checkpoint::indices_of(*difference.distance.first, difference.a->shape);
  for (std::size_t i = 0; i < difference.a->begins.size(); ++i) indices[i] += difference.a->begins[i];
  return indices;
}

std::string distance_text(const Difference& difference) {
  const Distance& distance = difference.distance;
  if (!distance.first) return "the values are the same";
  const std::uint64_t all = checkpoint::View(difference.a->shape, difference.a->strides).elements();
  std::string text = std::to_string(distance.elements) + " of " + std::to_string(all) + " elements differ";
  if (distance.absolute > 0) {
    text += ", at most by " + shown_number(distance.absolute) + ", relative " + shown_number(distance.relative);
    if (distance.ulps) text += ", " + std::to_string(*distance.ulps) + " ulp";
  }
  if (distance.non_finite != 0) text += ", " + std::to_string(distance.non_finite) + " by NaN or Inf";
  return text + "; first at " + shown_list(first_of(difference)) + ": " + shown_number(distance.a) + " and " +
         shown_number(distance.b);
}

class CheckpointDiff {
 public:
  CheckpointDiff(const Checkpoint& a, const Checkpoint& b) : a_(a), b_(b) {}

  std::string line(const Difference& difference) const {
    switch (difference.kind) {
      case Kind::kOnlyA:
        return "only in A: " + difference.name + " (" + described(a_, *difference.a) + ")";
      case Kind::kOnlyB:
        return "only in B: " + difference.name + " (" + described(b_, *difference.b) + ")";
      case Kind::kShape:
        return difference.name + ": " + described(a_, *difference.a) + " and " + described(b_, *difference.b);
      case Kind::kPieces:
        return difference.name + ": saved in other pieces, so its values are not compared";
      case Kind::kDType:
        return difference.name + ": " + type_of(a_, *difference.a) + " and " + type_of(b_, *difference.b) + "; " +
               distance_text(difference);
      case Kind::kValues:
        break;
    }
    return difference.name + " (" + described(a_, *difference.a) + "): " + distance_text(difference);
  }

  json object(const Difference& difference) const {
    static constexpr const char* kKinds[] = {"only-a", "only-b", "shape", "dtype", "values", "pieces"};
    json object = {{"tensor", difference.name}, {"kind", kKinds[static_cast<std::size_t>(difference.kind)]}};
    if (difference.a != nullptr) object["a"] = about(a_, *difference.a);
    if (difference.b != nullptr) object["b"] = about(b_, *difference.b);
    const Distance& distance = difference.distance;
    if (!distance.first) return object;
    object["distance"] = {{"elements", distance.elements},
                          {"non_finite", distance.non_finite},
                          {"absolute", distance.absolute},
                          {"relative", distance.relative},
                          {"ulps", distance.ulps ? json(*distance.ulps) : json()},
                          {"first", first_of(difference)}};
    return object;
  }

 private:
  static const std::string& type_of(const Checkpoint& of, const Tensor& tensor) {
    return of.storages[tensor.storage].type.name;
  }
  static json about(const Checkpoint& of, const Tensor& tensor) {
    return {{"dtype", type_of(of, tensor)}, {"shape", whole_shape(tensor)}};
  }

  const Checkpoint &a_, &b_;
};

}  // namespace

bool is_checkpoint(const std::string& path) { return checkpoint::kind_of(path) != checkpoint::FileKind::kNone; }

int checkpoint_diff(const DiffWords& words, const Console& console) {
  const auto a = checkpoint::read_checkpoint(words.a), b = checkpoint::read_checkpoint(words.b);
  for (const auto& [path, read] : {std::pair(&words.a, &a), std::pair(&words.b, &b)}) {
    if (read->ok()) continue;
    console.complain(*path + " " + read->why());
    return read->code() == StatusCode::kUnsupported ? kCannotHere : kUnreadable;
  }
  const Compared compared = checkpoint::compare(*a, *b);
  if (!compared.status.ok()) {
    console.complain(compared.status.why());
    return compared.status.code() == StatusCode::kTooLarge ? kCannotHere : kUnreadable;
  }
  const CheckpointDiff diff(*a, *b);
  if (words.json) {
    json document = {{"schema", 1},  {"kind", "checkpoints"},       {"a", words.a},
                     {"b", words.b}, {"tensors", compared.tensors}, {"differences", json::array()}};
    for (const Difference& difference : compared.differences)
      document["differences"].push_back(diff.object(difference));
    console.out << document.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
  } else if (!console.quiet) {
    for (const Difference& difference : compared.differences)
      console.out << shown(diff.line(difference), console) << '\n';
    console.out << compared.tensors << (compared.tensors == 1 ? " tensor is" : " tensors are") << " in both, "
                << compared.differences.size() << (compared.differences.size() == 1 ? " difference" : " differences")
                << '\n';
  }
  return compared.differences.empty() ? kDone : kFindingIsBad;
}

}  // namespace finitude::cli
