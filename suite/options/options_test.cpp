#include "suite/options/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/unit/sweep.h"

namespace suite {
namespace {

using Words = std::vector<std::string>;

// One command with an option of each kind.
struct Example {
  Options options{"weigh", "[FRUIT...]", "Weighs fruit."};
  Words fruit, colors, against, passed;
  std::string out;
  int count = 3, last = 0;
  double grams = 1;
  std::optional<std::uint64_t> seed;
  bool all = false;

  Example() {
    options.arguments("FRUIT", fruit, "a fruit", 0, 2);
    options.text("-o,--out", "DIR", out, "folder");
    options.number("--count", "N", count, 1, 9, "pieces (default: 3)");
    options.group("Weight");
    options.positive("--grams", "GRAMS", grams, "of one piece");
    options.number("--seed", "N", seed, 0, 99, "seed");
    options.texts("--color", "NAME", colors, "repeatable");
    options.takes_following("--against", "FRUIT...", against, "other fruit");
    options.flag("--all", all, "all of them");
    options.pass("--benchmark_", passed);
    options.group("Repeated");
    options.last_counts();
    options.number("-n,--last", "N", last, -5, 5, "the last counts");
  }
  std::string mistake(const Words& words) {
    try {
      options.parse(words);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return "none";
  }
};

TEST(Options, CompletesALine) {
  const auto offered = [](const Words& words) {
    Example e;
    e.options.group("");
    e.options.number("--ripe", "N", e.count, 0, 9, "axis");
    e.options.choices([&e] { return e.fruit.empty() ? Words{} : Words{"4", "45"}; });
    e.options.argument_choices([] { return Words{"apple", "pear"}; });
    Words line{std::string(Options::complete_word)};
    line.insert(line.end(), words.begin(), words.end());
    testing::internal::CaptureStdout();
    EXPECT_FALSE(e.options.parse(line));
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(offered({"--co"}), "--count\tpieces (default: 3)\n--color\trepeatable\n");
  EXPECT_EQ(offered({""}), "apple\npear\n");
  EXPECT_EQ(offered({"--count", "x", "pe"}), "pear\n");
  EXPECT_EQ(offered({"--out", ""}), "");
  EXPECT_EQ(offered({"--ri"}), "");
  EXPECT_EQ(offered({"fig", "--ri"}), "--ripe\taxis\n");
  EXPECT_EQ(offered({"fig", "--ripe", "4"}), "4\n45\n");
  EXPECT_EQ(offered({"fig", "--ripe=1,45"}), "--ripe=1,45\n");
}

TEST(Options, WritesASectionOfTheManual) {
  Example e;
  const std::string page = e.options.manual();
  EXPECT_TRUE(page.starts_with(".SS shardmark weigh [OPTIONS] [FRUIT...]\nWeighs fruit.\n"))
      << page;
  EXPECT_NE(page.find(".TP\n\\fB\\-o, \\-\\-out\\fR \\fIDIR\\fR\nfolder\n"), std::string::npos)
      << page;
  EXPECT_EQ(roff(".a-b\\\n'c"), "\\&.a\\-b\\e\n\\&'c");
}

TEST(Options, ReadsEveryForm) {
  Example e;
  ASSERT_TRUE(e.options.parse({"apple", "-oruns", "--count=4", "-n", "-5", "-n2", "--color",
                               "red,green", "--color=blue", "--benchmark_filter=x", "--all",
                               "--against", "pear", "plum", "--grams", "1e-3", "fig"}));
  EXPECT_EQ(e.fruit, (Words{"apple", "fig"}));
  EXPECT_EQ(e.against, (Words{"pear", "plum"}));
  EXPECT_EQ(e.colors, (Words{"red", "green", "blue"}));
  EXPECT_EQ(e.passed, Words{"--benchmark_filter=x"});
  EXPECT_EQ(e.out, "runs");
  EXPECT_EQ(e.count, 4);
  EXPECT_EQ(e.last, 2);
  EXPECT_EQ(e.grams, 1e-3);
  EXPECT_TRUE(e.all);
  EXPECT_FALSE(e.seed);
}

TEST(Options, MistakesAreOneLineWithARemedy) {
  const auto mistake = [](const Words& words) { return Example().mistake(words); };
  EXPECT_EQ(mistake({"--cuont", "1"}), "unknown flag '--cuont'; did you mean '--count'?");
  EXPECT_EQ(mistake({"--cuont=1"}), "unknown flag '--cuont'; did you mean '--count'?");
  EXPECT_EQ(mistake({"-x"}), "unknown flag '-x'; known: -h -o -n");
  EXPECT_EQ(mistake({"--out"}), "--out requires a value: DIR");
  EXPECT_EQ(mistake({"--out", "--all"}), "--out requires a value: DIR");
  EXPECT_EQ(mistake({"--out", "--tmp"}),
            "--out requires a value: DIR; if it is '--tmp', write --out=--tmp");
  EXPECT_EQ(mistake({"--all=yes"}), "--all takes no value (got 'yes')");
  EXPECT_EQ(mistake({"--out", "a", "-o", "b"}), "'-o' is given twice");
  EXPECT_EQ(mistake({"--count", "12"}), "--count is '12'; expected a whole number from 1 to 9");
  EXPECT_EQ(mistake({"--count", "2.5"}), "--count is '2.5'; expected a whole number from 1 to 9");
  EXPECT_EQ(mistake({"--count="}), "--count is ''; expected a whole number from 1 to 9");
  for (const char* text : {"0", "-1", "inf", "nan", "1g", ""})
    EXPECT_EQ(mistake({std::string("--grams=") + text}),
              fmt::format("--grams is '{}'; expected a number above 0", text));
  EXPECT_EQ(mistake({"apple", "fig", "plum"}), "unexpected argument 'plum'");
  Options one("report", "RUN", "");
  Words runs;
  one.arguments("RUN", runs, "a run directory", 1, 1);
  EXPECT_THROW(one.parse({}), harness::UsageError);
}

TEST(Options, QuotedArgumentsAreAValue) {
  std::string arguments;
  Options options("run", "", "");
  options.text("--model-args", "VALUES", arguments, "");
  ASSERT_TRUE(options.parse({"--model-args", "--swiglu --hidden-dropout 0.1"}));
  EXPECT_EQ(arguments, "--swiglu --hidden-dropout 0.1");
  EXPECT_EQ(Example().mistake({"--out", "--all=a b"}), "--out requires a value: DIR");
}

TEST(Options, UnknownWordsMayBeKeptInOrder) {
  Words rest;
  std::string out;
  Options options("ab", "", "");
  options.pass("", rest);
  options.text("--out", "DIR", out, "");
  ASSERT_TRUE(options.parse({"ring", "--bytes", "8", "--out", "here", "-x", "--y=1"}));
  EXPECT_EQ(rest, (Words{"ring", "--bytes", "8", "-x", "--y=1"}));
  EXPECT_EQ(out, "here");
}

TEST(Options, ASubcommandGetsAllFollowingWords) {
  Words rest;
  std::string file;
  Options options("history", "", "");
  options.pass_from_first_argument(rest);
  options.text("--db", "FILE", file, "");
  ASSERT_TRUE(options.parse({"--db", "f", "add", "--db", "g", "--help"}));
  EXPECT_EQ(rest, (Words{"add", "--db", "g", "--help"}));
  EXPECT_EQ(file, "f");
}

TEST(Options, HelpIsGroupedAndAligned) {
  Example e;
  e.options.group("");
  std::string hidden;
  e.options.text("--hidden", "X", hidden, "hidden");
  e.options.footer("The end.");
  EXPECT_EQ(e.options.help(), R"(Usage: shardmark weigh [OPTIONS] [FRUIT...]

Weighs fruit.

Options:
  -o, --out DIR  folder
  --count N      pieces (default: 3)

Weight:
  --grams GRAMS       of one piece
  --seed N            seed
  --color NAME        repeatable
  --against FRUIT...  other fruit
  --all               all of them

Repeated:
  -n, --last N  the last counts

The end.
)");
  EXPECT_TRUE(e.options.parse({"--hidden", "1"}));
}

TEST(TwoColumns, WrapTheTextAndLongNamesHaveTheirOwnLine) {
  std::string words;
  for (int i = 0; i < 30; ++i) words += "word ";
  const std::string text =
      two_columns({{"short", words}, {"a name that is longer than the column", "text"}});
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  ASSERT_EQ(lines.size(), 4u) << text;
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u);
  EXPECT_TRUE(lines[0].starts_with("  short  word word"));
  EXPECT_TRUE(lines[1].starts_with("         word"));
  EXPECT_EQ(lines[2], "  a name that is longer than the column");
  EXPECT_EQ(lines[3], "         text");
}

}  // namespace
}  // namespace suite
