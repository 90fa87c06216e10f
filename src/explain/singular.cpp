// See singular.h.
#include "explain/singular.h"

namespace finitude::explain {

namespace {

std::optional<Point> at(PointKind kind, const record::Op& op, std::string_view arg, std::size_t place, double edge) {
  const Operand found = operand(op, arg, place);
  // A finite number over an integer is finite unless the integer is 0; integers have no statistics, but this
  // says.
  const bool implied = kind == PointKind::kDivide && is_integral(found) && bad_output(op) && inputs_finite(op);
  if (!found || !(found.has(edge) || implied)) return std::nullopt;
  return Point{kind, found, std::string(arg), edge};
}

}  // namespace

std::optional<Point> find_point(const record::Op& op) {
  const std::string name = plain_name(op.name);
  if (one_of(name, {"log", "log2", "log10"})) return at(PointKind::kLog, op, "self", 0, 0);
  if (name == "log1p") return at(PointKind::kLog, op, "self", 0, -1);
  if (one_of(name, {"xlogy", "special_xlogy"})) return at(PointKind::kLog, op, "other", 1, 0);
  if (name == "special_xlog1py") return at(PointKind::kLog, op, "other", 1, -1);
  if (one_of(name, {"logit", "special_logit"})) {
    if (auto zero = at(PointKind::kLog, op, "self", 0, 0)) return zero;
    return at(PointKind::kLog, op, "self", 0, 1);
  }
  if (one_of(name, {"div", "true_divide", "divide", "floor_divide", "remainder", "fmod"}))
    return at(PointKind::kDivide, op, "other", 1, 0);
  if (one_of(name, {"reciprocal", "rsqrt"})) return at(PointKind::kDivide, op, "self", 0, 0);
  if (name == "addcdiv") return at(PointKind::kDivide, op, "tensor2", 2, 0);
  if (one_of(name, {"pow", "float_power"})) {
    const Operand exponent = operand(op, "exponent", 1);
    if (exponent && exponent.min() < 0) return at(PointKind::kDivide, op, "self", 0, 0);
  }
  // A fused normalisation that hands out what it divided by.
  if (name == "weight_norm_interface" && inputs_finite(op) && op.outputs.size() > 1 && op.outputs[1].health.zero > 0)
    return Point{PointKind::kDivide, Operand{.tensor = &op.outputs[1]}, "", 0};
  // These hand out the reciprocal of the root of the variance: infinite without an epsilon.
  if (one_of(name, {"native_layer_norm", "native_group_norm"}) && inputs_finite(op) && op.outputs.size() > 2 &&
      op.outputs[2].health.pos_inf > 0)
    return Point{PointKind::kDivide, Operand{.tensor = &op.outputs[2]}, "", 0};
  return std::nullopt;
}

record::OpId differentiated(const record::Trace& trace, record::OpId op) {
  const std::string own = plain_name(trace.ops[op].name);
  for (record::OpId id = trace.ops[op].parent, depth = 0; id < trace.ops.size() && depth < 64;
       id = trace.ops[id].parent, ++depth) {
    const record::Op& around = trace.ops[id];
    if (around.is_node) return record::kNone;
    const std::string name = plain_name(around.name);
    if (name == own || !one_of(name, {"sqrt", "pow", "acos", "asin", "acosh", "atan2", "hypot", "linalg_vector_norm"}))
      continue;
    const Operand x = operand(around, "self", 0);
    const bool at_edge = x && (x.has(0) || x.has(1) || x.has(-1));
    return at_edge && bad_output(around) == nullptr && inputs_finite(around) ? id : record::kNone;
  }
  return record::kNone;
}

double safe_floor(sense::DType dtype) {
  // 1e-12 is itself 0 in float16 and the small float8 formats.
  const double normal = sense::info(dtype).min_normal;
  return dtype == sense::DType::kOther || normal < 1e-30 ? 1e-12 : 16 * normal;
}

bool is_of_higher_order(const Scene& scene) {
  const record::Op* written = scene.written_forward();
  return written != nullptr && written != scene.forward;
}

std::string derivative_of(const Scene& scene) {
  const record::Op* written = scene.written_forward();
  if (written == nullptr) return {};
  // In the program's own words: "linalg_det" for the parts that it calls.
  for (int depth = 0; depth < 8 && written->parent < scene.trace.ops.size(); ++depth) {
    const record::Op& around = scene.trace.ops[written->parent];
    if (around.is_node || !around.name.starts_with("aten::") || around.stack != written->stack) break;
    written = &around;
  }
  return (is_of_higher_order(scene) ? "the second derivative of " : "the derivative of ") + plain_name(written->name);
}

}  // namespace finitude::explain
