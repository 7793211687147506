// Writes a run with every kind of record, figures, and its report, for the test
// that opens the page in a browser.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "harness/report/html.h"
#include "harness/testing/example_records.h"

namespace {

std::string drawing(int number) {
  std::string bars;
  for (int i = 0; i < 6; ++i)
    bars += "<use xlink:href=\"#bar\" x=\"" + std::to_string(30 + 30 * i) + "\" y=\"" +
            std::to_string(12 * number + 9 * i) + "\"/>";
  return "<?xml version=\"1.0\"?>\n<svg xmlns:xlink=\"http://www.w3.org/1999/xlink\" "
         "width=\"245pt\" height=\"180pt\" "
         "viewBox=\"0 0 245 180\" xmlns=\"http://www.w3.org/2000/svg\"><defs><clipPath "
         "id=\"clip\"><rect width=\"245\" "
         "height=\"180\"/></clipPath><rect id=\"bar\" width=\"20\" height=\"60\" "
         "fill=\"#0072B2\"/></defs>"
         "<g id=\"figure_1\" clip-path=\"url(#clip)\">" +
         bars + "</g></svg>";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  using namespace harness;
  const std::string directory = argv[1];
  RunContext context{
      "acceptance",
      "shardmark run --profile acceptance --ranks 4 --out " + directory,
      "",
      "running",
      "",
      {{"copy_GBps/ranks:2/bytes:1048576", 12.5}, {"gemm_GFLOPs/ranks:1/dtype:float", 80.5}}};
  RunWriter writer(context, directory);
  for (int i = 0; i < 60; ++i) {
    Record record = example_record(i, i % 29 == 28 ? Ruling::fail
                                      : i % 7 == 6 ? Ruling::skipped
                                                   : Ruling::pass);
    if (i == 6)
      record.reason = "needs a network of at least two hosts that are reachable by MPI, found one";
    if (record.verdict != Ruling::skipped) {
      record.counters["ci_low_s"] = record.seconds * 0.99;
      record.counters["ci_high_s"] = record.seconds * 1.02;
      record.counters["speedup_over_library"] = 1.4;
    }
    writer.add(record);
  }
  context.status = "complete";
  writer.finish(context);
  std::filesystem::create_directories(directory + "/figures");
  std::ofstream listing(directory + "/figures/figures.json");
  for (int i = 0; i < 3; ++i) {
    listing << (i == 0 ? "[" : ",") << "{\"name\": \"drawing_" << i
            << "\", \"kind\": \"loss\", \"group\": \"Group " << i / 2 << "\", \"title\": \"Drawing "
            << i << "\", \"width\": 245, \"height\": 180}";
    const std::string stem = directory + "/figures/drawing_" + std::to_string(i);
    std::ofstream(stem + ".svg") << drawing(i);
    std::ofstream(stem + ".csv") << "bytes,algorithm,busbw_GBps,ci_low_GBps,ci_high_GBps\n1024,"
                                    "ring,1.5,1.4,1.6\n2048,ring,2.5,2.4,2.6\n";
  }
  listing << "]";
  listing.close();
  std::ofstream(directory + "/environment.json")
      << "{\n  \"same_on_all_ranks\": {\"host\": \"node-a\", \"hardware\": {\"cuda_devices\": 0, "
         "\"cpu\": \""
      << std::string(300, 'x') << "\"}},\n  \"ranks\": [{\"rank\": 0}, {\"rank\": 1}]\n}\n";
  write_report(directory, /*draw=*/false);
  std::puts((directory + "/report.html").c_str());
}
