/**
 * Scores two rows over baidu_std with brpc: Paddle's general model service, features as strings, hashed by the server.
 *
 *     brpc_example 127.0.0.1:8080
 */
#include <brpc/channel.h>

#include <iostream>
#include <string>
#include <vector>

#include "general-model.pb.h"

namespace general_model = baidu::paddle_serving::predictor::general_model;

static void add_slot(general_model::Request& request, const std::string& name, const std::vector<std::string>& values) {
  general_model::Tensor* tensor = request.add_tensor();
  tensor->set_name(name);
  tensor->add_shape(static_cast<int>(values.size()));
  tensor->add_shape(1);
  for (const std::string& value : values) tensor->add_data(value);
}

int main(int count, char** values) {
  if (count != 2) {
    std::cerr << "usage: brpc_example <host>:<port>\n";
    return 2;
  }
  brpc::ChannelOptions options;
  options.protocol = "baidu_std";
  options.timeout_ms = 200;
  options.max_retry = 2;
  brpc::Channel channel;
  if (channel.Init(values[1], &options) != 0) {
    std::cerr << "cannot use the address " << values[1] << "\n";
    return 2;
  }

  general_model::Request request;
  add_slot(request, "C1", {"68fd1e64", ""});
  add_slot(request, "C2", {"80e26c9b", "0a519c5c"});
  // Dense features as the graph takes them, already scaled.
  general_model::Tensor* dense = request.add_tensor();
  dense->set_name("dense_input");
  dense->add_shape(2);
  dense->add_shape(13);
  for (int i = 0; i < 2 * 13; i++) dense->add_float_data(0);

  general_model::Response response;
  brpc::Controller controller;
  // The file has no generated service classes, so the method is found by its name.
  const auto* method = general_model::Request::descriptor()
                           ->file()
                           ->FindServiceByName("GeneralModelService")
                           ->FindMethodByName("inference");
  channel.CallMethod(method, &controller, &request, &response, nullptr);
  if (controller.Failed()) {
    std::cerr << controller.ErrorCode() << ": " << controller.ErrorText() << "\n";
    return 1;
  }
  if (response.err_no() != 0) {
    std::cerr << response.err_no() << ": " << response.err_msg() << "\n";
    return 1;
  }
  for (const general_model::Tensor& tensor : response.outputs(0).tensor()) {
    for (const float score : tensor.float_data()) std::cout << tensor.name() << " " << score << "\n";
  }
}
