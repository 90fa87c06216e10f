// Reads a report, and the capsule of each of its alarms: for programs that have no torch.
//   inspect report.json
#include <finitude/capsule.h>
#include <finitude/report.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: inspect report.json\n");
    return 2;
  }
  const auto report = finitude::read_report(argv[1]);
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.why().c_str());
    return 3;
  }
  std::printf("%s after %llu steps\n", report->outcome.c_str(), static_cast<unsigned long long>(report->steps));
  for (const finitude::Alarm& alarm : report->alarms) {
    std::printf("step %lld: %s\n", static_cast<long long>(alarm.step), alarm.cause.cause_class.c_str());
    for (const finitude::Birth& birth : alarm.births)
      std::printf("  born at %s:%lld in %s\n", birth.place.file.c_str(), static_cast<long long>(birth.place.line), birth.place.op.c_str());
    if (alarm.capsule.empty()) continue;
    const auto capsule = finitude::read_capsule(alarm.capsule);
    if (!capsule.ok()) {
      std::fprintf(stderr, "%s\n", capsule.why().c_str());
      return 3;
    }
    std::printf("  capsule: %zu inputs, %zu calls, replay %s\n", capsule->inputs.size(), capsule->calls.size(), capsule->replay.c_str());
  }
  return report->alarms.empty() ? 0 : 1;
}
