#include "harness/compare/comparable.h"

#include <gtest/gtest.h>

#include "harness/compare/launches.h"
#include "harness/testing/example_runs.h"

namespace harness {
namespace {

const RunFile no_run;

TEST(ReadFields, FlattensCommonAndPerRankFields) {
  const RunFolder folder;
  const std::string run = folder.run("a", {});
  Fields fields = read_fields(run, read_run(run));
  EXPECT_GT(std::stod(fields.at("context.mhz_per_cpu")), 0);
  std::erase_if(fields, [](const auto& field) { return field.first.starts_with("context."); });
  const Fields expected{{"host", "node-a"},
                        {"hardware.cpu", "EPYC"},
                        {"hardware.cores", "2"},
                        {"software.kernel", "Linux 6.1"},
                        {"software.nccl.header", "2.28.3"},
                        {"software.nccl.loaded", "2.28.3"},
                        {"environment.NCCL_ALGO", "Ring"},
                        {"binding", "0, 1"},
                        {"ranks", "2"}};
  EXPECT_EQ(fields, expected);  // a job id identifies a launch, not a machine
  folder.put("a/environment.json",
             R"({"same_on_all_ranks": {}, "ranks": [{"rank": 0, "host": "a"},
                 {"rank": 1, "host": "a"}, {"rank": 2, "host": "b", "x": true}]})");
  const Fields several = read_fields(run, no_run);
  EXPECT_EQ(several.at("host"), "a x2, b");
  EXPECT_EQ(several.at("x"), "absent x2, true");
}

TEST(ReadFields, ReadsTheValuesOfAConfiguration) {
  const RunFolder folder;
  const std::string path = folder.run("a", {});
  RunFile run = read_run(path);
  run.context.configuration =
      R"({"keys": {"zero_optimization.stage": {"value": 2, "origin": "ds_config.json"},
                   "bf16": {"value": null, "origin": "default"}}, "warnings": ["w"]})";
  const Fields fields = read_fields(path, run);
  EXPECT_EQ(fields.at("configuration.zero_optimization.stage"), "2");
  EXPECT_EQ(fields.at("configuration.bf16"), "null");
  EXPECT_TRUE(Factors({"stage"}).declare("configuration.zero_optimization.stage"));
  run.context.configuration = R"({"keys": {"bf16": 3}})";
  EXPECT_NE(refused([&] { read_fields(path, run); }).find("a/run.json, context, configuration: "),
            std::string::npos);
}

TEST(CurrentNames, OldBooleans0And1BecomeOffAndOn) {
  EXPECT_EQ(current_case_name("layer_norm/ranks:1/sequence-parallel:1/micro-batch-size:1"),
            "layer_norm/ranks:1/sequence-parallel:on/micro-batch-size:1");
  EXPECT_EQ(current_case_name("row_parallel_linear/bias:0/input_is_parallel:1"),
            "row_parallel_linear/bias:off/input_is_parallel:on");
  for (const char* name : {"", "barrier", "a/bias:10", "a/bias:on", "a/my_bias:1"})
    EXPECT_EQ(current_case_name(name), name);
  EXPECT_EQ(current_axes({{"bias", "1"}, {"ranks", "1"}, {"uneven-tokens", "0"}}),
            (AxisValues{{"bias", "on"}, {"ranks", "1"}, {"uneven-tokens", "off"}}));
}

TEST(ReadFields, ReportsAMalformedFileInOneLine) {
  const RunFolder folder;
  std::filesystem::create_directory(folder.path("a"));
  const auto line = [&] { return refused([&] { read_fields(folder.path("a"), no_run); }); };
  EXPECT_NE(line().find("environment.json: No such file"), std::string::npos) << line();
  const std::string whole(example_environment);
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[1, 2]"), std::string("7"),
        std::string(R"({"same_on_all_ranks": {}, "ranks": []})"),
        std::string(R"({"same_on_all_ranks": 3, "ranks": [{"rank": 0}]})"),
        std::string(R"({"same_on_all_ranks": {}, "ranks": {"rank": 0}})"),
        std::string(R"({"same_on_all_ranks": {}, "ranks": [3]})"),
        R"({"ranks": [{}], "same_on_all_ranks": )" +
            [] {
              std::string deep;
              for (int i = 0; i < 5000; ++i) deep += R"({"a":)";
              return deep + "1" + std::string(5000, '}');
            }() +
            "}"}) {
    folder.put("a/environment.json", text);
    EXPECT_NE(line().find(folder.path("a/environment.json") + " is "), std::string::npos) << line();
    EXPECT_EQ(line().find('\n'), std::string::npos);
  }
}

TEST(Differences, AreNamedAndDeclared) {
  const Fields base{{"host", "a"}, {"software.nccl.loaded", "2.28"}, {"software.kernel", "6.1"}};
  const Fields next{{"host", "a"},
                    {"software.nccl.loaded", "2.29"},
                    {"environment.NCCL_ALGO", "Ring"},
                    {"software.kernel", "6.1"}};
  const auto found = differences(base, next, Factors({"nccl"}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].field, "environment.NCCL_ALGO");
  EXPECT_EQ(found[0].base, "absent");
  EXPECT_EQ(found[0].next, "Ring");
  EXPECT_FALSE(found[0].declared);  // nccl is a complete part only of the other name
  EXPECT_EQ(found[1].field, "software.nccl.loaded");
  EXPECT_TRUE(found[1].declared);
}

TEST(Differences, GroupsThatOneSideNeverRecordedDoNotCount) {
  const Fields older{{"host", "a"}}, one{{"hardware.network.eth0", "up"}},
      other{{"hardware.network.eth0", "down"}, {"hardware.network.eth1", "up"}};
  EXPECT_TRUE(
      differences(older, {{"host", "a"}, {"hardware.network", "none"}}, Factors({})).empty());
  EXPECT_EQ(differences(one, other, Factors({})).size(), 2u);
  EXPECT_EQ(differences({{"hardware.network", "none"}}, one, Factors({})).size(), 2u);
}

TEST(Differences, TheNetworkOfNcclCountsAndItsConnectionsDoNot) {
  const Fields one{{"software.nccl.network", "IB"}, {"nccl.paths", "NET/IB"}},
      other{{"software.nccl.network", "Socket"}, {"nccl.paths", "NET/Socket"}};
  const auto found = differences(one, other, Factors({}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].field, "software.nccl.network");
  EXPECT_TRUE(
      differences({{"host", "a"}}, {{"host", "a"}, {"software.nccl.network", "IB"}}, Factors({}))
          .empty());
  const Fields near{{"place.cores", "0-3"}}, far{{"place.cores", "4-7"}};
  EXPECT_EQ(differences(near, far, Factors({})).size(), 1u);
  EXPECT_TRUE(differences(near, {}, Factors({})).empty());
}

bool differ(const std::string& field, const std::string& a, const std::string& b) {
  return !differences({{field, a}}, {{field, b}}, Factors({})).empty();
}

TEST(Differences, ClocksMayVary) {
  const std::string field = "context.mhz_per_cpu";
  EXPECT_FALSE(differ(field, "2596", "2600"));
  EXPECT_TRUE(differ(field, "2596", "2000"));
  EXPECT_TRUE(differ(field, "2596", "absent"));
  EXPECT_TRUE(differ(field, "2596", "2596 MHz"));
}

// Kernels of one host keep different parts of its memory. A lost module of 32 is 3 %.
TEST(Differences, MemoryMayVaryByHost) {
  const std::string field = "hardware.memory_bytes";
  EXPECT_FALSE(differ(field, "1081970000000", "1081966000000"));
  EXPECT_TRUE(differ(field, "1081970000000", "1048160000000"));
  EXPECT_FALSE(differ(field, "64000000 x2, 64001000", "64001000 x3"));
  EXPECT_TRUE(differ(field, "64000000 x2, 64001000", "64000000 x2, 32000000"));
  EXPECT_FALSE(differ(field, "64000000", "64000000 x2, 64001000"));
  EXPECT_TRUE(differ(field, "64000000 x2, 32000000", "64000000"));
  EXPECT_TRUE(differ(field, "64000000 x2", "64000000 x3"));
  EXPECT_TRUE(differ(field, "64000000 x2", "64000000 xx"));
}

TEST(Factors, MatchCompletePartsOfAName) {
  const Factors factors({"software.nccl", "NCCL_ALGO", "host"});
  for (const char* field :
       {"software.nccl.loaded", "software.nccl", "environment.NCCL_ALGO", "host"})
    EXPECT_TRUE(factors.declare(field)) << field;
  for (const char* field :
       {"software.nccl2", "environment.NCCL_ALGOS", "hosts", "ghost", "software"})
    EXPECT_FALSE(factors.declare(field)) << field;
  EXPECT_FALSE(Factors({""}).declare("host"));
}

TEST(Factors, AMisspelledFactorNamesTheNearest) {
  const Fields fields{{"software.nccl.loaded", "2.28"}, {"hardware.cpu", "EPYC"}};
  const auto line = [&](const char* name) {
    return refused([&] { Factors({name}).check({&fields}, {"dtype"}); });
  };
  EXPECT_EQ(line("nccl"), "no UsageError");
  EXPECT_EQ(line("dtype"), "no UsageError");
  EXPECT_NE(line("ncll").find("did you mean 'nccl'"), std::string::npos) << line("ncll");
  EXPECT_NE(line("dtyp").find("'dtype'"), std::string::npos) << line("dtyp");
  EXPECT_NE(line("hardware.gpu").find("'hardware.cpu'"), std::string::npos);
  EXPECT_NE(line("").find("--factor"), std::string::npos);
}

TEST(ReadLaunches, ReadsOneRunOrAFolderOfRuns) {
  const RunFolder folder;
  folder.run("many/1", {timed_case("8", 1e-6)});
  folder.run("many/2", {timed_case("8", 1e-6)});
  std::filesystem::create_directory(folder.path("many/notes"));
  std::vector<std::string> notes;
  const auto launches = read_launches({folder.path("many")}, "BASE", notes);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].path, folder.path("many/1"));
  EXPECT_TRUE(launches[0].records[0].samples.seconds.empty());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("notes contains no run.json"), std::string::npos);
  EXPECT_EQ(read_launches({folder.path("many/2")}, "NEW", notes).size(), 1u);
}

TEST(ReadLaunches, ReportsAnInvalidRunInOneLine) {
  const RunFolder folder;
  std::vector<std::string> notes;
  const auto line = [&](std::vector<std::string> given) {
    const std::string text = refused([&] { read_launches(given, "NEW", notes); });
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  EXPECT_NE(line({folder.path("none")}).find("NEW: no folder at"), std::string::npos);
  std::filesystem::create_directory(folder.path("empty"));
  EXPECT_NE(line({folder.path("empty")}).find("and its folders contain no run.json"),
            std::string::npos);
  const std::string run = folder.run("many/1", {timed_case("8", 1e-6), timed_case("64", 1e-6)});
  EXPECT_NE(line({run, folder.path("many")}).find("is given twice"), std::string::npos);

  const std::string whole = folder.text("many/1/run.json");
  folder.put("many/1/run.json", whole.substr(0, whole.size() - 40));
  EXPECT_NE(line({run}).find("run.json is cut off"), std::string::npos);
  // Numbers that do not fit the stored samples.
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"samples", "2000000000"},
                                   {"samples_ranks", "-1"},
                                   {"samples_offset", "18446744073709551608"}}) {
    std::string torn = whole;
    const std::size_t at = torn.rfind("\"" + key + "\":") + key.size() + 3;
    torn.replace(at, torn.find_first_of(",}", at) - at, value);
    folder.put("many/1/run.json", torn);
    const std::string said = line({run});
    EXPECT_TRUE(said.find("samples") != std::string::npos && said != "no UsageError") << said;
  }
  folder.put("many/1/run.json", whole);
  std::filesystem::resize_file(folder.path("many/1/samples.bin"), 100);
  EXPECT_NE(line({run}).find("samples.bin is cut off"), std::string::npos);
}

TEST(Continuing, RejectsAnotherMachineOrConfiguration) {
  const RunFolder folder;
  const std::string path = folder.run("a", {timed_case("8", 1e-6)});
  const RunFile run = read_run(path);
  const auto line = [&](const std::string& from, const std::string& to,
                        const std::string& configuration = "") {
    std::string environment(example_environment);
    if (!from.empty()) environment.replace(environment.find(from), from.size(), to);
    return refused([&] { refuse_another(path, run, environment, configuration); });
  };
  EXPECT_EQ(line("", ""), "no UsageError");
  EXPECT_EQ(line("77", "78"), "no UsageError");  // a job id is independent of the machine
  EXPECT_EQ(line("Linux 6.1", "Linux 6.2"),
            path + " cannot be continued here: software.kernel was Linux 6.1 and is Linux 6.2");
  EXPECT_NE(line("", "", R"({"keys": {"dtype": {"value": "half"}}})").find("configuration.dtype"),
            std::string::npos);
}

}  // namespace
}  // namespace harness
