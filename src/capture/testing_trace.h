// A trace made manually, for tests of what is kept of one.
#pragma once

#include "record/trace.h"

namespace finitude::capture {

inline record::Trace sample_trace() {
  using namespace record;
  Trace t;
  t.storages = {{Origin::kParameter, "head.weight", kNone}, {}, {Origin::kBatch, "batch[0]", kNone}};
  t.stacks = {{{{"/home/train.py", 3, "forward"}, {"/home/train.py", 9, "main"}}, "Classifier.head", ""}, {{}, "", ""}};
  TensorUse use;
  use.storage = 2;
  use.end = 24;
  use.dtype = sense::DType::kFloat32;
  use.shape = {2, 3};
  use.health = {6, 1, 0, 2, 1, 0, 1.5, -1.0, 1.5, 2.5};
  use.first_bad = 0;
  use.bad_rows = {0, 1};
  use.arg = "self";
  TensorUse made = use;
  made.storage = 0;
  made.arg = "";
  made.requires_grad = true;
  TensorUse none;  // no readable memory
  none.arg = "mask";
  none.shape = {4};
  Op node;
  node.name = "LogBackward0";
  node.is_node = true;
  node.phase = Phase::kBackward;
  node.forward = 0;
  node.end_order = 2;
  Op log;
  log.name = "aten::log";
  log.stack = 0;
  log.end_order = 0;
  log.random = true;
  log.inputs = {use, none};
  log.outputs = {made};
  log.scalars = {{"eps", "1e-08", 1e-8, false}, {"mode", "mean", {}, false}, {"other", "-inf", -1.0 / 0.0, true}};
  Op inside = log;
  inside.parent = inside.node = 1;
  inside.phase = Phase::kBackward;
  inside.stack = 1;
  inside.micro_batch = 4;
  inside.end_order = 1;
  inside.inputs[0].written = true;
  t.ops = {log, node, inside};
  Sink sink;
  sink.kind = "loss";
  sink.name = "loss";
  sink.value = made;
  sink.at_end_order = kNone;
  t.sinks = {sink};
  return t;
}

}  // namespace finitude::capture
