#include "tools/common/inference_model.h"

#include "engine/base/error.h"
#include "engine/base/log.h"

namespace gpt2 {

InferenceModel open_inference_model(const InferenceOptions& options, WeightSource& weights) {
  const int positions = weights.config().seq_len;
  if (options.longest > positions)
    throw Error(ExitCode::usage, std::to_string(options.longest) + " tokens exceed the " + std::to_string(positions) +
                                     " positions of " + weights.path());
  InferenceModel inference;
  inference.notes = weights.notes();
  BackendOptions device;
  device.device = options.device;
  if (const GpuReport gpu = find_gpu(device); options.device == DeviceKind::automatic && !gpu.usable) {
    device.device = DeviceKind::cpu;
    if (gpu_count() > 0) // no GPU at all is not worth a note
      inference.notes.push_back("no usable GPU (" + gpu.why_not + "): running on the CPU");
  }
  device.precision = options.precision;
  device.threads = options.threads;
  OpenBackend open = open_backend(device);

  ModelOptions shape;
  shape.config = weights.config();
  shape.precision = open.device.precision;
  shape.purpose = Purpose::inference;
  shape.batch_size = options.batch_size;
  shape.documents = options.documents;
  shape.seq_len = options.longest > 0 ? options.longest : positions;
  inference.backend = std::move(open.backend);
  inference.model = inference.backend->make_model(shape);
  inference.model->load_weights(weights);
  inference.description = format_count(static_cast<double>(parameter_count(weights.config()))) + " parameters of " +
                          weights.path() + ", " + inference.model->precision_label() + " on " +
                          inference.model->device_name();
  inference.notes.insert(inference.notes.end(), open.device.notes.begin(), open.device.notes.end());
  return inference;
}

} // namespace gpt2
