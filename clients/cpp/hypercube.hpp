/**
 * Client of Hypercube serving in one header: predictions over HTTP with one deadline per call, retries with a budget,
 * and the hashing of features into keys. C++17; link with libcurl.
 */
#pragma once

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hypercube {

/**
 * A call that failed. The code is the server's error code, or UNAVAILABLE (no usable answer), DEADLINE_EXCEEDED (the
 * timeout passed) and INVALID_ARGUMENT (wrong arguments) where the client itself found the problem. The status is the
 * HTTP status, 0 without an answer.
 */
class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& message, long status = 0)
      : std::runtime_error(code + ": " + message), code_(std::move(code)), status_(status) {}
  const std::string& code() const { return code_; }
  long status() const { return status_; }

 private:
  std::string code_;
  long status_;
};

/** A JSON value; numbers are doubles. */
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(int value) : value_(static_cast<double>(value)) {}
  Json(std::size_t value) : value_(static_cast<double>(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_number() const { return std::holds_alternative<double>(value_); }
  bool as_bool() const { return as<bool>("true or false"); }
  double as_number() const { return as<double>("a number"); }
  const std::string& as_string() const { return as<std::string>("a string"); }
  const Array& as_array() const { return as<Array>("an array"); }
  const Object& as_object() const { return as<Object>("an object"); }

  const Json* find(std::string_view name) const {
    for (const auto& [field, value] : as_object()) {
      if (field == name) return &value;
    }
    return nullptr;
  }
  const Json& at(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) throw std::invalid_argument("JSON: no field " + std::string(name));
    return *value;
  }

  static Json parse(std::string_view text) {
    Reader reader{text, 0};
    Json value = reader.read(0);
    reader.skip_space();
    if (reader.at != text.size()) reader.fail("unexpected text after the value");
    return value;
  }

  std::string write() const {
    std::string out;
    write(out);
    return out;
  }

 private:
  template <typename T>
  const T& as(const char* expected) const {
    const T* value = std::get_if<T>(&value_);
    if (value == nullptr) throw std::invalid_argument(std::string("JSON: expected ") + expected);
    return *value;
  }

  void write(std::string& out) const {
    if (is_null()) {
      out += "null";
    } else if (const bool* flag = std::get_if<bool>(&value_)) {
      out += *flag ? "true" : "false";
    } else if (const double* number = std::get_if<double>(&value_)) {
      // NaN is a missing value, which JSON writes as null.
      if (std::isnan(*number)) {
        out += "null";
        return;
      }
      if (std::isinf(*number)) throw std::invalid_argument("expected a finite number, got infinity");
      char digits[32];
      out.append(digits, std::to_chars(digits, digits + sizeof digits, *number).ptr);
    } else if (const Array* array = std::get_if<Array>(&value_)) {
      out += '[';
      for (std::size_t i = 0; i < array->size(); i++) {
        if (i > 0) out += ',';
        (*array)[i].write(out);
      }
      out += ']';
    } else if (const Object* object = std::get_if<Object>(&value_)) {
      out += '{';
      for (std::size_t i = 0; i < object->size(); i++) {
        if (i > 0) out += ',';
        write_string((*object)[i].first, out);
        out += ':';
        (*object)[i].second.write(out);
      }
      out += '}';
    } else {
      write_string(std::get<std::string>(value_), out);
    }
  }

  static void write_string(const std::string& text, std::string& out) {
    static const char* digits = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (byte < 0x20) {
        out += "\\u00";
        out += digits[byte >> 4];
        out += digits[byte & 15];
      } else {
        out += c;
      }
    }
    out += '"';
  }

  struct Reader {
    std::string_view text;
    std::size_t at;

    [[noreturn]] void fail(const std::string& what) const {
      throw std::invalid_argument("JSON, position " + std::to_string(at) + ": " + what);
    }
    void skip_space() {
      while (at < text.size() && std::strchr(" \t\r\n", text[at]) != nullptr && text[at] != '\0') at++;
    }
    char next() {
      if (at >= text.size()) fail("unexpected end");
      return text[at++];
    }
    Json word(std::string_view expected, Json value) {
      if (text.substr(at - 1, expected.size()) != expected) fail("expected " + std::string(expected));
      at += expected.size() - 1;
      return value;
    }
    Json read(int depth) {
      if (depth > 100) fail("nested too deeply");
      skip_space();
      switch (next()) {
        case '{': return read_object(depth);
        case '[': return read_array(depth);
        case '"': return Json(read_string());
        case 't': return word("true", Json(true));
        case 'f': return word("false", Json(false));
        case 'n': return word("null", Json());
        default: return read_number();
      }
    }
    Json read_number() {
      double value = 0;
      const char* start = text.data() + at - 1;
      const auto [end, problem] = std::from_chars(start, text.data() + text.size(), value);
      if (problem != std::errc()) fail("expected a value");
      at = static_cast<std::size_t>(end - text.data());
      return Json(value);
    }
    /** @return whether an object or array ends here, without elements */
    bool is_empty(char end) {
      skip_space();
      if (at >= text.size() || text[at] != end) return false;
      at++;
      return true;
    }
    bool has_more(char end) {
      skip_space();
      const char separator = next();
      if (separator == end) return false;
      if (separator != ',') fail(std::string("expected , or ") + end);
      return true;
    }
    Json read_object(int depth) {
      Object object;
      if (is_empty('}')) return Json(std::move(object));
      do {
        skip_space();
        if (next() != '"') fail("expected a field name");
        std::string name = read_string();
        skip_space();
        if (next() != ':') fail("expected :");
        object.emplace_back(std::move(name), read(depth + 1));
      } while (has_more('}'));
      return Json(std::move(object));
    }
    Json read_array(int depth) {
      Array array;
      if (is_empty(']')) return Json(std::move(array));
      do {
        array.push_back(read(depth + 1));
      } while (has_more(']'));
      return Json(std::move(array));
    }
    unsigned read_hex() {
      unsigned unit = 0;
      if (at + 4 > text.size()) fail("unexpected end");
      const auto [end, problem] = std::from_chars(text.data() + at, text.data() + at + 4, unit, 16);
      if (problem != std::errc() || end != text.data() + at + 4) fail("expected four hexadecimal digits");
      at += 4;
      return unit;
    }
    void append_utf8(std::string& out, unsigned code) {
      if (code < 0x80) {
        out += static_cast<char>(code);
        return;
      }
      const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
      static const unsigned heads[] = {0, 0xC0, 0xE0, 0xF0};
      out += static_cast<char>(heads[more] | code >> 6 * more);
      for (int i = more - 1; i >= 0; i--) out += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
    }
    std::string read_string() {
      std::string out;
      while (true) {
        const char c = next();
        if (c == '"') return out;
        if (c != '\\') {
          out += c;
          continue;
        }
        const char escaped = next();
        static const std::string_view names = "bfnrt", values = "\b\f\n\r\t";
        if (const auto i = names.find(escaped); i != names.npos) {
          out += values[i];
        } else if (escaped == 'u') {
          unsigned code = read_hex();
          if (code >= 0xD800 && code < 0xDC00 && text.substr(at, 2) == "\\u") {
            at += 2;
            code = 0x10000 + (code - 0xD800) * 0x400 + (read_hex() - 0xDC00);
          }
          append_utf8(out, code);
        } else {
          out += escaped;
        }
      }
    }
  };

  std::variant<std::nullptr_t, bool, double, std::string, Array, Object> value_;
};

namespace detail {
constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                        kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

inline std::uint64_t rotate(std::uint64_t value, int bits) { return value << bits | value >> (64 - bits); }
inline std::uint64_t round(std::uint64_t accumulator, std::uint64_t lane) {
  return rotate(accumulator + lane * kPrime2, 31) * kPrime1;
}
inline std::uint64_t read(std::string_view data, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = count - 1; i >= 0; i--) value = value << 8 | static_cast<unsigned char>(data[at + i]);
  return value;
}
template <typename T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; i++) out += static_cast<char>(value >> 8 * i & 0xFF);
}
}  // namespace detail

inline std::uint64_t xxh64(std::string_view data, std::uint64_t seed = 0) {
  using namespace detail;
  std::size_t at = 0;
  std::uint64_t hash;
  if (data.size() >= 32) {
    std::uint64_t lanes[] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; at + 32 <= data.size(); at += 32) {
      for (int i = 0; i < 4; i++) lanes[i] = detail::round(lanes[i], detail::read(data, at + 8 * i, 8));
    }
    hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (const std::uint64_t lane : lanes) hash = (hash ^ detail::round(0, lane)) * kPrime1 + kPrime4;
  } else {
    hash = seed + kPrime5;
  }
  hash += data.size();
  for (; at + 8 <= data.size(); at += 8) {
    hash = rotate(hash ^ detail::round(0, detail::read(data, at, 8)), 27) * kPrime1 + kPrime4;
  }
  if (at + 4 <= data.size()) {
    hash = rotate(hash ^ detail::read(data, at, 4) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < data.size(); at++) {
    hash = rotate(hash ^ static_cast<unsigned char>(data[at]) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

inline std::uint64_t parse_unsigned(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("expected an integer from 0 to 2^64 - 1, got \"" + text + "\"");
  }
  return value;
}

/**
 * The key of a feature in a slot.
 *
 * @param scheme xxh64-concat, xxh64-tagged or raw
 * @param modulo 0 for none
 */
inline std::uint64_t hash_key(std::uint32_t slot, const std::string& feature, const std::string& scheme,
                              std::uint64_t seed, std::uint64_t modulo) {
  std::uint64_t key = 0;
  if (scheme == "xxh64-concat") {
    key = xxh64(std::to_string(slot) + feature, seed);
  } else if (scheme == "xxh64-tagged") {
    key = xxh64(std::to_string(slot) + std::string(1, '\0') + feature, seed);
  } else if (scheme == "raw") {
    key = parse_unsigned(feature);
  } else {
    throw std::invalid_argument("unknown hash scheme " + scheme + ": use xxh64-concat, xxh64-tagged or raw");
  }
  return modulo == 0 ? key : key % modulo;
}

/** Click probabilities of one request, and the version of graph and tables that made them. */
struct Prediction {
  std::vector<double> probabilities;
  std::string model;
  std::string version;
  std::string tables_version;
  /** Lookups whose feature is not in the table. */
  int unseen = 0;
  /** Lookups that no replica answered; the default row was used. */
  int unavailable = 0;
  bool degraded = false;
  /** Variant by experiment, where experiments are running. */
  std::map<std::string, std::string> experiments;
};

struct Options {
  /** Name of the model; "" for the only one of the process. */
  std::string model;
  /** Version to use; "" for the active one. */
  std::string version;
  /** Name of the channel that chooses the version; only for rows and TSV. */
  std::string label;
  /** Time for a call with its retries. */
  long timeout_ms = 1000;
  /** Repeated tries of a call at most. */
  int retries_max = 2;
  /** Accepts answers with gzip. */
  bool compress = false;
  std::string api_key;
  /** File with the certificates of trusted authorities; "" for the system's. */
  std::string ca_file;
};

struct CallOptions {
  std::string experiment_key;
  /** 0 is the highest; -1: the server's default. */
  int priority = -1;
};

/** A row or a column of named features: strings for slots, numbers for dense features, null for missing ones. */
using Row = std::map<std::string, Json>;
using Columns = std::map<std::string, std::vector<Json>>;

/**
 * A client of one serving process, or of several that serve the same models. One thread at a time may use it.
 *
 * A call tries the next address when there is no usable answer (status 429, 502, 503, or a broken connection), within
 * its timeout and a budget of a tenth of the calls.
 */
class Client {
 public:
  /** @param urls base addresses, such as http://10.0.0.1:8080 */
  explicit Client(std::vector<std::string> urls, Options options = {})
      : urls_(std::move(urls)), options_(std::move(options)), random_(std::random_device{}()) {
    if (urls_.empty()) throw std::invalid_argument("give at least one address");
    if (!options_.version.empty() && !options_.label.empty()) {
      throw std::invalid_argument("give a version or a label, not both");
    }
    for (std::string& url : urls_) {
      if (url.rfind("http://", 0) != 0 && url.rfind("https://", 0) != 0) {
        throw std::invalid_argument("address " + url + ": expected http://host:port or https://host:port");
      }
      while (url.back() == '/') url.pop_back();
    }
    next_ = random_() % urls_.size();
    static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_.reset(initialized == CURLE_OK ? curl_easy_init() : nullptr);
    if (curl_ == nullptr) throw std::runtime_error("libcurl cannot be initialized");
  }

  /** Scores rows of named features; a feature left out is missing. */
  Prediction predict_rows(const std::vector<Row>& rows, const CallOptions& call = {}) {
    Json::Array list;
    for (const Row& row : rows) list.emplace_back(Json::Object(row.begin(), row.end()));
    return predict(Json(Json::Object{{"rows", Json(std::move(list))}}).write(), "application/json", call);
  }

  /** Scores lines of tab-separated values in the order of the model's features. */
  Prediction predict_tsv(const std::string& lines, const CallOptions& call = {}) {
    return predict(lines, "text/tab-separated-values", call);
  }

  /** Scores columns of named features. */
  Prediction predict_columns(const Columns& columns, const CallOptions& call = {}) {
    const Json::Array& slots = features().at("slots").as_array();
    Json::Array inputs;
    for (const auto& [name, values] : columns) {
      const bool is_slot = std::any_of(slots.begin(), slots.end(), [name = name](const Json& slot) {
        return slot.at("name").as_string() == name;
      });
      inputs.emplace_back(Json::Object{{"name", name},
                                       {"datatype", is_slot ? "BYTES" : "FP64"},
                                       {"shape", Json::Array{values.size()}},
                                       {"data", Json::Array(values)}});
    }
    return infer(infer_request(std::move(inputs), call), 0, call);
  }

  /**
   * Scores binary tensors: keys [rows][slots] and dense [rows][dense features], not scaled; NaN is missing.
   */
  Prediction predict_arrays(const std::vector<std::vector<std::uint64_t>>& keys,
                            const std::vector<std::vector<float>>& dense, const CallOptions& call = {}) {
    const std::size_t slots = features().at("slots").as_array().size();
    std::string data;
    for (std::size_t i = 0; i < keys.size(); i++) {
      check_width("keys", i, slots, keys[i].size());
      for (const std::uint64_t key : keys[i]) detail::append_little_endian(data, key);
    }
    Json::Array inputs{binary_tensor("keys", "UINT64", keys.size(), slots, 8)};
    if (const Json* described = features().find("dense"); described != nullptr) {
      const std::size_t width = described->at("features").as_array().size();
      for (std::size_t i = 0; i < dense.size(); i++) {
        check_width("dense", i, width, dense[i].size());
        for (const float value : dense[i]) {
          std::uint32_t bits;
          std::memcpy(&bits, &value, sizeof bits);
          detail::append_little_endian(data, bits);
        }
      }
      inputs.push_back(binary_tensor("dense", "FP32", dense.size(), width, 4));
    }
    const std::string head = infer_request(std::move(inputs), call);
    return infer(head + data, head.size(), call);
  }

  /** Slots, dense features and hashing of the model; asked for once. */
  const Json& features() {
    if (!features_) {
      features_ = send("GET", "/v1/models/" + escape(model_name()) + "/features", "", {}, {}, &Client::read_features);
    }
    return *features_;
  }

  /** The keys of a row: one value per slot, "" for a missing one. */
  std::vector<std::uint64_t> hash_row(const std::vector<std::string>& values) {
    const Json::Array& slots = features().at("slots").as_array();
    const Json& hash = features().at("hash");
    if (values.size() != slots.size()) {
      throw std::invalid_argument("expected " + std::to_string(slots.size()) + " features, one per slot, got " +
                                  std::to_string(values.size()));
    }
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i < values.size(); i++) {
      if (slots[i].find("pooling") != nullptr) {
        throw std::invalid_argument("slot " + slots[i].at("name").as_string() +
                                    " pools several values: it has no single key");
      }
      const Json* missing = slots[i].find("missing");
      const std::string& value = values[i].empty() && missing != nullptr ? missing->as_string() : values[i];
      const Json* own = slots[i].find("modulo");
      const Json* common = own != nullptr ? own : hash.find("modulo");
      const Json* seed = hash.find("seed");
      keys.push_back(hash_key(static_cast<std::uint32_t>(slots[i].at("index").as_number()), value,
                              hash.at("scheme").as_string(), seed ? parse_unsigned(seed->as_string()) : 0,
                              common ? parse_unsigned(common->as_string()) : 0));
    }
    return keys;
  }

 private:
  using Clock = std::chrono::steady_clock;
  /** A retry costs one token; a call earns a tenth of one, so that retries stay below a tenth of the calls. */
  static constexpr double kTokensPerCall = 0.1, kTokensMax = 10;
  static constexpr double kBackoffFirstMs = 10, kBackoffMaxMs = 1000;
  static constexpr std::size_t kAnswerBytesMax = std::size_t{256} << 20;

  struct Answer {
    Json content;
    std::map<std::string, std::string> headers;
  };
  struct Response {
    long status = 0;
    std::string content;
    std::map<std::string, std::string> headers;
  };
  struct CurlCleanup {
    void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };

  const std::string& model_name() {
    if (options_.model.empty()) {
      const auto names = send("GET", "/v2/models", "", {}, {}, [](Answer&& answer) {
        std::vector<std::string> names;
        for (const Json& name : answer.content.at("models").as_array()) names.push_back(name.as_string());
        return names;
      });
      if (names.size() != 1) {
        throw Error("INVALID_ARGUMENT", "the server has " + std::to_string(names.size()) + " models: name one");
      }
      options_.model = names[0];
    }
    return options_.model;
  }

  Prediction predict(const std::string& body, const std::string& type, const CallOptions& call) {
    std::string query;
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) query += (query.empty() ? "?" : "&") + std::string(name) + "=" + escape(value);
    };
    add("model", options_.model);
    add("version", options_.version);
    add("label", options_.label);
    add("priority", call.priority < 0 ? "" : std::to_string(call.priority));
    return send("POST", "/v1/ctr:predict" + query, body, {"Content-Type: " + type}, call, [](Answer&& answer) {
      Prediction prediction = to_prediction(answer, answer.content, "model", "version");
      for (const Json& value : answer.content.at("probabilities").as_array()) {
        prediction.probabilities.push_back(value.as_number());
      }
      return prediction;
    });
  }

  Prediction infer(const std::string& body, std::size_t head_bytes, const CallOptions& call) {
    if (!options_.label.empty()) {
      throw Error("INVALID_ARGUMENT", "label: only predict_rows and predict_tsv take one");
    }
    const Json& click = features().at("click");
    const std::string version = options_.version.empty() ? "" : "/versions/" + escape(options_.version);
    std::vector<std::string> headers{"Content-Type: application/json"};
    if (head_bytes > 0) {
      headers = {"Content-Type: application/octet-stream",
                 "Inference-Header-Content-Length: " + std::to_string(head_bytes)};
    }
    const std::string path = "/v2/models/" + escape(model_name()) + version + "/infer";
    return send("POST", path, body, headers, call, [&click](Answer&& answer) {
      Prediction prediction = to_prediction(answer, answer.content.at("parameters"), "model_name", "model_version");
      prediction.probabilities = find_clicks(answer.content.at("outputs").as_array(), click);
      return prediction;
    });
  }

  /** The column of the click output. */
  static std::vector<double> find_clicks(const Json::Array& outputs, const Json& click) {
    const std::string& name = click.at("output").as_string();
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [&](const Json& output) { return output.at("name").as_string() == name; });
    if (found == outputs.end()) throw std::invalid_argument("the answer has no output " + name);
    const Json::Array& data = found->at("data").as_array();
    const Json::Array& shape = found->at("shape").as_array();
    const double rows = shape.empty() ? -1 : shape[0].as_number();
    if (rows == 0) return {};
    const std::size_t width = rows >= 1 ? data.size() / static_cast<std::size_t>(std::min(rows, 1e9)) : 0;
    const std::size_t column = column_of(click);
    if (column >= width || static_cast<double>(width) * rows != static_cast<double>(data.size())) {
      throw std::invalid_argument("the answer has " + std::to_string(data.size()) + " values for another shape");
    }
    std::vector<double> clicks;
    for (std::size_t at = column; at < data.size(); at += width) clicks.push_back(data[at].as_number());
    return clicks;
  }

  static std::size_t column_of(const Json& click) {
    const Json* column = click.find("column");
    const double value = column == nullptr ? 0 : column->as_number();
    if (!(value >= 0 && value < 1e9)) throw std::invalid_argument("click: wrong column");
    return static_cast<std::size_t>(value);
  }

  /** Checks what calls need. */
  static Json read_features(Answer&& answer) {
    for (const Json& slot : answer.content.at("slots").as_array()) {
      slot.at("name").as_string();
      slot.at("index").as_number();
    }
    const Json* dense = answer.content.find("dense");
    if (dense != nullptr) dense->at("features").as_array();
    answer.content.at("hash").at("scheme").as_string();
    answer.content.at("click").at("output").as_string();
    column_of(answer.content.at("click"));
    return std::move(answer.content);
  }

  static Prediction to_prediction(const Answer& answer, const Json& counts, const char* model, const char* version) {
    Prediction prediction;
    prediction.model = answer.content.at(model).as_string();
    prediction.version = answer.content.at(version).as_string();
    prediction.tables_version = counts.at("tables_version").as_string();
    prediction.unseen = static_cast<int>(counts.at("unseen").as_number());
    prediction.unavailable = static_cast<int>(counts.at("unavailable").as_number());
    prediction.degraded = counts.at("degraded").as_bool();
    const auto header = answer.headers.find("hypercube-experiments");
    if (header != answer.headers.end()) prediction.experiments = read_experiments(header->second);
    return prediction;
  }

  /**
   * Sends a request until there is an answer that a retry would not change.
   *
   * @param read takes an answer with status 200; throws std::invalid_argument if it is unusable
   */
  template <typename Read>
  std::invoke_result_t<Read, Answer> send(const std::string& method, const std::string& path, const std::string& body,
                                          std::vector<std::string> headers, const CallOptions& call, const Read& read) {
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(options_.timeout_ms);
    if (!call.experiment_key.empty()) headers.push_back("x-experiment-key: " + check_header(call.experiment_key));
    if (!options_.api_key.empty()) headers.push_back("Authorization: Bearer " + check_header(options_.api_key));
    tokens_ = std::min(kTokensMax, tokens_ + kTokensPerCall);
    const std::size_t first = next_++;
    for (int tries = 0;;) {
      const long remaining_ms = remaining(deadline);
      if (remaining_ms < 1) throw deadline_exceeded();
      const std::string& url = urls_[(first + static_cast<std::size_t>(tries)) % urls_.size()];
      Response response = exchange(method, url + path, body, headers, remaining_ms);
      double pause_ms = 0;
      std::optional<Error> error;
      if (response.status == 200) {
        try {
          return read(Answer{Json::parse(response.content), std::move(response.headers)});
        } catch (const std::invalid_argument& problem) {
          error.emplace("UNAVAILABLE", std::string("the answer is unusable: ") + problem.what());
        }
      } else if (response.status == 0) {
        error.emplace("UNAVAILABLE", response.content);
      } else {
        error.emplace(read_error(response));
        if (response.status == 429) pause_ms = read_pause_ms(response.headers["retry-after"]);
      }
      const long status = error->status();
      if (status != 0 && status != 429 && status != 502 && status != 503) throw *error;
      const double backoff_ms = std::min(kBackoffMaxMs, kBackoffFirstMs * std::pow(2.0, tries));
      pause_ms = std::max(pause_ms, std::uniform_real_distribution<double>(0, backoff_ms)(random_));
      tries++;
      if (tries > options_.retries_max || remaining(deadline) <= pause_ms || tokens_ < 1) throw *error;
      tokens_ -= 1;
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause_ms));
    }
  }

  static long remaining(Clock::time_point deadline) {
    return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count());
  }

  Response exchange(const std::string& method, const std::string& url, const std::string& body,
                    const std::vector<std::string>& headers, long timeout_ms) {
    CURL* curl = curl_.get();
    curl_easy_reset(curl);
    curl_slist* list = nullptr;
    const auto append = [&](const std::string& header) { list = curl_slist_append(list, header.c_str()); };
    for (const std::string& header : headers) append(header);
    append("timeout-ms: " + std::to_string(std::min(timeout_ms, 600'000L)));
    append("Expect:");
    const std::unique_ptr<curl_slist, CurlCleanup> owned(list);
    Response response;
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    if (method == "POST") {
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
    }
    if (options_.compress) curl_easy_setopt(curl, CURLOPT_ACCEPT_ENCODING, "gzip");
    if (!options_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Client::write_content);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &response);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Client::write_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &response);
    const CURLcode code = curl_easy_perform(curl);
    if (code == CURLE_OPERATION_TIMEDOUT) throw deadline_exceeded();
    if (code != CURLE_OK) return {0, url + ": " + curl_easy_strerror(code), {}};
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
    return response;
  }

  static std::size_t write_content(char* data, std::size_t size, std::size_t count, void* into) {
    auto& content = static_cast<Response*>(into)->content;
    if (content.size() + size * count > kAnswerBytesMax) return 0;
    content.append(data, size * count);
    return size * count;
  }

  static std::size_t write_header(char* data, std::size_t size, std::size_t count, void* into) {
    const std::string line(data, size * count);
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) {
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      static_cast<Response*>(into)->headers[name] = trim(line.substr(colon + 1));
    }
    return size * count;
  }

  Error deadline_exceeded() const {
    return Error("DEADLINE_EXCEEDED", "no answer within " + std::to_string(options_.timeout_ms) + " ms");
  }

  /** Answers of a proxy have no code of their own: the status says what is known. */
  static Error read_error(const Response& response) {
    static const std::map<long, const char*> codes{
        {400, "INVALID_ARGUMENT"}, {401, "UNAUTHENTICATED"}, {403, "PERMISSION_DENIED"}, {404, "NOT_FOUND"},
        {405, "UNSUPPORTED"},      {413, "TOO_LARGE"},       {429, "OVERLOADED"},        {502, "UNAVAILABLE"},
        {503, "UNAVAILABLE"},      {504, "DEADLINE_EXCEEDED"}};
    const auto known = codes.find(response.status);
    const std::string code = known == codes.end() ? "INTERNAL" : known->second;
    try {
      const Json answer = Json::parse(response.content);
      const Json* own = answer.find("code");
      return Error(own ? own->as_string() : code, answer.at("error").as_string(), response.status);
    } catch (const std::invalid_argument&) {
      return Error(code, "HTTP status " + std::to_string(response.status), response.status);
    }
  }

  /** The pause of a Retry-After header, which is a number of seconds or a date; 0 for other text. */
  static double read_pause_ms(const std::string& text) {
    if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
      return 1000 * std::atof(text.c_str());
    }
    const std::time_t date = curl_getdate(text.c_str(), nullptr);
    return date == -1 ? 0 : 1000 * std::difftime(date, std::time(nullptr));
  }

  static std::map<std::string, std::string> read_experiments(const std::string& header) {
    std::map<std::string, std::string> experiments;
    for (std::size_t at = 0; at < header.size();) {
      const std::size_t end = std::min(header.find(',', at), header.size());
      const std::string pair = header.substr(at, end - at);
      const std::size_t equals = pair.find('=');
      if (equals != std::string::npos) experiments[trim(pair.substr(0, equals))] = trim(pair.substr(equals + 1));
      at = end + 1;
    }
    return experiments;
  }

  static std::string trim(const std::string& text) {
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    if (start == std::string::npos) return "";
    return text.substr(start, text.find_last_not_of(" \t\r\n") - start + 1);
  }

  static const std::string& check_header(const std::string& value) {
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (std::any_of(value.begin(), value.end(), is_control)) {
      throw Error("INVALID_ARGUMENT", "a key for a header has a control character");
    }
    return value;
  }

  static void check_width(const char* name, std::size_t row, std::size_t expected, std::size_t got) {
    if (got == expected) return;
    throw Error("INVALID_ARGUMENT", std::string(name) + ", row " + std::to_string(row) + ": expected " +
                                        std::to_string(expected) + " values, got " + std::to_string(got));
  }

  static Json binary_tensor(const char* name, const char* type, std::size_t rows, std::size_t width, int bytes) {
    const std::size_t size = rows * width * static_cast<std::size_t>(bytes);
    return Json::Object{{"name", name},
                        {"datatype", type},
                        {"shape", Json::Array{rows, width}},
                        {"parameters", Json::Object{{"binary_data_size", size}}}};
  }

  static std::string infer_request(Json::Array inputs, const CallOptions& call) {
    Json::Object request{{"inputs", Json(std::move(inputs))}};
    // KServe counts priorities from 1.
    if (call.priority >= 0) {
      request.emplace_back("parameters", Json(Json::Object{{"priority", call.priority + 1}}));
    }
    return Json(std::move(request)).write();
  }

  std::string escape(const std::string& text) const {
    char* escaped = curl_easy_escape(curl_.get(), text.data(), static_cast<int>(text.size()));
    if (escaped == nullptr) throw std::bad_alloc();
    std::string result = escaped;
    curl_free(escaped);
    return result;
  }

  std::vector<std::string> urls_;
  Options options_;
  std::mt19937_64 random_;
  std::size_t next_ = 0;
  double tokens_ = kTokensMax;
  std::unique_ptr<CURL, CurlCleanup> curl_;
  std::optional<Json> features_;
};

}  // namespace hypercube
