#include "suite/files/sample_order.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "suite/files/ahead_reader.h"
#include "suite/files/blended_tokens.h"
#include "suite/files/corpus.h"
#include "suite/testing/file_case.h"

namespace suite {
namespace {

using testing::expect_words;
using testing::Folder;
using testing::refusal;

std::vector<std::int32_t> documents(int number) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(number));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The first numbers of numpy.random.RandomState(1234).shuffle(numpy.arange(10)).
TEST(SampleOrder, ShufflesAsNumpy) {
  const std::vector<std::int32_t> sizes(10, 1);
  const SampleOrder order = sample_order(sizes, documents(10), 1, 0, 1234);
  EXPECT_EQ(order.documents, (std::vector<std::int32_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
}

TEST(SampleOrder, SamplesAreTheConcatenatedDocuments) {
  const std::vector<std::int32_t> sizes{3, 0, 5, 1, 1, 9, 2};
  for (const std::int64_t length : {1, 2, 3, 4, 7, 20})
    for (const std::int64_t samples : {0, 1, 5, 40, 101}) {
      const SampleOrder order = sample_order(sizes, documents(7), length, samples, 7);
      EXPECT_GE(order.size(), samples);
      std::vector<SampleOrder::Start> flat;  // place and offset of every token
      for (std::size_t place = 0; place < order.documents.size(); ++place)
        for (int i = 0; i < sizes[static_cast<std::size_t>(order.documents[place])]; ++i)
          flat.push_back({static_cast<std::int64_t>(place), i});
      ASSERT_EQ(order.size(), (std::ssize(flat) - 1) / length);
      for (std::int64_t sample = 0; sample <= order.size(); ++sample) {
        SampleOrder::Start got = order.samples[static_cast<std::size_t>(sample)];
        // A start may name the end of a document: the next token follows.
        while (
            got.offset ==
            sizes[static_cast<std::size_t>(order.documents[static_cast<std::size_t>(got.place)])])
          got = {got.place + 1, 0};
        EXPECT_EQ(got, flat[static_cast<std::size_t>(sample * length)])
            << length << " " << samples << " " << sample;
      }
      const std::set<std::int64_t> once(order.shuffled.begin(), order.shuffled.end());
      EXPECT_EQ(std::ssize(once), order.size());
      EXPECT_EQ(*once.rbegin(), order.size() - 1);
    }
}

TEST(SampleOrder, AShortLastEpochIsShuffledSeparately) {
  const std::vector<std::int32_t> sizes(50, 4);
  const SampleOrder order = sample_order(sizes, documents(50), 4, 60, 3);  // 49 in the first epoch
  ASSERT_EQ(order.epochs, 2);
  const std::set<std::int32_t> first(order.documents.begin(), order.documents.begin() + 50);
  EXPECT_EQ(first.size(), 50U);
  for (std::size_t i = 0; i < 49; ++i) EXPECT_LT(order.shuffled[i], 49);
  // With most of the last epoch, both are shuffled together.
  const SampleOrder whole = sample_order(sizes, documents(50), 4, 98, 3);
  const std::set<std::int32_t> half(whole.documents.begin(), whole.documents.begin() + 50);
  EXPECT_LT(half.size(), 50U);
}

TEST(SampleOrder, BlendsByWeights) {
  const std::vector<double> weights{3, 7};
  const std::vector<Blended> all = blend(weights, 1000);
  std::array<std::int64_t, 2> taken{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].position, taken[static_cast<std::size_t>(all[i].set)]++);
    EXPECT_NEAR(static_cast<double>(taken[1]), 0.7 * static_cast<double>(i + 1), 1);
  }
  EXPECT_EQ(taken[0], 300);
}

TEST(SampleOrder, SplitsDocuments) {
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(split_range("949,50,1", 0, 1000), (Range{0, 949}));
  EXPECT_EQ(split_range("949,50,1", 1, 1000), (Range{949, 999}));
  EXPECT_EQ(split_range("949,50,1", 2, 1000), (Range{999, 1000}));
  EXPECT_EQ(split_range("100", 0, 7), (Range{0, 7}));
  EXPECT_EQ(split_range("100", 1, 7), (Range{7, 7}));
  for (const char* wrong : {"", "a", "1,2,3,4", "0,0", "-1,2", "1,,2"})
    EXPECT_THROW(split_range(wrong, 0, 7), std::invalid_argument) << wrong;
}

class BlendedFiles : public ::testing::Test {
 protected:
  BlendedFiles() {
    for (const char* name : {"a", "b"}) {
      IndexedTokensWriter writer(folder_.path(name), TokenType::uint16);
      for (std::int64_t document = 0; document < 20; ++document) {
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(3 + document % 4));
        for (std::size_t i = 0; i < tokens.size(); ++i)
          tokens[i] = (name[0] - 'a') * 1000 + document * 10 + static_cast<std::int64_t>(i);
        writer.add_document(tokens);
      }
      writer.finish();
    }
  }
  std::string text(const std::string& split = "") const {
    return fmt::format("--data-path 1 {} 3 {}{}", folder_.path("a"), folder_.path("b"),
                       split.empty() ? "" : " --split " + split);
  }
  const Folder folder_;
};

TEST_F(BlendedFiles, TrainingNeverReadsValidation) {
  for (const Split split : {Split::training, Split::validation}) {
    const BlendedTokens tokens(parse_data_path(text("80,20")), split, 4, 200, 1);
    EXPECT_EQ(tokens.size(), 200);
    std::vector<std::int64_t> sample(5);
    for (std::int64_t i = 0; i < tokens.size(); ++i) {
      tokens.read(i, sample.data());
      for (const std::int64_t token : sample)
        EXPECT_EQ(token % 1000 / 10 >= 16, split == Split::validation) << token;
    }
  }
}

TEST_F(BlendedFiles, CorpusDrawsTheSamplesInOrder) {
  const Corpus corpus = Corpus::from_file(text(), 4, 2000, 1, 30);
  const BlendedTokens tokens(parse_data_path(text()), Split::training, 4, 30, 1);
  std::vector<std::int32_t> got(4), targets(4);
  std::vector<std::int64_t> sample(5);
  for (std::uint64_t index = 0; index < 40; ++index) {  // starts again after 30
    corpus.draw(99, index, 4, got.data(), targets.data());
    tokens.read(static_cast<std::int64_t>(index % 30), sample.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), sample.begin()));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), sample.begin() + 1));
  }
  const Corpus small = Corpus::from_file(text(), 4, 500, 1, 30);
  expect_words(refusal([&] {
                 for (std::uint64_t index = 0; index < 30; ++index)
                   small.draw(1, index, 4, got.data(), targets.data());
               }),
               {"/b", "vocabulary has 500"});
}

TEST_F(BlendedFiles, RejectsWrongPaths) {
  expect_words(refusal([] { parse_data_path("--data-path"); }), {"no prefix"});
  expect_words(refusal([] { parse_data_path("--data-path 1 a 2"); }), {"3 words", "WEIGHT PREFIX"});
  expect_words(refusal([] { parse_data_path("--data-path x a 2 b"); }), {"'x'", "'a'"});
  expect_words(refusal([] { parse_data_path("--data-path 0 a 2 b"); }), {"'0'", "above 0"});
  expect_words(refusal([] { parse_data_path("--data-path a --split 1,2,3,4"); }), {"--split"});
  expect_words(refusal([&] { Corpus::check(text("1,0,0"), 100000); }), {"100001"});
}

TEST(AheadReader, ReadsOneBatchAheadAndCarriesErrors) {
  std::atomic<int> read{0};
  AheadReader<int> reader([&](std::int64_t step) -> int {
    ++read;
    if (step == 3) throw FileError("step {} is broken", step);
    return static_cast<int>(10 * step);
  });
  EXPECT_EQ(reader.take(0, 10), 0);
  EXPECT_EQ(reader.take(1, 10), 10);
  EXPECT_EQ(reader.take(7, 10), 70);  // out of order
  EXPECT_EQ(reader.take(2, 10), 20);
  expect_words(refusal([&] { reader.take(3, 10); }), {"step 3 is broken"});
  EXPECT_EQ(reader.take(4, 10), 40);  // goes on
}

TEST(AheadReader, AWaitEndsAfterItsTimeout) {
  std::promise<void> goes_on;
  AheadReader<int> reader([&](std::int64_t step) {
    if (step == 1) goes_on.get_future().wait();
    return 1;
  });
  EXPECT_EQ(reader.take(0, 10), 1);
  EXPECT_THROW(reader.take(1, 0.05), machine::Timeout);
  goes_on.set_value();
  EXPECT_EQ(reader.take(1, 10), 1);
}

}  // namespace
}  // namespace suite
