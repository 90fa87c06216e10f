// NaN or Inf that came with the batch, or was made while the batch was prepared.
#include <algorithm>
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/put_in.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

std::string amount(const sense::Health& health) {
  if (health.nan == 0) return counted(health.inf(), "infinite value");
  return std::to_string(health.nan) + " NaN" + (health.inf() ? " and " + counted(health.inf(), "infinite value") : "");
}

std::string called(const record::Trace& trace, record::StorageId storage) {
  if (storage >= trace.storages.size() || trace.storages[storage].name.empty()) return "the batch";
  return trace.storages[storage].name;
}

// The birth's own op read a bad value that came from there, and from no operation of the step.
const record::TensorUse* read_from(record::Origin wanted, const Scene& s, record::StorageId& storage) {
  if (!s.op) return nullptr;
  const auto* bad = bad_input(*s.op);
  if (!bad) return nullptr;
  const BadOrigin origin = bad_origin(s.trace, s.birth.op, *bad);
  if (origin.op != record::kNone || origin.storage >= s.trace.storages.size()) return nullptr;
  storage = origin.storage;
  return s.trace.storages[storage].origin == wanted ? bad : nullptr;
}

std::string is_given_a_number(const record::Op& reader, const record::TensorUse& bad) {
  return reader.name + " is given a number that is " + (bad.health.nan ? "NaN" : "Inf") + " already" +
         (bad.arg.empty() ? "" : " (" + bad.arg + ")") +
         ": it was written or computed in Python or NumPy, where no operation is seen";
}

CameFrom a_number(const record::TensorUse& bad) { return bad.health.nan ? CameFrom::kNan : CameFrom::kInf; }

constexpr const char* kLookAtTheNumber =
    "look where that number comes from (a mean of nothing, 0/0, a metric that is not there yet), and skip it "
    "until it is finite";

// A number of the script's goes into the step here: `loss * weight`, with a weight that Python computed. An infinite
// one may be meant, and what becomes of it has rules of its own, which come first.
std::optional<Finding> of_a_number(const Scene& s) {
  record::StorageId storage = record::kNone;
  const record::TensorUse* bad = read_from(record::Origin::kConstant, s, storage);
  if (bad == nullptr || bad->health.ok()) return std::nullopt;
  const int score = bad->health.nan ? kScoreOneMeaning - 10 : kScoreSinkOnly - 100;
  const bool of_gradient = s.birth.sink < s.trace.sinks.size() && s.trace.sinks[s.birth.sink].kind == "gradient" &&
                           !s.op->outputs.empty() && s.op->phase != record::Phase::kBackward &&
                           s.op->outputs.front().storage == s.trace.sinks[s.birth.sink].value.storage;
  Finding result =
      finding(s, "bad-data", score, is_given_a_number(*s.op, *bad),
              of_gradient ? "look where the number that the gradient is multiplied by comes from (a scale, a "
                            "coefficient of clipping), and skip the step where it is not finite"
                          : kLookAtTheNumber);
  result.came_from = a_number(*bad);
  conclude(result, true);
  return result;
}

// Integers whose bits are read as floats, tensor.view(torch.float32): some are the pattern of a NaN, and nothing
// computed it.
std::optional<Finding> of_bits(const Scene& s) {
  if (!s.op || !s.op->is_view || s.op->inputs.empty() || s.op->outputs.empty() ||
      s.birth.first_reader >= s.trace.ops.size())
    return std::nullopt;
  const record::TensorUse& to = s.op->outputs.front();
  const record::TensorUse* bad = bad_input(s.trace.ops[s.birth.first_reader]);
  if (!bad || s.op->inputs.front().dtype != sense::DType::kOther || to.dtype == sense::DType::kOther ||
      bad->storage != to.storage)
    return std::nullopt;
  Finding result =
      finding(s, "bad-data", kScoreOrigin,
              s.op->name + " takes the bits of integers for " + dtype_name(to.dtype) + ": as such they are " +
                  amount(bad->health) + at_rows(s.birth) + ", which no operation computed",
              "where the numbers are meant, convert them: .to(" + std::string("torch.") + dtype_name(to.dtype) +
                  "); where the bits are meant, remove those that are no number before the view");
  mend_at(s.trace, *s.op, &result);
  conclude(result, true);
  if (!bad->arg.empty()) Edits(s, s.birth.first_reader).filled(*bad, 0).into(result);
  result.fix_is_no_edit = true;
  return result;
}

// The op that took in what the program had written as a number, the birth: NaN as padding or a mark for what is
// missing, which is no mask, as arithmetic cannot take it out again and an index or torch.where afterwards does so in
// forward only; or an infinity that nothing masks.
const record::Op* reader_of_mark(const Scene& s) {
  if (!s.op || s.birth.first_reader >= s.trace.ops.size()) return nullptr;
  const record::TensorUse* made = bad_output(*s.op);
  const record::TensorUse* given = bad_input(*s.op);
  if (made == nullptr || (given != nullptr && given->health.numel != 1) || inputs_finite(*s.op)) return nullptr;
  return &s.trace.ops[s.birth.first_reader];
}

// What the program wrote itself into a gradient, after backward or in a hook: a number, or what it computed in Python.
std::optional<Finding> of_a_gradient(const Scene& s) {
  if (!s.op || s.birth.sink >= s.trace.sinks.size()) return std::nullopt;
  const record::Sink& sink = s.trace.sinks[s.birth.sink];
  const record::TensorUse* made = bad_output(*s.op);
  if (sink.kind != "gradient" || made == nullptr || bad_input(*s.op) != nullptr) return std::nullopt;
  const bool from_host = plain_name(s.op->name) == "lift_fresh";
  const record::Op* writes = s.op;  // into the gradient, by one copy at most
  if (!s.birth.path.empty() && s.birth.path[0] < s.trace.ops.size()) writes = &s.trace.ops[s.birth.path[0]];
  const bool in_backward = s.op->phase == record::Phase::kBackward || writes->phase == record::Phase::kBackward;
  // No node of torch's takes numbers from Python; it may read what forward has kept for it.
  const bool is_kept = s.op->phase != record::Phase::kBackward && writes->node < s.trace.ops.size() &&
                       is_builtin_node(s.trace.ops[writes->node]);
  if (in_backward && from_host && !is_kept) {
    Finding result = finding(s, "wrong-backward", kScoreOrigin + 10,
                             "the program itself writes " + amount(made->health) + " into a gradient, by " +
                                 writes->name + ", while backward runs: in a hook, or in a backward of its own",
                             "write a finite gradient at this line, or none");
    conclude(result, true);
    return result;
  }
  if (in_backward || (!from_host && inputs_finite(*s.op))) return std::nullopt;
  writes = s.op;
  if (made->storage != sink.value.storage) {
    if (s.birth.path.size() != 1 || s.birth.path[0] >= s.trace.ops.size()) return std::nullopt;
    writes = &s.trace.ops[s.birth.path[0]];
    const bool into =
        std::ranges::any_of(writes->outputs, [&](const auto& out) { return out.storage == sink.value.storage; });
    if (!is_carrier(*writes) || !into || writes->phase == record::Phase::kBackward) return std::nullopt;
  }
  Finding result = finding(s, "wrong-backward", kScoreOrigin + 10,
                           "the program itself writes " + amount(made->health) + " into the gradient of " + sink.name +
                               ", by " + writes->name + ": backward had left it finite",
                           "write a finite gradient at this line, or none");
  conclude(result, true);
  return result;
}

// The first op after the birth that reads what it made.
const record::Op* first_reader(const Scene& s) {
  const record::TensorUse* made = s.op ? bad_output(*s.op) : nullptr;
  if (!made) return nullptr;
  for (record::OpId id = s.birth.op + 1; id < s.trace.ops.size(); ++id) {
    const record::Op& op = s.trace.ops[id];
    if (std::ranges::any_of(op.inputs, [&](const auto& in) { return in.storage == made->storage; })) return &op;
  }
  return nullptr;
}

// Does it lie in a parameter or a buffer, which is no data?
bool is_held(const record::Trace& trace, record::StorageId storage) {
  if (storage >= trace.storages.size()) return false;
  const record::Origin origin = trace.storages[storage].origin;
  return origin == record::Origin::kParameter || origin == record::Origin::kBuffer;
}

// What the program writes over a parameter or a buffer between two steps, or over the loss or a gradient itself.
std::optional<Finding> of_a_value_written_over(const Scene& s) {
  const record::TensorUse* made = s.op ? bad_output(*s.op) : nullptr;
  const record::TensorUse* given = s.op ? bad_input(*s.op) : nullptr;
  const bool in_place = s.op && s.op->name.ends_with('_');
  if (!in_place || made == nullptr || s.backward || (given != nullptr && given->health.numel != 1) ||
      inputs_finite(*s.op))
    return std::nullopt;
  const bool held = is_held(s.trace, made->storage) && made->health.nan != 0;
  const record::Sink* sink = s.birth.sink < s.trace.sinks.size() ? &s.trace.sinks[s.birth.sink] : nullptr;
  const bool at_sink = sink != nullptr && sink->value.storage == made->storage && s.birth.path.empty();
  const bool loss = at_sink && sink->kind == "loss";
  // A number that it is multiplied by is reported as that.
  const bool gradient = at_sink && sink->kind == "gradient" && one_of(plain_name(s.op->name), {"copy", "fill"});
  if (!held && !loss && !gradient) return std::nullopt;
  const std::string into = held   ? s.trace.storages[made->storage].name
                           : loss ? "the loss"
                                  : "the gradient of " + sink->name;
  Finding result =
      finding(s,
              held   ? "corrupted-state"
              : loss ? "bad-data"
                     : "wrong-backward",
              kScoreOrigin + 10 * gradient,
              "the program itself writes " + amount(made->health) + " into " + (into.empty() ? "a buffer" : into) +
                  ", by " + s.op->name + (gradient ? ": backward had left it finite" : ""),
              gradient ? "write a finite gradient at this line, or none" : "write finite values at this line");
  conclude(result, true);
  return result;
}

std::string written_into(const Scene& s, const record::TensorUse& bad) {
  const bool known = bad.storage < s.trace.storages.size();
  if (known && s.trace.storages[bad.storage].origin == record::Origin::kBuffer &&
      !s.trace.storages[bad.storage].name.empty())
    return "the buffer " + s.trace.storages[bad.storage].name;
  return s.birth.kind == "data" ? "the data" : "what was computed";
}

std::optional<Finding> of_a_mark(const Scene& s) {
  const record::Op* reader = reader_of_mark(s);
  const record::TensorUse* bad = reader ? bad_input(*reader) : nullptr;
  if (bad == nullptr) return std::nullopt;
  const bool nan = bad->health.nan != 0;
  Finding result = finding(
      s, "bad-data", kScoreOrigin,
      (nan ? std::to_string(bad->health.nan) + " NaN that " + s.op->name + " writes as a mark or padding go through "
           : amount(bad->health) + " that " + s.op->name + " writes into " + written_into(s, *bad) +
                 ", and that nothing masks, " + (bad->health.inf() == 1 ? "goes" : "go") + " through ") +
          reader->name + at_rows(s.birth) + hidden_by(s),
      nan ? "fill with a finite number, or take the marked elements out before any arithmetic; taken out after it, "
            "they still reach gradients"
          : "write a finite number at this line; where it marks missing data, replace these elements with torch.where "
            "before any arithmetic");
  Probe probe(s, s.birth.first_reader);
  const double from = nan ? NAN : bad->health.pos_inf != 0 ? INFINITY : -INFINITY;
  Variant filled;
  filled.replace_arg = bad->arg;
  filled.replace_from = from;
  filled.replace_to = 0;
  if (!bad->arg.empty()) probe.finite_if(figure(from) + " in " + bad->arg + " replaced by 0", filled);
  probe.in_float64(false);
  probe.conclude(result, true);
  if (!bad->arg.empty()) Edits(s, s.birth.first_reader).filled(*bad, 0).named_by_rule().into(result);
  return result;
}

// Infinities that the program wrote, and that its arithmetic takes in; where nothing says more of it.
std::optional<Finding> of_written_infinities(const Scene& s) {
  const record::TensorUse* bad = s.op ? bad_input(*s.op) : nullptr;
  const auto source = bad != nullptr && bad->health.nan == 0 ? put_in(s) : std::nullopt;
  if (!source || source->by >= s.trace.ops.size()) return std::nullopt;
  const record::Op& wrote = s.trace.ops[source->by];
  Finding result = finding(s, "bad-data", kScoreSinkOnly - 100,
                           amount(bad->health) + " that " + wrote.name + at_line(s.trace, wrote) +
                               " writes, and that nothing masks, go through " + s.op->name + at_rows(s.birth),
                           "write a finite number at this line; where it marks missing data, replace these elements "
                           "with torch.where before any arithmetic");
  mend_at(s.trace, wrote, &result);
  conclude(result, true);
  if (!bad->arg.empty()) Edits(s, s.birth.op).filled(*bad, 0).named_by_rule().into(result);
  return result;
}

class BadData : public Rule {
 public:
  const char* name() const override { return "bad-data"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    record::StorageId storage = s.birth.storage;
    const record::TensorUse* bad = read_from(record::Origin::kBatch, s, storage);
    const auto& meant = evidence.located.meant.storages;  // the program drops those again
    if (bad && std::ranges::find(meant, storage) != meant.end()) return std::nullopt;
    const bool data = s.birth.kind == "data";
    if (std::optional<Finding> bits = of_bits(s)) return bits;
    if (std::optional<Finding> gradient = of_a_gradient(s)) return gradient;
    if (std::optional<Finding> written = of_a_value_written_over(s)) return written;
    if (std::optional<Finding> mark = of_a_mark(s)) return mark;
    if (std::optional<Finding> number = of_a_number(s)) return number;
    if (!data && !bad) return of_written_infinities(s);
    std::string text,
        fix =
            "filter or fill such values when the batch is made, before this line; masking after arithmetic is too late";
    CameFrom came_from = CameFrom::kOther;
    int score = bad ? kScoreOneMeaning - 10 : kScoreOrigin;
    const bool made_here = data && s.op && !bad;
    if (made_here) {  // how it went wrong there may be known better: then that rule's class is more use
      const record::Op* reader = first_reader(s);
      const bool in_pipeline =
          reader == nullptr || reader->phase == record::Phase::kData;  // else the program's own step takes it in
      const record::TensorUse* read = reader != nullptr ? bad_input(*reader) : nullptr;
      const bool from_host = plain_name(s.op->name) == "lift_fresh";
      text = from_host ? "made where no operation is seen (Python, NumPy), and handed in by " + s.op->name
                       : "made while the batch was prepared, by " + s.op->name;
      if (from_host) came_from = CameFrom::kPython;
      text += at_rows(s.birth);
      fix = in_pipeline ? "guard this line of the data pipeline; where it works in place on stored data, work on a copy"
                        : "check what this line is given: fill or drop missing values (None, NaN) before "
                          "it becomes a tensor, or sum "
                          "and average without it (torch.nansum, torch.nanmean)";
      if (from_host && read != nullptr && read->health.numel == 1 && !in_pipeline) {  // x[mask] = value
        text = is_given_a_number(*reader, *read);
        came_from = a_number(*read);
        fix = kLookAtTheNumber;
      }
      score = kScoreRange + 50;
    } else {
      if (!bad && s.birth.first_reader < s.trace.ops.size()) bad = bad_input(s.trace.ops[s.birth.first_reader]);
      text =
          called(s.trace, storage) + " already holds " + (bad ? amount(bad->health) : "NaN or Inf") + at_rows(s.birth);
    }
    Finding result = finding(s, "bad-data", score, text, fix);
    Probe probe(s, s.birth.op);
    result.fix_is_no_edit = made_here;
    result.came_from = came_from;
    if (bad && !data) {
      probe.without_rows();
      probe.again();
    }
    probe.conclude(result, true);
    // Filled where the step first reads it.
    const record::OpId reader = bad && !data ? s.birth.op : s.birth.first_reader;
    if (reader < s.trace.ops.size())
      if (const auto* use = bad_input(s.trace.ops[reader]); use && !use->arg.empty())
        Edits(s, reader).filled(*use, 0).named_by_rule().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> bad_data() { return std::make_unique<BadData>(); }

}  // namespace finitude::explain
