// Registers every contender and runs them in one process, their repetitions in random order.
//   finitude_bench_sense --benchmark_out=kernels.json --benchmark_out_format=json
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "finitude/scan.h"
#include "sense/scan_bench.h"

int main(int argc, char** argv) {
  // What the report relies on; an option given on the command line comes later and wins.
  std::vector<std::string> arguments = {argv[0], "--benchmark_enable_random_interleaving=true",
                                        "--benchmark_repetitions=11", "--benchmark_min_time=0.02",
                                        "--benchmark_display_aggregates_only=true"};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
  benchmark::AddCustomContext("isa", std::string(finitude::sense::chosen_isa()));
  benchmark::AddCustomContext("compiler", __VERSION__);
  finitude::bench::add_plain_reads();
  finitude::bench::add_scans();
#ifdef FINITUDE_BENCH_TORCH
  finitude::bench::add_torch();
#endif
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
