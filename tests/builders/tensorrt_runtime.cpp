// A stand-in for the C++ runtime of Torch-TensorRT: its class, its operators and its list of texts, layouts 9 and 10.
//
// A plan is "ftrt:" and the name of a function of CPU tensors. Nothing of TensorRT is here.

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

namespace {

std::string abi_version = "10";

std::string base64(const std::string& bytes) {
  static const char* letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = (word << 8) | (k < left ? uint8_t(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += k <= left ? letters[(word >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

std::string from_base64(const std::string& text) {
  static const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t word = 0;
  int bits = 0;
  for (char letter : text) {
    if (letter == '=') break;
    word = (word << 6) | uint32_t(letters.find(letter));
    bits += 6;
    if (bits >= 8) bytes += char((word >> (bits -= 8)) & 255);
  }
  return bytes;
}

struct Engine : torch::CustomClassHolder {
  std::vector<std::string> info;
  int64_t calls = 0;

  explicit Engine(std::vector<std::string> fields) : info(std::move(fields)) {}

  std::vector<std::string> serialize() const {
    auto fields = info;
    fields[3] = base64(fields[3]);
    return fields;
  }
};

std::vector<at::Tensor> run(std::vector<at::Tensor> x, c10::intrusive_ptr<Engine> engine) {
  const std::string& plan = engine->info[3];
  ++engine->calls;
  if (plan == "ftrt:relu") return {x[0].relu()};
  if (plan == "ftrt:scale") return {x[0] * 3};
  if (plan == "ftrt:affine") return {x[0] * 2 + x[1], x[0] - x[1]};
  if (plan == "ftrt:repeat") return {at::cat({x[0], x[0]})};
  if (plan == "ftrt:positive") return {x[0].masked_select(x[0].gt(0))};
  if (plan == "ftrt:add number") return {x[0] + x[1], x[1] * 2};
  if (plan == "ftrt:write row") {  // into the memory of the cache, x[0]
    x[0].narrow(2, 3, 1).copy_(x[1]);
    return {x[0].sum(), x[0]};
  }
  TORCH_CHECK(false, "no such plan: ", plan);
}

TORCH_LIBRARY(tensorrt, m) {
  m.class_<Engine>("Engine")
      .def(torch::init<std::vector<std::string>>())
      .def("calls", [](const c10::intrusive_ptr<Engine>& self) { return self->calls; })
      .def("get_serialized_metadata", [](const c10::intrusive_ptr<Engine>& self) { return self->info[7]; })
      .def(
          "__obj_flatten__",
          [](const c10::intrusive_ptr<Engine>& self) {
            return std::make_tuple(std::make_tuple(std::string("info"), self->serialize()));
          })
      .def_pickle(
          [](const c10::intrusive_ptr<Engine>& self) { return self->serialize(); },
          [](std::vector<std::string> fields) {
            fields[3] = from_base64(fields[3]);
            return c10::make_intrusive<Engine>(std::move(fields));
          });
  m.def("execute_engine(Tensor[] input_tensors, __torch__.torch.classes.tensorrt.Engine engine) -> Tensor[]");
  m.def("ABI_VERSION() -> str", []() { return abi_version; });
  m.def("set_abi_version(str version) -> ()", [](std::string version) { abi_version = version; });
}

TORCH_LIBRARY_IMPL(tensorrt, CompositeExplicitAutograd, m) {
  m.impl("execute_engine", run);
}

}  // namespace
