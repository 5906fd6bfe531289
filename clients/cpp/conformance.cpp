/** Runs the shared cases with this client: conformance CASES URL VECTORS. Prints a JSON line per case. */
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>

#include "hypercube.hpp"

using hypercube::Json;

static Json read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return Json::parse(content.str());
}

static std::string text_or(const Json& object, const char* name, const std::string& fallback) {
  const Json* value = object.find(name);
  return value == nullptr ? fallback : value->as_string();
}

static double number_or(const Json& object, const char* name, double fallback) {
  const Json* value = object.find(name);
  return value == nullptr ? fallback : value->as_number();
}

static int count_wrong(const char* path) {
  int wrong = 0;
  const Json vectors = read_file(path);
  for (const Json& v : vectors.as_array()) {
    const auto slot = static_cast<std::uint32_t>(v.at("slot").as_number());
    const std::uint64_t key = hypercube::hash_key(slot, v.at("feature").as_string(), v.at("scheme").as_string(),
                                                  hypercube::parse_unsigned(v.at("seed").as_string()),
                                                  hypercube::parse_unsigned(v.at("modulo").as_string()));
    if (std::to_string(key) != v.at("key").as_string()) wrong++;
  }
  return wrong;
}

static hypercube::Prediction predict(hypercube::Client& client, const Json& test,
                                     const hypercube::CallOptions& options) {
  const std::string& call = test.at("call").as_string();
  const Json& input = test.at("input");
  if (call == "rows") {
    std::vector<hypercube::Row> rows;
    for (const Json& row : input.at("rows").as_array()) {
      rows.emplace_back(row.as_object().begin(), row.as_object().end());
    }
    return client.predict_rows(rows, options);
  }
  if (call == "tsv") {
    std::string text;
    for (int i = 0; i < number_or(input, "times", 1); i++) text += input.at("text").as_string();
    return client.predict_tsv(text, options);
  }
  if (call == "columns") {
    hypercube::Columns columns;
    for (const auto& [name, values] : input.at("columns").as_object()) columns[name] = values.as_array();
    return client.predict_columns(columns, options);
  }
  std::vector<std::vector<std::uint64_t>> keys;
  for (const Json& row : input.at("keys").as_array()) {
    keys.emplace_back();
    for (const Json& key : row.as_array()) keys.back().push_back(hypercube::parse_unsigned(key.as_string()));
  }
  std::vector<std::vector<float>> dense;
  for (const Json& row : input.at("dense").as_array()) {
    dense.emplace_back();
    for (const Json& value : row.as_array()) {
      const float missing = std::numeric_limits<float>::quiet_NaN();
      dense.back().push_back(value.is_null() ? missing : static_cast<float>(value.as_number()));
    }
  }
  return client.predict_arrays(keys, dense, options);
}

static Json::Object run(const Json& test, const std::string& url, const char* vectors) {
  Json::Object result{{"name", test.at("name")}};
  const std::string& call = test.at("call").as_string();
  if (call == "vectors") {
    result.emplace_back("wrong", count_wrong(vectors));
    return result;
  }
  static const Json none{Json::Object{}};
  const Json& settings = test.find("client") ? test.at("client") : none;
  hypercube::Options options;
  options.model = text_or(settings, "model", "");
  options.version = text_or(settings, "version", "");
  options.label = text_or(settings, "label", "");
  options.api_key = text_or(settings, "api_key", "");
  options.timeout_ms = static_cast<long>(number_or(settings, "timeout_ms", 1000));
  options.retries_max = static_cast<int>(number_or(settings, "retries_max", 2));
  options.compress = settings.find("compress") != nullptr && settings.at("compress").as_bool();
  hypercube::Client client({url + "/" + text_or(test, "scenario", "plain")}, options);
  const Json& call_settings = test.find("options") ? test.at("options") : none;
  hypercube::CallOptions call_options;
  call_options.experiment_key = text_or(call_settings, "experiment_key", "");
  call_options.priority = static_cast<int>(number_or(call_settings, "priority", -1));
  Json::Array codes;
  Json::Object last;
  for (int i = 0; i < number_or(test, "repeat", 1); i++) {
    try {
      if (call == "hash_row") {
        std::vector<std::string> features;
        for (const Json& value : test.at("input").at("features").as_array()) {
          features.push_back(value.is_null() ? "" : value.as_string());
        }
        Json::Array keys;
        for (const std::uint64_t key : client.hash_row(features)) keys.emplace_back(std::to_string(key));
        last = {{"keys", Json(std::move(keys))}};
      } else {
        const hypercube::Prediction prediction = predict(client, test, call_options);
        Json::Object experiments;
        for (const auto& [name, variant] : prediction.experiments) experiments.emplace_back(name, variant);
        last = {{"probabilities", Json::Array(prediction.probabilities.begin(), prediction.probabilities.end())},
                {"version", prediction.version},
                {"unseen", prediction.unseen},
                {"degraded", prediction.degraded},
                {"experiments", Json(std::move(experiments))}};
      }
      codes.emplace_back("OK");
    } catch (const hypercube::Error& error) {
      codes.emplace_back(error.code());
    } catch (const std::exception& error) {  // no client throws others: the test shows them
      codes.emplace_back(error.what());
    }
  }
  result.insert(result.end(), last.begin(), last.end());
  result.emplace_back("codes", Json(std::move(codes)));
  return result;
}

int main(int count, char** values) {
  if (count != 4) {
    std::cerr << "usage: conformance CASES URL VECTORS\n";
    return 2;
  }
  const Json cases = read_file(values[1]);
  for (const Json& test : cases.at("cases").as_array()) {
    std::cout << Json(run(test, values[2], values[3])).write() << std::endl;
  }
}
