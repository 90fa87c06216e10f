// Trains the CNN on made-up digits. One sample of step 12 is far too bright, and has the wrong label: the softmax gives that label
// a probability of exactly zero, whose logarithm makes the loss infinite.
//   train [--steps N] [--healthy] [--on-alarm stop|skip|warn|raise]
#include <finitude/capsule.h>
#include <finitude/recorder.h>
#include <finitude/replay.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "net.h"

namespace {

struct Batch {
  torch::Tensor images, labels;
};

// Each class has a bright column of its own.
Batch make_batch(int step, bool too_bright) {
  Batch batch{torch::rand({16, 1, 16, 16}) * 0.2, torch::randint(10, {16}, torch::kLong)};
  for (int i = 0; i < 16; ++i) {
    const auto label = batch.labels[i].item<int64_t>();
    batch.images[i][0].select(1, label + 3).add_(1.0);
  }
  if (too_bright && step == 12) {
    batch.images[5].mul_(1e6);  // somebody forgot to divide
    batch.labels[5].add_(1).remainder_(10);
  }
  return batch;
}

// What there is of the step on disk, computed once more.
int replay(const std::string& folder) {
  const auto capsule = finitude::read_capsule(folder);
  if (!capsule.ok()) {
    std::fprintf(stderr, "%s\n", capsule.why().c_str());
    return 1;
  }
  const auto again = finitude::replay_capsule(folder);
  if (!again.ok()) {
    std::fprintf(stderr, "%s\n", again.why().c_str());
    return 1;
  }
  std::printf("step %lld replayed, %llu calls: %s", static_cast<long long>(capsule->step),
              static_cast<unsigned long long>(again->calls), again->text.c_str());
  return again->reproduced() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 20;
  bool healthy = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--steps" && i + 1 < argc) steps = std::atoi(argv[++i]);
    else if (word == "--healthy") healthy = true;
    else if (word == "--on-alarm" && i + 1 < argc) setenv("FINITUDE_ON_ALARM", argv[++i], 1);
  }
  const auto options = finitude::options_from_environment();
  if (!options.ok()) {
    std::fprintf(stderr, "%s\n", options.why().c_str());
    return 2;
  }

  torch::manual_seed(7);
  auto net = std::make_shared<Net>();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));

  finitude::Recorder recorder(*options);
  recorder.watch(optimizer, *net);
  for (int i = 0; i < steps; ++i) {
    const Batch batch = make_batch(i, !healthy);
    const auto step = recorder.step(optimizer, [&] {
      recorder.input("images", batch.images);
      optimizer.zero_grad();
      const torch::Tensor loss = net->loss(net->forward(batch.images), batch.labels);
      loss.backward();
      return loss;
    });
    std::printf("step %2d  loss %.9g%s\n", i, step.loss, step.applied ? "" : "  skipped");
    if (!step.status.ok()) {
      std::printf("stopped: %s\n", step.status.why().c_str());
      break;
    }
  }
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.detach().to(torch::kDouble).abs().sum().item<double>();
  std::printf("weights %.17g\n", sum);

  (void)recorder.finish();  // where training went on, its capsule may still be being written
  const auto report = recorder.report();
  if (report.ok() && !report->alarms.empty() && !report->alarms.front().capsule.empty())
    return replay(report->alarms.front().capsule);
  return 0;
}
