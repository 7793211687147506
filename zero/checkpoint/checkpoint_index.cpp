#include "zero/checkpoint/checkpoint_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "machine/base/checksum.h"

namespace zero {
namespace {
using nlohmann::json;

constexpr std::string_view format_name = "shardmark checkpoint 1";
constexpr std::string_view last_line = "crc32c ";
constexpr std::size_t last_line_bytes = last_line.size() + 8 + 1;

// Returns an exact integer from 0 to 2^63 - 1, as the format requires.
std::int64_t integer(const json& value) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    throw CheckpointError(fmt::format("{} is not a number from 0 to 2^63 - 1", value.dump()));
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> integers(const json& values) {
  if (!values.is_array()) throw CheckpointError(fmt::format("{} is not a list", values.dump()));
  std::vector<std::int64_t> read;
  for (const json& value : values) read.push_back(integer(value));
  return read;
}

Dtype dtype(const std::string& text) {
  for (const Dtype known : machine::every_dtype)
    if (machine::name(known) == text) return known;
  throw CheckpointError(fmt::format("'{}' is not a dtype", text));
}

StoredPiece parse_piece(const json& value, std::uint64_t part_bytes) {
  StoredPiece stored;
  Piece& piece = stored.piece;
  piece.name = value.at("name").get<std::string>();
  const auto refuse = [&](std::string_view why) {
    throw CheckpointError(fmt::format("tensor {}: {}", json(piece.name).dump(), why));
  };
  piece.global = integers(value.at("global"));
  piece.begin = integers(value.at("begin"));
  piece.extent = integers(value.at("extent"));
  const std::vector<std::int64_t> range = integers(value.at("range"));
  if (range.size() != 2) refuse("its range does not have two numbers");
  piece.range = {range[0], range[1]};
  if (const std::string why = why_no_piece(piece); !why.empty()) refuse(why);
  stored.dtype = dtype(value.at("dtype").get<std::string>());
  stored.offset = static_cast<std::uint64_t>(integer(value.at("offset")));
  stored.checksum = static_cast<std::uint32_t>(integer(value.at("checksum")));
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(piece.size()) * machine::size_of(stored.dtype);
  if (stored.offset > part_bytes || bytes > part_bytes - stored.offset)
    refuse(fmt::format("{} bytes at {} are not inside a file of {}", bytes, stored.offset,
                       part_bytes));
  return stored;
}

}  // namespace

bool is_save_name(std::string_view name) {
  return name.size() == 16 && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string part_name(const std::string& save, std::size_t rank, std::size_t ranks) {
  return fmt::format("{}-rank-{}-of-{}.part", save, rank, ranks);
}

std::string part_header(const std::string& save, std::size_t rank, std::size_t ranks) {
  std::string header = fmt::format("shardmark part 1\n{}\n{}\n{}\n", save, rank, ranks);
  header.resize(part_header_bytes, '\n');
  return header;
}

std::string part_text(const StoredPart& part) {
  json pieces = json::array();
  for (const auto& [piece, dtype, offset, checksum] : part.pieces)
    pieces.push_back({{"name", piece.name},
                      {"dtype", std::string(machine::name(dtype))},
                      {"global", piece.global},
                      {"begin", piece.begin},
                      {"extent", piece.extent},
                      {"range", {piece.range.begin, piece.range.end}},
                      {"offset", offset},
                      {"checksum", checksum}});
  return json{{"bytes", part.bytes}, {"pieces", std::move(pieces)}}.dump();
}

std::string index_text(const std::string& save, const Facts& facts,
                       const std::vector<std::string>& parts) {
  std::string text = fmt::format(
      "{{\"format\": \"{}\",\n\"save\": \"{}\",\n\"numbers\": {},\n\"texts\": {},\n"
      "\"parts\": [",
      format_name, save, json(facts.numbers).dump(), json(facts.texts).dump());
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    text += (rank == 0 ? "\n" : ",\n") + parts[rank];
  text += "\n]}\n";
  return text + fmt::format("{}{:08x}\n", last_line, crc32c(text.data(), text.size()));
}

CheckpointIndex parse_index(const std::string& path, const std::string& text) {
  const auto refuse = [&](std::string_view why) {
    throw CheckpointError(fmt::format("{}: {}", path, why));
  };
  const std::size_t size = text.size() < last_line_bytes ? 0 : text.size() - last_line_bytes;
  if (text.substr(size) != fmt::format("{}{:08x}\n", last_line, crc32c(text.data(), size)))
    refuse("its checksum is wrong");
  CheckpointIndex index;
  try {
    const json whole = json::parse(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    if (whole.at("format") != format_name)
      refuse(fmt::format("its format is {}, not \"{}\"", whole.at("format").dump(), format_name));
    index.save = whole.at("save").get<std::string>();
    if (!is_save_name(index.save)) refuse("its save has an invalid name");
    for (const auto& [name, value] : whole.at("numbers").items()) {
      if (!value.is_number_unsigned()) refuse(fmt::format("'{}' is not a number", name));
      index.facts.numbers[name] = value.get<std::uint64_t>();
    }
    for (const auto& [name, value] : whole.at("texts").items())
      index.facts.texts[name] = value.get<std::string>();
    for (const json& part : whole.at("parts")) {
      StoredPart& read = index.parts.emplace_back();
      read.bytes = static_cast<std::uint64_t>(integer(part.at("bytes")));
      for (const json& piece : part.at("pieces"))
        read.pieces.push_back(parse_piece(piece, read.bytes));
    }
  } catch (const json::exception& error) {
    refuse(error.what());
  } catch (const CheckpointError& error) {
    if (std::string_view(error.what()).starts_with(path)) throw;
    refuse(error.what());
  }
  return index;
}

}  // namespace zero
